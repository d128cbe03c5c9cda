"""The one specification of an experiment: its groups, and the checks that span them.

A default stands in its dataclass and nowhere else; a YAML under `conf/` holds only its difference from it. Values are checked when the
dataclass is built, so a spec that exists is a spec that makes sense; what needs files, devices or weights is checked later.
"""

import math
import re
from dataclasses import dataclass, field, replace

from crossmesh.config.bench import BenchSpec
from crossmesh.config.classes import leaves
from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.objective import ObjectiveSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.config.services import HOOKS, StorageSpec, TrackingSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import (
    ATTENTIONS,
    AUTO,
    BackendSpec,
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    HardwareSpec,
    LoraSpec,
    MeshSpec,
    ModelSpec,
    OptimSpec,
    PackingSpec,
    RetrySpec,
    default_torch_kernel,
)
from crossmesh.config.verdicts import MattersSpec
from crossmesh.errors import InputError, require
from crossmesh.hardware.devices import Device, Gpu, Tpu
from crossmesh.hardware.mesh import MeshShape, resolve_mesh

_WHOLE_LIMIT = 1 << 31
_SEED_LIMIT = 1 << 32
"""numpy, torch, JAX and vLLM all take seeds from 0 up to this."""
_NAME = re.compile(r"\w[\w .-]*")


@dataclass(frozen=True)
class ExperimentSpec:
    """Everything that one experiment says."""

    name: str = "unnamed"
    """Name of the experiment; its parent run and the folder of its report carry it."""
    model: ModelSpec = field(default_factory=ModelSpec)
    data: DataSpec = field(default_factory=DataSpec)
    lora: LoraSpec = field(default_factory=LoraSpec)
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    packing: PackingSpec = field(default_factory=PackingSpec)
    mesh: MeshSpec = field(default_factory=MeshSpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    backend: BackendSpec = field(default_factory=BackendSpec)
    serve: ServeSpec = field(default_factory=ServeSpec)
    bench: BenchSpec = field(default_factory=BenchSpec)
    eval: EvalSpec = field(default_factory=EvalSpec)
    tracking: TrackingSpec = field(default_factory=TrackingSpec)
    storage: StorageSpec = field(default_factory=StorageSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    retry: RetrySpec = field(default_factory=RetrySpec)
    plan: PlanSpec = field(default_factory=PlanSpec)
    matters: MattersSpec = field(default_factory=MattersSpec)
    hooks: tuple[str, ...] = ()
    """Hooks of installed packages that follow each trial while it trains, by name (`crossmesh.trial.hooks`)."""

    def __post_init__(self) -> None:
        """Check what holds in all groups, and what spans several."""
        object.__setattr__(self, "hooks", tuple(self.hooks))
        require(len(set(self.hooks)) == len(self.hooks), "hooks", list(self.hooks), "each name once")
        for hook in self.hooks:
            HOOKS.require("hooks", hook)
        plain = _NAME.fullmatch(self.name) is not None
        require(plain, "name", self.name, "letters, digits, '_', '-', '.' and blanks, a letter or digit first: it names a folder")
        for key, value in leaves(self):
            _check_number(key, value)
        dp_size = self.mesh_shape.dp_size
        if self.batch.size % (max(self.batch.micro, 1) * dp_size):
            possible = [] if self.batch.size % dp_size else _divisors(self.batch.size // dp_size)
            allowed = f"batch.micro one of {possible}" if possible else f"batch.size a multiple of {dp_size}, the mesh's dcn x data x fsdp"
            raise InputError(
                f"batch.size={self.batch.size} does not divide into batch.micro={self.batch.micro} "
                f"on each of the {dp_size} data-parallel ranks of the mesh. "
                f"Allowed: {allowed}."
            )
        self._check_training()
        rank = self.lora.largest_rank
        if self.serve.max_lora_rank < rank:
            key = "lora.rank" if rank == self.lora.rank else "a rank in lora.rank_pattern"
            raise InputError(f"serve.max_lora_rank={self.serve.max_lora_rank} is below {key}={rank}. Raise it to the rank at least.")

    def check_evaluation(self) -> None:
        """Check what a job that evaluates needs of its own server; raises `InputError`."""
        longest, answer = self.data.max_length, self.eval.max_tokens or 0
        if not self.eval.url and self.serve.max_model_len < answer:
            raise InputError(
                f"eval.max_tokens={answer} exceeds serve.max_model_len={self.serve.max_model_len}. "
                f"Raise serve.max_model_len to prompt plus answer: {longest + answer} holds rows of {longest} tokens."
            )

    def _check_training(self) -> None:
        """Check what spans model, adapter, packing, backend and hardware."""
        length = self.packing.length
        if length and self.packing.mode == "none":
            raise InputError(f"packing.length={length} with packing.mode=none: an unpacked sequence holds one row. Leave it out.")
        if length and length < self.data.max_length:
            raise InputError(
                f"packing.length={length} is below data.max_length={self.data.max_length}: a row of that length does not fit. "
                "Allowed: 0, or data.max_length at least."
            )
        if self.lora.full and self.model.quantization != "none":
            raise InputError(
                f"model.quantization={self.model.quantization} with lora.rank=0: 4-bit weights cannot be trained. "
                "Give a rank, or quantization=none."
            )
        possible = ATTENTIONS[self.backend_name]
        if self.backend.attention not in (*possible, AUTO):
            raise InputError(
                f"backend.attention={self.backend.attention} is not a kernel of the {self.backend_name} backend. "
                f"Allowed: {', '.join((*possible, AUTO))}."
            )
        if self.backend.compile != "none" and self.backend_name == "jax":
            raise InputError(
                f"backend.compile={self.backend.compile} belongs to backend.name=torch; the jax backend always compiles the whole step. "
                "Allowed with jax: none."
            )
        if self.backend.compile != "none" and self.backend.remat == "dots":
            raise InputError(
                f"backend.compile={self.backend.compile} with backend.remat=dots: a compiled layer hides the matrix products that dots "
                "keeps. Allowed: backend.remat=layer or none, or backend.compile=none."
            )
        needs: dict[str, type[Device]] = {"splash": Tpu, "flex": Gpu, "flash": Gpu}
        wanted = needs.get(self.attention)
        if wanted and not isinstance(self.hardware.slice.device, wanted):
            others = ", ".join(kernel for kernel in possible if kernel not in needs)
            raise InputError(
                f"backend.attention={self.attention} runs on {wanted.__name__.upper()} hardware only, not on "
                f"hardware.name={self.hardware.name}. Allowed there: {others}, auto."
            )

    @property
    def mesh_shape(self) -> MeshShape:
        """The mesh on this hardware."""
        return resolve_mesh(self.mesh.data, self.mesh.fsdp, self.mesh.tp, self.hardware.slice.device.chip_count(), self.mesh.dcn)

    def on_slices(self, slices: int) -> "ExperimentSpec":
        """The same training on `slices` of its `mesh.dcn` slices: a device's micro-batch stays, the rest is accumulated."""
        if slices == self.mesh.dcn:
            return self
        mesh = replace(self.mesh, dcn=slices, min_dcn=0)
        return replace(self, mesh=mesh, batch=replace(self.batch, micro=self.micro_batch))

    @property
    def training_chips(self) -> int:
        """Chips without which a training does not start: of all slices, or of the fewest that it goes on with."""
        return self.hardware.slice.device.chip_count() * self.mesh.least_dcn

    @property
    def serving_chips(self) -> int:
        """Chips that a server holds once it has started: those of each of its first engines, or of TPUs a slice for each."""
        device = self.hardware.slice.device
        engine = device.chip_count() if isinstance(device, Tpu) else self.serve.tp * self.serve.pp
        return engine * max(1, self.serve.replicas)

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence of a batch, padding included."""
        return self.packing.length or self.data.max_length

    @property
    def attention(self) -> str:
        """The attention kernel after `auto` is resolved by backend and hardware."""
        if self.backend.attention != AUTO:
            return self.backend.attention
        if self.backend_name == "torch":
            return default_torch_kernel(self.model.family)
        return "splash" if isinstance(self.hardware.slice.device, Tpu) else "plain"

    @property
    def backend_name(self) -> str:
        """The backend after `auto` is resolved by the hardware."""
        return self.hardware.slice.default_backend if self.backend.name == AUTO else self.backend.name

    @property
    def micro_batch(self) -> int:
        """Sequences that one data-parallel rank computes at once."""
        share = 1 if self.packing.mode == "step" else self.batch.size // self.mesh_shape.dp_size
        return self.batch.micro or share

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step; with `packing.mode=step` the most that a step can have."""
        return self.batch.size // (self.micro_batch * self.mesh_shape.dp_size)


def _check_number(key: str, value: object) -> None:
    """Refuse numbers that no engine can take, whichever key they are given to."""
    if isinstance(value, float):
        require(math.isfinite(value), key, value, "a finite number")
    elif isinstance(value, int):
        low, high = (0, _SEED_LIMIT) if key.endswith("seed") else (-_WHOLE_LIMIT, _WHOLE_LIMIT)
        require(low <= value < high, key, value, f"{low} to {high - 1}")


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
