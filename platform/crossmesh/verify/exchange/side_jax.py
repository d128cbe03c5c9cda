"""The JAX side of `check=exchange`: logits of Tunix with Qwix's LoRA, and the adapter's way from a JAX state to PEFT and back."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crossmesh.adapters.convert import to_peft, to_qwix
from crossmesh.adapters.init_adapter import adapted_modules, first_values
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import read_adapter, store_adapter
from crossmesh.config.training import LoraSpec
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.lora import targets_of
from crossmesh.verify.exchange.figures import FloatArray, IntArray, module_errors, worst_of
from crossmesh.verify.measure import Progress
from crossmesh.verify.process import Request, answer_measurement, by_model


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Compute each of `models` (folders by name) in `dtype` and return the worst error of the round trip by name.

    A model's folder `files` holds `tokens.npy` [B, T]; this writes `jax_{base,adapted}.npy` [B, T, vocab] there. A model that this
    backend does not compute has its reason instead.
    """
    if request["dtype"] == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")
    return by_model(request, progress, "JAX", lambda paths: _measure(paths, request["dtype"]))


def _measure(paths: dict[str, str], dtype: str) -> dict[str, Any]:
    model, adapter, files = (Path(paths[key]) for key in ("model", "adapter", "files"))
    architecture = read_architecture(model)
    modules = adapted_modules(LoraSpec(), adapter, architecture)
    targets = targets_of(modules)
    structure = tunix_jax.build(architecture, ModelConfig(dtype), LoraSpec(), modules)
    mesh = tunix_jax.device_mesh(MeshShape(1, 1, 1))
    _, base = tunix_jax.load_weights(structure, model, mesh)
    arrays = to_qwix(first_values(LoraSpec(), adapter, modules), targets)
    state = tunix_jax.put_trained(structure, arrays, mesh)

    there: dict[Any, FloatArray] = tunix_jax.on_host(state)
    store_adapter(files / "returned", to_peft(there, targets), AdapterConfig.of(modules, 0.0, ""), "")
    errors = module_errors(there, to_qwix(read_adapter(files / "returned")[0], targets))
    name, worst = worst_of(errors)

    # The base is the same program with a B of zeros.
    nothing = {path: array if str(path[-1]).endswith("_lora_a") else np.zeros_like(array) for path, array in arrays.items()}
    tokens: IntArray = np.load(files / "tokens.npy")
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    compute = jax.jit(functools.partial(tunix_jax.all_logits, structure))
    for which, lora in (("base", tunix_jax.put_trained(structure, nothing, mesh)), ("adapted", state)):
        np.save(files / f"jax_{which}.npy", np.asarray(compute(lora, base, tokens, positions, np.ones_like(tokens))))
    return {"round_trip": worst, "worst_array": name, "arrays": len(errors)}


if __name__ == "__main__":
    answer_measurement(main)
