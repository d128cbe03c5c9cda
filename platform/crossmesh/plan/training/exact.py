"""Exact rules: what cannot work, whatever the compiler does. Pure and instant; each broken rule is one sentence that names what to change.

Training on either stack divides every tensor as `models/placement.py` says; serving may hold key/value heads more than once.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from crossmesh.config.training import ModelSpec
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Cpu, Tpu
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import check_backend
from crossmesh.models.kernels import FLASH_PACKAGE, check_kernel
from crossmesh.models.placement import place
from crossmesh.models.quantization import check_torch_quantization
from crossmesh.plan.model import PlannedModel
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.serving.point import ServingPoint


def broken_rules(point: TrainingPoint) -> tuple[str, ...]:
    """Why `point` cannot train; empty when no rule is broken."""
    return tuple(reason for reason in (*_counts(point), _setup(point), _tensors(point)) if reason)


def _counts(point: TrainingPoint) -> tuple[str, ...]:
    return (_devices(point), _batch(point), _context(point), _precision(point))


def _devices(point: TrainingPoint) -> str:
    chips, mesh = point.slice.device.chip_count(), point.mesh
    if mesh.devices == chips * mesh.dcn:
        return ""
    return (
        f"mesh data={mesh.data} fsdp={mesh.fsdp} tp={mesh.tp} has {mesh.devices // mesh.dcn} places, "
        f"{point.slice.name} has {chips} chips. Make the product {chips}."
    )


def _batch(point: TrainingPoint) -> str:
    together = point.micro * point.mesh.dp_size
    if point.batch % together == 0:
        return ""
    ranks = f"each of the mesh's {point.mesh.dp_size} data-parallel ranks"
    return f"batch.size={point.batch} is not a multiple of batch.micro={point.micro} on {ranks}."


def _context(point: TrainingPoint) -> str:
    longest = point.model.architecture.max_positions
    if point.length <= longest:
        return ""
    return f"A sequence of {point.length} tokens is longer than the model's {longest} positions. Set packing.length or data.max_length."


def _precision(point: TrainingPoint) -> str:
    chip = point.slice.chip
    if chip is None or point.peak:
        return ""
    return f"{chip.name} has no published peak for model.dtype={point.spec.dtype}. Set model.dtype=bfloat16."


def _setup(point: TrainingPoint) -> str:
    """What the worker refuses before it reads a weight: the same checks, on the hardware that is planned."""
    device, architecture = point.slice.device, point.model.architecture
    try:
        workers = environment(f"train/{point.backend}", device)
        if point.backend == "torch":
            on_cpu = isinstance(device, Cpu)
            flash = workers.python is not None or find_spec(FLASH_PACKAGE) is not None  # An interpreter of the user's has what it has.
            check_kernel(point.attention, architecture, point.spec.dtype, "cpu" if on_cpu else "cuda", flash=flash)
            check_torch_quantization(point.spec.quantization, point.mesh, cpu=on_cpu)
    except InputError as error:
        return str(error)
    return ""


def _tensors(point: TrainingPoint) -> str:
    return _placed(point.model, MeshShape(1, point.mesh.fsdp, point.mesh.tp), point.backend, point.spec)


@lru_cache(maxsize=4096)
def _placed(model: PlannedModel, mesh: MeshShape, backend: str, spec: ModelSpec) -> str:
    try:
        check_backend(model.architecture, backend)
        place(model.architecture, mesh, backend, spec, model.modules)
    except InputError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Replication:
    """Key/value heads that several tensor-parallel ranks hold."""

    layer: int
    """The first layer of its kind."""
    heads: int
    copies: int


def broken_serving_rules(point: ServingPoint) -> tuple[str, ...]:
    """Why `point` cannot serve; empty when no rule is broken. A CPU's tensor parallelism is processes, as many as asked for."""
    return tuple(reason for reason in (_engine_devices(point), _window(point), _step(point), *_heads(point)) if reason)


def replications(point: ServingPoint) -> tuple[Replication, ...]:
    """Kinds of layers whose key/value heads are held more than once: fewer than ranks, and dividing their number."""
    by_heads: dict[int, Replication] = {}
    for index, layer in enumerate(point.architecture.layers):
        if layer.kv_from is None and layer.kv_heads < point.tp and layer.kv_heads not in by_heads:
            by_heads[layer.kv_heads] = Replication(index, layer.kv_heads, point.tp // layer.kv_heads)
    return tuple(by_heads.values())


def _engine_devices(point: ServingPoint) -> str:
    device = point.slice.device
    chips = device.chip_count()
    if isinstance(device, Cpu):
        return ""
    if point.tp > chips:
        return f"serve.tp={point.tp} is more than the {chips} chips of {point.slice.name}."
    if isinstance(device, Tpu) and device.hosts > 1 and point.tp not in (chips, device.chips_per_host):
        return f"serve.tp={point.tp} does not fill the {chips} chips of {device.hosts} hosts, nor one host for each stage of layers."
    return ""


def _window(point: ServingPoint) -> str:
    longest, asked = point.architecture.max_positions, point.prompt + point.output
    if point.max_model_len > longest:
        return f"serve.max_model_len={point.max_model_len} is more than the model's {longest} positions."
    if asked > point.max_model_len:
        return (
            f"plan.prompt_tokens={point.prompt} and plan.output_tokens={point.output} are {asked} tokens, more than "
            f"serve.max_model_len={point.max_model_len}."
        )
    return ""


def _step(point: ServingPoint) -> str:
    """An engine whose step has not a token for each of its sequences is refused by vLLM."""
    if point.max_num_seqs <= point.step_tokens:
        return ""
    return (
        f"serve.max_num_seqs={point.max_num_seqs} is more than the {point.step_tokens} tokens of a step. "
        "Set serve.max_num_batched_tokens, or fewer sequences."
    )


def _heads(point: ServingPoint) -> list[str]:
    """What vLLM divides: query heads and inner features evenly; key/value heads evenly, or it holds each of them tp / heads times."""
    reasons, seen = [], set()
    for index, layer in enumerate(point.architecture.layers):
        if (layer.heads, layer.kv_heads, point.architecture.ffn_of(index)) in seen:
            continue
        seen.add((layer.heads, layer.kv_heads, point.architecture.ffn_of(index)))
        name, ffn = point.architecture.layer_prefix(index), point.architecture.ffn_of(index)
        if layer.heads % point.tp:
            reasons.append(f"{name}self_attn.q_proj.weight has {layer.heads} attention heads, which serve.tp={point.tp} does not divide.")
        if layer.kv_from is None and layer.kv_heads % point.tp and point.tp % layer.kv_heads:
            reasons.append(
                f"{name}self_attn.k_proj.weight has {layer.kv_heads} key/value heads; serve.tp={point.tp} neither divides them nor is a "
                "multiple of them."
            )
        if ffn % point.tp:
            reasons.append(f"{name}mlp.gate_proj.weight has {ffn} inner features, which serve.tp={point.tp} does not divide.")
    return reasons
