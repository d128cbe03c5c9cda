"""What identifies a run: science (what is learned) and system (how fast), each a plain JSON value whose digest is its fingerprint.

Science holds nothing that only changes speed, and names no backend: two runs with equal science must learn the same thing on any
hardware. A trial's identity is science and system. The third record, provenance, is not part of it (`track/provenance.py`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LORA_MASKS, NF4_BLOCK
from crossmesh.files import canonical_json, digest_text

SCIENCE_FORM = 2
"""Of the science record; raised when it says other things, or says them otherwise. Records without a number are of form 1."""
TRAINED_RECORD = "crossmesh_records.json"
"""File beside the weights of an adapter, or of a whole model: which science and which system it was trained with."""
WITHOUT_RECORD = "record_beside_weights"
"""Key that a comparison puts into the science of a run that has no `TRAINED_RECORD`."""


def digest_of(contents: Mapping[str, Any]) -> str:
    """The fingerprint of a record: SHA-256 of its canonical JSON, as hex."""
    return digest_text(canonical_json(contents))


def digest_of_parts(texts: Mapping[str, str]) -> str:
    """The same of a record whose values are canonical JSON already, by key: the rows of all steps are long."""
    return digest_text("{" + ",".join(f"{canonical_json(name)}:{texts[name]}" for name in sorted(texts)) + "}")


@dataclass(frozen=True)
class Record:
    """A JSON value and its fingerprint."""

    contents: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, as hex."""
        return digest_of(self.contents)


@dataclass(frozen=True)
class ScienceFacts:
    """What the science record needs beyond the spec: digests of what the spec only names, and what it expands to."""

    weights_digest: str
    data_digest: str
    """Over the tokens and the loss masks of the rows: all that the model sees of tokenizer, chat template and limits."""
    lora: Mapping[str, Any]
    """What LoRA is on which modules, and the digest of the adapter that training continues from; empty where all weights are trained."""
    step_rows: tuple[tuple[str, ...], ...]
    """Row ids of every optimizer step, in order."""
    resumed_from: str = ""
    """Science fingerprint of the run whose last state this one begins with, where that run was trained otherwise than this one."""
    objective: Mapping[str, Any] = field(default_factory=dict)
    """What of the objective decides what is learned; empty: the default."""


def science_record(spec: ExperimentSpec, facts: ScienceFacts) -> Record:
    """Everything that decides what a run learns, by what it came to: of data, tokenizer, order and packing only rows and steps are here."""
    optim = asdict(spec.optim)
    optim["warmup_steps"] = spec.optim.warmup
    del optim["stop_at"]  # The rows of the steps say where they end.
    return Record(
        {
            "form": SCIENCE_FORM,
            **({"resumed_from": facts.resumed_from} if facts.resumed_from else {}),
            **({"objective": dict(facts.objective)} if facts.objective else {}),
            "base": {"weights": facts.weights_digest},
            "data": {"digest": facts.data_digest, "loss_scope": "assistant"},
            "trained": "full" if spec.lora.full else "lora",
            "lora": {} if spec.lora.full else {**facts.lora, **dropout_science(spec), "seed": spec.lora.seed},
            "optimizer": {"name": "adamw", "schedule": "warmup_cosine", **optim},
            "precision": {
                "compute": spec.model.dtype,
                "base": base_precision(spec),
                "trained": "float32",
                "optimizer": "float32",
                "loss": "float32",
            },
            "steps": [list(rows) for rows in facts.step_rows],
        }
    )


def dropout_science(spec: ExperimentSpec) -> dict[str, Any]:
    """How much is dropped, and what says which: masks are a function of seed, step, row, position, module and feature alone."""
    masks = {"dropout_masks": LORA_MASKS} if spec.lora.dropout else {}
    return {"dropout": spec.lora.dropout, **masks}


def base_precision(spec: ExperimentSpec) -> Any:
    """How frozen weights are kept: how they are rounded decides what is learned on them."""
    if spec.model.quantization == "none":
        return spec.model.dtype
    return {"values": spec.model.quantization, "block": NF4_BLOCK, "along": "input", "scale": "absmax float32"}


def form_of(science: Mapping[str, Any]) -> int:
    """The form of a science record; only records of one form can be held against each other."""
    return int(science.get("form", 1))


def settings_digest(science: Mapping[str, Any]) -> str:
    """Digest of how a run with this science was trained, whatever its steps were and wherever it began."""
    return digest_of({key: value for key, value in science.items() if key not in ("steps", "resumed_from")})


def order_digest(science: Mapping[str, Any]) -> str:
    """Digest of the rows of every step of a science record."""
    return digest_text(canonical_json(science["steps"]))


def system_record(spec: ExperimentSpec, files: Mapping[str, str] | None = None) -> Record:
    """Everything of a training run that changes its speed and not what it learns.

    `files` are digests of the files that a wholly trained model has from its base: another trial, though it learns the same.
    """
    return Record(
        {
            "backend": spec.backend_name,
            "hardware": spec.hardware.name,
            **({"emulated": True} if spec.hardware.emulated else {}),  # CPU devices under the name: another trial than the real one.
            "mesh": asdict(spec.mesh_shape),
            "batch_micro": spec.micro_batch,
            "packing": {"mode": spec.packing.mode, "length": spec.sequence_length},
            "remat": spec.backend.remat,
            "attention": spec.attention,
            **({"compile": spec.backend.compile} if spec.backend.compile != "none" else {}),
            **({"files": dict(files)} if spec.lora.full and files else {}),
        }
    )


def trial_identity(science: Record, system: Record) -> str:
    """The identity of a trial: runs with the same one are the same run."""
    return identity_of_digests(science.digest, system.digest)


def identity_of_digests(science: str, system: str) -> str:
    """`trial_identity` of the two fingerprints."""
    return digest_text(canonical_json([science, system]))


def trained_record(science: Record, system: Record, trained: str) -> dict[str, str]:
    """What `TRAINED_RECORD` says; `trained` is the digest of what was trained."""
    return {"science": science.digest, "system": system.digest, "trained": trained}
