"""What a finished run leaves: a PEFT adapter, or with `lora.rank=0` a whole model. The worker writes it, the driver checks it."""

import shutil
from collections.abc import Mapping

from crossmesh.adapters.init_adapter import adapted_modules
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import adapter_digest, store_adapter
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.serving_defaults import ServingDefaults
from crossmesh.models.weights.whole import model_digest, write_model
from crossmesh.train.backend import FloatArray
from crossmesh.train.train_job import TrainJob


def write_trained(job: TrainJob, arrays: Mapping[str, FloatArray], serving: ServingDefaults) -> str:
    """Write what `Backend.export` returned to `job.trained`, in place of what lies there; return its digest.

    `serving` is what it is served with beyond what its base says.
    """
    spec, folder, base = job.spec, job.trained, job.model.path
    shutil.rmtree(folder, ignore_errors=True)  # Without a result, what lies there is of an attempt that did not end.
    if spec.lora.full:
        return write_model(folder, arrays, base, spec.model.dtype, serving)
    modules = adapted_modules(spec.lora, job.init_adapter.folder if job.init_adapter else None, read_architecture(base))
    config = AdapterConfig.of(modules, spec.lora.dropout, spec.model.weights)
    return store_adapter(folder, arrays, config, job.model.weights_digest, serving)


def trained_digest(job: TrainJob) -> str:
    """Digest of what lies at `job.trained`. Raises `InputError` or `OSError` when that is not there."""
    return model_digest(job.trained) if job.spec.lora.full else adapter_digest(job.trained)
