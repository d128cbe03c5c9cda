"""Training state of the torch backend on disk, by torch's distributed checkpoint (DCP).

Every rank writes what it holds and any number of ranks reads it again, each its own parts. DCP's usual format keeps its index as a
pickle, which can run code when it is read; ours is DCP's other one, safetensors files that say themselves which part they hold.
"""

import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter, load, save
from torch.distributed.tensor import DTensor

from crossmesh.compat.torch_core import copy_all, sharded_like
from crossmesh.errors import CrossmeshError
from crossmesh.train.backend import Saving
from crossmesh.train.ranks_torch import Ranks

_ALL = "state"
"""One entry for everything: DCP looks at entries one by one, which takes long when there are thousands."""
_STEP = "step"


@dataclass(frozen=True)
class Stored:
    """A float32 tensor of the state."""

    values: Tensor
    """This rank's part."""
    like: Tensor
    """The parameter it belongs to, which says how the whole is divided."""

    def divided(self, values: Tensor) -> Tensor:
        """`values`, on whatever device, as this rank's part of the whole."""
        return sharded_like(values, self.like) if isinstance(self.like, DTensor) else values


class StateFiles:
    """Writes and reads the state of one model; one save at a time.

    DCP's own asynchronous save copies tensor by tensor into fresh memory, which holds the loop up longer than the bytes are worth. Here
    they are copied into one piece of host memory that is kept, and DCP does the rest in another thread.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._copies: list[Tensor] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, step: int, state: Mapping[str, Stored], folder: Path) -> Saving:
        """Copy `state` to the host, start writing it into `folder` and return what waits for the files of all ranks."""
        if self._writing is not None:
            wait([self._writing])
        values = [one.values for one in state.values()]
        self._copies = self._copies or _host_memory(values)
        copy_all(self._copies, values)
        if values[0].is_cuda:
            torch.cuda.synchronize()
        self._writing = self._thread.submit(self._write, step, state, folder)
        return self._writing.result

    def _write(self, step: int, state: Mapping[str, Stored], folder: Path) -> None:
        tensors = {name: one.divided(copy) for (name, one), copy in zip(state.items(), self._copies, strict=True)}
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save({_ALL: tensors | {_STEP: torch.tensor([step])}}, storage_writer=writer, process_group=self._ranks.files, no_dist=self._alone())

    def load(self, state: Mapping[str, Stored], folder: Path) -> int:
        """Overwrite the tensors of `state` by what any number of ranks saved, and return the step.

        Raises `CrossmeshError` when `folder` holds the state of another model or adapter.
        """
        step = torch.tensor([0])
        tensors = {name: one.divided(one.values) for name, one in state.items()}
        try:
            load(
                {_ALL: tensors | {_STEP: step}},
                storage_reader=HuggingFaceStorageReader(str(folder)),
                process_group=self._ranks.files,
                no_dist=self._alone(),
            )
        except Exception as error:  # DCP wraps whatever failed on any rank into exceptions of its own.
            reason = " ".join(str(error).split())[:300]
            raise CrossmeshError(f"{folder} does not hold the state of this model and adapter ({reason}).") from error
        return int(step.item())

    def _alone(self) -> bool:
        """Whether there is no other process; DCP finds that worth a warning."""
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        return self._ranks.mesh is None


def _host_memory(values: list[Tensor]) -> list[Tensor]:
    """Tensors like `values` in one piece of host memory, which a GPU can write to directly."""
    whole = torch.empty(sum(one.numel() for one in values), pin_memory=values[0].is_cuda)
    parts = whole.split([one.numel() for one in values])
    return [part.view(one.shape) for part, one in zip(parts, values, strict=True)]
