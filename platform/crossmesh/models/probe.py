"""A model is trusted on another framework only after its logits were held against the Hugging Face reference.

A wrong name, axis or rotary base loads without a word and trains to a plausible loss; logits show it at once. The reference is computed
by transformers in a process of its own (it needs torch) and kept, as is the verdict, so that the price is paid once a model and version.
"""

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import canonical_json, digest_text, new_folder, read_json, write_json
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.targets import parameter_count
from crossmesh.models.weights.cut import CUT_RECIPE, TOKENS_FILE, write_cut
from crossmesh.models.weights.fetch import folder_digests

LogitsOf = Callable[[Path, Architecture, npt.NDArray[np.int32]], npt.NDArray[np.float32]]
"""Logits [B, T, vocab] of the model in a folder, for token ids [B, T], whole causal rows at positions 0, 1, ..."""

LARGEST = 1_000_000_000
"""Parameters up to which a model is probed whole; of a larger one a cut is (`cut.py`), which needs no more memory."""
_ROWS, _LENGTH = 2, 40
_LIMIT = 1e-4
"""Largest relative difference in float32. Measured: 4e-6 where the model is right, over 0.3 where rope is wrong."""
_PACKAGES = ("jax", "flax", "google-tunix", "qwix")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeResult:
    """How far logits are from the reference."""

    max_abs_diff: float
    relative: float
    """Root mean square of the difference over the standard deviation of the reference."""
    top1_agreement: float
    """Share of positions with the same most likely token."""

    @property
    def passed(self) -> bool:
        """Whether this is rounding in float32 and no more."""
        return self.relative <= _LIMIT


def probe_tokens(vocab: int) -> npt.NDArray[np.int32]:
    """The token ids [B, T] of a model that is probed whole: fixed, and longer than a tiny model's attention window."""
    return np.random.default_rng(0).integers(0, vocab, (_ROWS, _LENGTH)).astype(np.int32)


def compare(logits: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> ProbeResult:
    """Hold `logits` against `reference`, both [B, T, vocab]."""
    difference = logits - reference
    return ProbeResult(
        max_abs_diff=float(np.abs(difference).max()),
        relative=float(np.sqrt(np.mean(np.square(difference))) / reference.std()),
        top1_agreement=float((logits.argmax(-1) == reference.argmax(-1)).mean()),
    )


def probe(
    folder: Path, architecture: Architecture, cache: Path, logits_of: LogitsOf, agree: Callable[[bool], bool] = bool
) -> ProbeResult | None:
    """Check `logits_of`, in float32 whatever is trained in, on the model in `folder`, or on a cut of it when it is large.

    Returns None where a large model cannot be held against transformers here, because there is no torch. A verdict is kept in `cache` by
    weights and versions, and found there the next time without computing anything. `agree` makes several processes that share the model
    do the same: `logits_of` is called by all when one of them has no verdict. Raises `CrossmeshError` when the logits differ by more than
    rounding, `InputError` when the reference cannot be had here.
    """
    digest = folder_digests(folder).weights_digest
    versions = {package: version(package) for package in _PACKAGES}
    verdict = cache / f"{digest_text(canonical_json([digest, versions]))[:16]}.json"
    if not agree(not verdict.is_file()):
        return ProbeResult(**read_json(verdict))
    probed, tokens = folder, probe_tokens(architecture.vocab)
    if parameter_count(architecture) > LARGEST:
        digest = digest_text(canonical_json([digest, CUT_RECIPE]))
        if agree(importlib.util.find_spec("torch") is None and not reference_folder(cache, digest).is_dir()):
            _log.warning(
                "%s was never held against transformers, and this environment has no torch to do it: the JAX backend is used on trust. A "
                "run of one step with backend=jax on a machine with both and the same storage.root holds it.",
                folder,
            )
            return None
        probed, tokens = _cut(folder, architecture, cache, digest)
        architecture = read_architecture(probed)
    result = compare(logits_of(probed, architecture, tokens), reference(probed, tokens, cache, digest))
    if not result.passed:
        raise CrossmeshError(
            f"The JAX model of {folder} does not compute what transformers computes: the logits differ by {result.relative:.2g} of their "
            f"spread (allowed in float32: {_LIMIT:.2g}), the top token by {1 - result.top1_agreement:.0%}. Use backend=torch."
        )
    write_json(verdict, asdict(result))
    return result


def reference_folder(cache: Path, digest: str) -> Path:
    """Where the reference logits of the weights with `digest` are kept."""
    return cache / f"reference-{digest[:16]}"


def _cut(folder: Path, architecture: Architecture, cache: Path, digest: str) -> tuple[Path, npt.NDArray[np.int32]]:
    """The cut with `digest` of the model in `folder`, made once, and the token ids [B, T] that it is probed with."""
    kept = cache / f"cut-{digest[:16]}"
    if not kept.is_dir():
        with new_folder(kept) as temporary:
            write_cut(folder, architecture, temporary)
    tokens: npt.NDArray[np.int32] = np.load(kept / TOKENS_FILE)
    return kept, tokens


def reference(folder: Path, tokens: npt.NDArray[np.int32], cache: Path, digest: str) -> npt.NDArray[np.float32]:
    """Float32 reference logits of `tokens`, from `cache` or from a process with transformers. Needs torch the first time."""
    kept = reference_folder(cache, digest)
    if not kept.is_dir():
        if importlib.util.find_spec("torch") is None:
            raise InputError(
                f"{folder} was never held against transformers, and this environment has no torch to do it. Train one step with "
                f"backend=jax on a machine that has both, with the same storage.root, or copy {kept} from there."
            )
        with new_folder(kept) as temporary:
            np.save(temporary / TOKENS_FILE, tokens)
            command = [sys.executable, "-m", "crossmesh.models.torch.reference_torch", str(folder), str(temporary)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CrossmeshError(f"The reference logits of {folder} could not be computed:\n{done.stderr[-2000:]}")
    logits: npt.NDArray[np.float32] = np.load(kept / "logits.npy")
    return logits
