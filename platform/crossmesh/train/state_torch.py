"""Training state of the torch backend on disk, by torch's distributed checkpoint (DCP).

Every rank writes what it holds and any number of ranks reads it again, each its own parts. DCP's usual format keeps its index as a
pickle, which can run code when it is read; ours is DCP's other one, safetensors files that say themselves which part they hold.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, async_save, load
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from crossmesh.errors import CrossmeshError
from crossmesh.train.backend import Saving
from crossmesh.train.ranks_torch import Ranks

_ALL = "state"
"""One entry for everything: DCP looks at entries one by one, which with thousands of tensors would stall the training loop."""


def _alone(ranks: Ranks) -> bool:
    """Whether there is no other process; DCP finds that worth a warning."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    return ranks.mesh is None


def save(state: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> Saving:
    """Copy `state` to the host, start writing it into `folder` and return what waits for the files of all ranks."""
    stager = DefaultStager(StagingOptions(False, False, False, False))
    saving = async_save(
        {_ALL: dict(state)},
        storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
        process_group=ranks.files,
        async_stager=stager,
        no_dist=_alone(ranks),
    )

    def wait() -> None:
        try:
            saving.result()
        finally:
            stager.close()

    return wait


def restore(state: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Overwrite the tensors of `state` by what `save` wrote, on however many ranks. `CrossmeshError` when it is of another model."""
    try:
        load(
            {_ALL: dict(state)},
            storage_reader=HuggingFaceStorageReader(str(folder)),
            process_group=ranks.files,
            no_dist=_alone(ranks),
        )
    except Exception as error:  # DCP wraps whatever failed on any rank into exceptions of its own.
        reason = " ".join(str(error).split())[:300]
        raise CrossmeshError(f"{folder} does not hold the state of this model and adapter ({reason}).") from error
