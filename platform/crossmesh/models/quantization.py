"""What 4-bit weights need of the torch backend: pure rules, checked before anything starts and again by the worker.

Both backends cut weights into the same blocks (`placement.nf4_view`). The JAX backend quantizes by itself, on every device.
"""

from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Architecture
from crossmesh.models.targets import all_weights, projections


def check_torch_quantization(quantization: str, mesh: MeshShape, *, cpu: bool) -> None:
    """Raise `InputError` when the torch backend cannot keep weights in `quantization` (`ModelSpec.quantization`) on this mesh."""
    if quantization == "none":
        return
    given = f"model.quantization={quantization} on the torch backend"
    if cpu:
        raise InputError(f"{given} needs a GPU: bitsandbytes' 4-bit products run there. Allowed on a CPU: none, or backend=jax.")
    if mesh.fsdp > 1 or mesh.tp > 1:
        raise InputError(
            f"{given} with mesh.fsdp={mesh.fsdp}, mesh.tp={mesh.tp}: bitsandbytes' weights are whole on each GPU. "
            f"Allowed: fsdp and tp 1 (mesh.data={mesh.fsdp * mesh.tp * mesh.data}), or quantization=none."
        )


def kept_modules(architecture: Architecture) -> tuple[str, ...]:
    """Linear modules that stay in the compute precision, as on JAX: the output projection, and those that LoRA never adapts."""
    quantized = {weight.hf for index in range(len(architecture.layers)) for weight in projections(architecture, index).values()}
    tables = ("embed_tokens", "embed_tokens_per_layer")
    linear = {weight.hf for weight in all_weights(architecture) if weight.in_shape and not weight.hf.endswith(tables)}
    return ("lm_head", *sorted(linear - quantized - {"lm_head"}))
