"""What a finished run leaves: a PEFT adapter, or with `lora.rank=0` a whole model. The worker writes it, the driver checks it."""

import shutil
from collections.abc import Mapping

from crossmesh.adapters.continuing import modules_of
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import adapter_digest, store_adapter
from crossmesh.models.families import read_architecture
from crossmesh.models.serving_defaults import ServingDefaults
from crossmesh.models.whole import model_digest, write_model
from crossmesh.train.assignment import Assignment
from crossmesh.train.backend import FloatArray


def write_trained(assignment: Assignment, arrays: Mapping[str, FloatArray], serving: ServingDefaults) -> str:
    """Write what `Backend.export` returned to `assignment.trained`, in place of what lies there; return its digest.

    `serving` is what it is served with beyond what its base says.
    """
    spec, folder, base = assignment.spec, assignment.trained, assignment.model.path
    shutil.rmtree(folder, ignore_errors=True)  # Without a result, what lies there is of an attempt that did not end.
    if spec.lora.full:
        return write_model(folder, arrays, base, spec.model.dtype, serving)
    modules = modules_of(spec.lora, assignment.start.folder if assignment.start else None, read_architecture(base))
    config = AdapterConfig.of(modules, spec.lora.dropout, spec.model.weights)
    return store_adapter(folder, arrays, config, assignment.model.weights_digest, serving)


def trained_digest(assignment: Assignment) -> str:
    """Digest of what lies at `assignment.trained`. Raises `InputError` or `OSError` when that is not there."""
    return model_digest(assignment.trained) if assignment.spec.lora.full else adapter_digest(assignment.trained)
