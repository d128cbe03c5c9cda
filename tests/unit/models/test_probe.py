"""The verdict on another framework's logits: rounding passes, a fault does not, and neither is computed twice."""

from pathlib import Path

import numpy as np
import pytest

from crossmesh.errors import CrossmeshError
from crossmesh.files import canonical_json, digest_text
from crossmesh.models import probe as probes
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.probe import compare, probe, probe_tokens, reference_folder
from crossmesh.models.weights.cut import CUT_RECIPE
from crossmesh.models.weights.fetch import folder_digests
from crossmesh.models.weights.random_weights import write_random

REFERENCE = np.random.default_rng(1).normal(size=(2, 40, 512)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_random("tiny_llama@0", folder)
    return folder


@pytest.fixture
def cache(model: Path, tmp_path: Path) -> Path:
    """A cache that has the reference already."""
    kept = reference_folder(tmp_path, folder_digests(model).weights_digest)
    kept.mkdir()
    np.save(kept / "logits.npy", REFERENCE)
    return tmp_path


def test_a_difference_is_measured_against_the_spread_of_the_reference() -> None:
    off = REFERENCE.copy()
    off[0, 0, 0] += 100.0
    result = compare(off, REFERENCE)
    assert result.max_abs_diff == pytest.approx(100.0)
    assert result.relative == pytest.approx(100.0 / np.sqrt(REFERENCE.size) / REFERENCE.std(), rel=1e-3)
    assert result.top1_agreement == 1 - 1 / 80
    assert compare(1000 * off, 1000 * REFERENCE).relative == pytest.approx(result.relative, rel=1e-5)


def test_rounding_passes_once_and_for_all(model: Path, cache: Path) -> None:
    asked = []

    def logits_of(_folder: Path, _architecture: Architecture, tokens: np.ndarray) -> np.ndarray:
        asked.append(tokens)
        return REFERENCE * np.float32(1 + 1e-6)

    architecture = read_architecture(model)
    first = probe(model, architecture, cache, logits_of)
    assert first is not None
    assert probe(model, architecture, cache, logits_of) == first
    assert len(asked) == 1
    assert np.array_equal(asked[0], probe_tokens(512))


def test_a_fault_is_reported_and_never_remembered_as_a_pass(model: Path, cache: Path) -> None:
    noise = np.random.default_rng(2).normal(size=REFERENCE.shape).astype(np.float32)
    architecture = read_architecture(model)
    for size in (1e-3, 0.3):
        for _ in range(2):
            with pytest.raises(CrossmeshError, match="Use backend=torch"):
                probe(model, architecture, cache, lambda *_, size=size: REFERENCE + np.float32(size) * noise)
    assert not list(cache.glob("*.json"))


def test_of_a_large_model_a_cut_is_probed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LARGEST", 1_000)
    asked: list[tuple[Path, np.ndarray]] = []

    def logits_of(folder: Path, _architecture: Architecture, tokens: np.ndarray) -> np.ndarray:
        asked.append((folder, tokens))
        kept = reference_folder(tmp_path, f"{digest_text(canonical_json([folder_digests(model).weights_digest, CUT_RECIPE]))}")
        kept.mkdir()
        np.save(kept / "logits.npy", REFERENCE)
        return REFERENCE

    result = probe(model, read_architecture(model), tmp_path, logits_of)
    assert result is not None
    ((folder, tokens),) = asked
    assert (len(read_architecture(folder).layers), tokens.shape) == (2, (2, 64))
    assert probe(model, read_architecture(model), tmp_path, logits_of) == result
    assert len(asked) == 1


def test_without_torch_a_large_model_is_used_on_trust_and_that_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> np.ndarray:
        raise AssertionError("probed")

    monkeypatch.setattr(probes, "LARGEST", 1_000)
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda _: None)
    assert probe(model, read_architecture(model), tmp_path, refuse) is None
    assert "used on trust" in caplog.text


def test_a_large_model_is_counted_from_its_config_alone() -> None:
    from crossmesh.models.families.registry import parse_architecture
    from crossmesh.models.targets import parameter_count
    from crossmesh.models.weights.random_weights import architecture_config

    assert parameter_count(parse_architecture(architecture_config("gemma4_31b"), "test")) == pytest.approx(30.7e9, rel=0.01)
