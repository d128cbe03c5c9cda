"""What a finished run leaves: a PEFT adapter, or with `lora.rank=0` a whole model. The worker writes it, the driver checks it."""

import shutil
from collections.abc import Mapping

from crossmesh.adapters.peft_format import adapter_digest, write_adapter
from crossmesh.models.families import read_architecture
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.models.whole import model_digest, write_model
from crossmesh.train.assignment import Assignment
from crossmesh.train.backend import FloatArray


def write_trained(assignment: Assignment, arrays: Mapping[str, FloatArray]) -> str:
    """Write what `Backend.export` returned to `assignment.trained`, in place of what lies there; return its digest."""
    spec, folder, base = assignment.spec, assignment.trained, assignment.model.path
    shutil.rmtree(folder, ignore_errors=True)  # Without a result, what lies there is of an attempt that did not end.
    if spec.lora.full:
        return write_model(folder, arrays, base, spec.model.dtype)
    return write_adapter(
        folder,
        arrays,
        rank=spec.lora.rank,
        alpha=spec.lora.alpha,
        dropout=spec.lora.dropout,
        base_model=spec.model.weights,
        modules=hf_module_names(expand_targets(read_architecture(base), spec.lora.targets)),
        base_digest=assignment.model.weights_digest,
    )


def trained_digest(assignment: Assignment) -> str:
    """Digest of what lies at `assignment.trained`. Raises `InputError` or `OSError` when that is not there."""
    return model_digest(assignment.trained) if assignment.spec.lora.full else adapter_digest(assignment.trained)
