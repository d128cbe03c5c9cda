"""What integration tests share, because starting it is what costs."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The module `train_tiny.py`."""
    spec = spec_from_file_location("train_tiny", Path(__file__).with_name("train_tiny.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tiny_training` left its run."""
    return tmp_path_factory.mktemp("tiny") / "storage"


@pytest.fixture(scope="session")
def tiny_training(tiny: Any, tiny_storage: Path) -> list[dict[str, Any]]:
    """Everything that an uninterrupted tiny training said."""
    process = tiny.start(tiny_storage)
    lines = list(tiny.said(process))
    assert process.wait(timeout=60) == 0
    return lines


@pytest.fixture(scope="session")
def jax_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled programs and probes for all tests of the JAX backend."""
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="session", params=["llama", "gemma4"])
def probed_model(request: pytest.FixtureRequest, jax_cache: Path) -> Path:
    """A tiny model of each family whose reference logits are in `jax_cache`, so that no test pays for a process that makes them.

    Tests may ask for others as well, indirectly, by name: `gemma4_moe` is `tiny_gemma4_moe`.
    """
    from crossmesh.models.families.registry import read_architecture
    from crossmesh.models.probe import probe_tokens, reference_folder
    from crossmesh.models.torch.reference_torch import main
    from crossmesh.models.weights.fetch import fetch_model
    from crossmesh.verify.exchange.check import tiny_models

    model = fetch_model(tiny_models()[f"tiny_{request.param}"], jax_cache)
    kept = reference_folder(jax_cache / "probes", model.weights_digest)
    if not kept.exists():
        kept.mkdir(parents=True)
        np.save(kept / "tokens.npy", probe_tokens(read_architecture(model.path).vocab))
        main(model.path, kept)
    return model.path
