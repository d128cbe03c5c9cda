"""Write a checkpoint anew with some of its matrices changed: one pass, block by block, every other byte as it was.

Each shard keeps its name, its header and so its layout; a matrix that changes is turned to float32, changed in place and rounded once,
a few rows at a time. While one block is computed, others are read, written and digested: memory holds a handful of them however
large the model is. A shard appears whole under its name or not at all, and one that is there is not made again.
"""

import errno
import hashlib
import os
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import canonical_json, digest_text, read_json, write_json
from crossmesh.models.weights.checkpoints import FLOATS, Checkpoint, Shard, Tensor
from crossmesh.models.weights.stores import Reader

FloatArray = npt.NDArray[np.float32]
RowChange = Callable[[int, FloatArray], None]
"""Changes, in place, the rows of a matrix that begin at the given one; float32, [rows, columns]."""

_INFINITE = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""Bits of infinity; only it and what is not a number reach them, sign aside. `numpy.isfinite` takes ten times as long for bfloat16."""
_RECORDS = ".shards"
"""Folder with what is known of each finished shard."""
_PLAN = "plan.json"
_BLOCK = 1 << 19
"""Bytes of a block: in a core's cache while it is changed, and long enough that starting it costs nothing."""
_AHEAD = 2
"""Blocks that wait for a thread."""


@dataclass(frozen=True)
class ShardDigests:
    """SHA-256 of one shard before and after."""

    base: str
    merged: str
    size: int


def rewrite(
    checkpoint: Checkpoint,
    folder: Path,
    changes: Mapping[str, Callable[[], RowChange]],
    identity: str,
    on_progress: Callable[[int, int], None],
) -> dict[str, ShardDigests]:
    """Write the shards of `checkpoint` to `folder`, changed, and return their digests by name.

    Args:
        checkpoint: what is read.
        folder: made when it is not there. Finished shards in it are kept if they were made for the same `identity` from the same
            files, otherwise everything in it is removed first.
        changes: by name of the tensor, what makes its change when its turn comes; each is a matrix of one of `FLOATS`.
        identity: what the changes are, as a text.
        on_progress: hears of bytes done and of all bytes.

    Raises:
        CrossmeshError: the disk is full, or the checkpoint could not be read to its end. Finished shards stay.
        InputError: a changed value cannot be said in the matrix's type.
    """
    records = folder / _RECORDS
    plan = _plan(checkpoint, identity)
    if folder.exists() and _kept(records / _PLAN) != plan:
        shutil.rmtree(folder)
    done = {shard.name: record for shard in checkpoint.shards if (record := _finished(folder, records, shard))}
    written = sum(record.size for record in done.values())

    def advance(size: int) -> None:
        nonlocal written
        written += size
        on_progress(written, checkpoint.size)

    with _room(folder, checkpoint.size - written), _Line(lambda finish: finish(), ahead=1) as finishing:
        _prepare(folder, records, plan)
        for shard in checkpoint.shards:
            if shard.name not in done:
                temporary = folder / f".{shard.name}.{uuid.uuid4().hex}"
                record = done[shard.name] = _write_shard(checkpoint, shard, temporary, changes, advance)
                # The disk takes its time to make a shard durable: meanwhile the next one is computed.
                finishing.put(partial(_finish, temporary, folder / shard.name, records, record))
    return done


def clear_records(folder: Path) -> None:
    """Remove what `rewrite` keeps beside the shards in order to go on."""
    shutil.rmtree(folder / _RECORDS)


def _plan(checkpoint: Checkpoint, identity: str) -> dict[str, str]:
    """What identifies a rewriting: finished shards of another one are worth nothing."""
    versions = {shard.name: checkpoint.store.version(shard.name) for shard in checkpoint.shards}
    return {"plan": digest_text(canonical_json([checkpoint.store.address, versions, identity]))}


def _prepare(folder: Path, records: Path, plan: Mapping[str, str]) -> None:
    for leftover in folder.glob(".*.safetensors.*"):  # Of a process that was killed.
        leftover.unlink()
    records.mkdir(parents=True, exist_ok=True)
    write_json(records / _PLAN, plan)


def _kept(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _finished(folder: Path, records: Path, shard: Shard) -> ShardDigests | None:
    """Return the record of a shard that is done: it is written after the shard is durable under its name."""
    record = _kept(records / f"{shard.name}.json")
    path = folder / shard.name
    return ShardDigests(**record) if record and path.is_file() and path.stat().st_size == shard.size else None


def _finish(temporary: Path, path: Path, records: Path, record: ShardDigests) -> None:
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)
    write_json(records / f"{path.name}.json", asdict(record))


def _write_shard(
    checkpoint: Checkpoint, shard: Shard, path: Path, changes: Mapping[str, Callable[[], RowChange]], advance: Callable[[int], None]
) -> ShardDigests:
    """Write one shard to `path`, not yet durable."""
    before, after = hashlib.sha256(), hashlib.sha256()
    before.update(shard.header)
    after.update(shard.header)
    try:
        with closing(checkpoint.store.open(shard.name)) as reader, path.open("xb", buffering=0) as stream:
            stream.write(shard.header)
            reader.skip(len(shard.header))
            with _Line(before.update) as digest_base, _Line(after.update) as digest_merged, _Line(lambda data: _write(stream, data)) as out:
                for block, change in _blocks(reader, shard, changes):
                    digest_base.put(block)
                    changed = change(block) if change else block
                    digest_merged.put(changed)
                    out.put(changed)
                    advance(len(block))
        advance(len(shard.header))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return ShardDigests(before.hexdigest(), after.hexdigest(), shard.size)


def _write(stream: Any, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


BlockChange = Callable[[bytes], memoryview]


def _blocks(reader: Reader, shard: Shard, changes: Mapping[str, Callable[[], RowChange]]) -> Iterator[tuple[bytes, BlockChange | None]]:
    """Every byte of the shard after its header, in order, in blocks, each with what changes it; read a few blocks ahead."""
    waiting: deque[tuple[Future[bytes], Tensor, int]] = deque()
    current: tuple[str, RowChange | None] = ("", None)
    pieces = ((tensor, offset, size) for tensor in shard.tensors for offset, size in _pieces(tensor, tensor.name in changes))
    with ThreadPoolExecutor(1) as pool:
        for tensor, offset, size in pieces:
            waiting.append((pool.submit(reader.read, size), tensor, offset))
            if len(waiting) > _AHEAD:
                current, found = _next(waiting, current, changes)
                yield found
        while waiting:
            current, found = _next(waiting, current, changes)
            yield found


def _next(
    waiting: deque[tuple[Future[bytes], Tensor, int]], current: tuple[str, RowChange | None], changes: Mapping[str, Callable[[], RowChange]]
) -> tuple[tuple[str, RowChange | None], tuple[bytes, BlockChange | None]]:
    """Take the first block that was read; the change of its tensor is made when the first of its blocks comes."""
    reading, tensor, offset = waiting.popleft()
    block = reading.result()
    if tensor.name != current[0]:
        current = (tensor.name, changes[tensor.name]() if tensor.name in changes else None)
    change = current[1]
    return current, (block, None if change is None else lambda data: _changed(data, tensor, offset, change))


def _pieces(tensor: Tensor, by_rows: bool) -> Iterator[tuple[int, int]]:
    """Offset and size in bytes of each block of a tensor; whole rows when it is to be changed."""
    row = tensor.size // tensor.shape[0] if by_rows and tensor.size else 1
    step = max(1, _BLOCK // row) * row
    for offset in range(0, tensor.size, step):
        yield offset, min(step, tensor.size - offset)


def _changed(block: bytes, tensor: Tensor, offset: int, change: RowChange) -> memoryview:
    """Return the bytes of a block of rows after `change`: computed in float32, rounded once."""
    columns = tensor.shape[1]
    dtype = np.dtype(FLOATS[tensor.dtype])
    rows = np.frombuffer(block, dtype).astype(np.float32).reshape(-1, columns)
    with np.errstate(over="ignore", invalid="ignore"):  # What comes of it is looked at below.
        change(offset // (columns * dtype.itemsize), rows)
        rounded = rows.astype(dtype, copy=False).reshape(-1)
    bits, infinite = rounded.view(f"u{dtype.itemsize}"), _INFINITE[tensor.dtype]
    if (bits & (infinite | infinite - 1)).max(initial=0) >= infinite:
        raise InputError(
            f"{tensor.name} would hold values that are not finite in {tensor.dtype}: the base has such values, or the change is too large "
            "for the type. Nothing is written. Merge onto the base in bfloat16 or float32."
        )
    return rounded.view(np.uint8).data


class _Line:
    """A thread that does one thing with each of what it is given, in order; `put` waits while it is too far behind."""

    def __init__(self, action: Callable[[Any], Any], ahead: int = _AHEAD) -> None:
        self._action, self._ahead = action, ahead
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[Future[Any]] = deque()

    def put(self, item: Any) -> None:
        """Hand over `item`; raises what an earlier one raised."""
        while len(self._waiting) >= self._ahead:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._action, item))

    def __enter__(self) -> "_Line":
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Wait until everything that was given is done; raises what that raised, unless another error is on its way."""
        self._pool.shutdown()
        if kind is None:
            for future in self._waiting:
                future.result()


@contextmanager
def _room(folder: Path, needed: int) -> Iterator[None]:
    """Refuse to begin without room for `needed` bytes; say what to do when the room is taken by others meanwhile."""
    free = shutil.disk_usage(next(parent for parent in folder.parents if parent.is_dir())).free
    if free < needed:
        raise CrossmeshError(
            f"{folder.parent} has {free / 1e9:.1f} GB free; {needed / 1e9:.1f} GB are needed. Make room, or write to another disk."
        )
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CrossmeshError(
            f"{error.strerror}: {folder.parent} had {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB were needed. Finished shards are "
            f"kept in {folder}: make room and run the same command to continue."
        ) from error
