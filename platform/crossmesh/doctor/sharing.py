"""Whether two machines see one `storage.root`: each writes a file that the other must see at once, and one locks the other out."""

import fcntl
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.storage_check import mount_of

_NAME = "storage, shared"
_MEND = (
    "sudo mount -t nfs SERVER:/SHARE {root}    # on every node, as cluster.yaml and conf/cluster/storage.yml do; or set storage.root to one"
)


@dataclass(frozen=True)
class Shared:
    """A scratch folder under `storage.root` that this machine has made."""

    folder: Path
    word: str
    """What its file `word` says."""


@dataclass(frozen=True)
class Sight:
    """What another machine sees of it."""

    word: str
    """What it reads; empty: the file does not exist there."""
    mount: str
    """Where its folder lies."""
    answer: str = ""
    """The file that it wrote beside it."""
    locked: bool | None = None
    """Whether this machine's lock keeps it out; None: there are no locks."""


@contextmanager
def offered(root: Path) -> Iterator[Shared]:
    """Make the folder, hold its lock, and remove it with the block."""
    folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=root))
    try:
        shared = Shared(folder, secrets.token_hex(16))
        (folder / "word").write_text(shared.word, encoding="ascii")
        with (folder / "lock").open("w", encoding="ascii") as held:
            _lock(held.fileno())
            yield shared
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def seen(shared: Shared, name: str) -> Sight:
    """What this other machine sees; it writes the word under its own `name`."""
    root = shared.folder.parent
    mount = mount_of(root)
    where = f"{mount.kind or 'an unknown file system'} ({mount.source or 'unknown'})" if root.is_dir() else "no folder"
    try:
        word = (shared.folder / "word").read_text(encoding="ascii")
    except OSError:
        return Sight("", where)
    with (shared.folder / "lock").open("a", encoding="ascii") as ours:
        locked = _lock(ours.fileno())
    (shared.folder / name).write_text(word, encoding="ascii")
    return Sight(word, where, name, None if locked is None else not locked)


def sharing_finding(shared: Shared, sight: Sight) -> Finding:
    """What it means; called on the machine that made the folder, as soon as the other has answered."""
    root = shared.folder.parent
    mend = _MEND.format(root=root)
    if sight.word != shared.word:
        found = f"a file written here in {root} is not there on the node at once: its {root} is {sight.mount}, another folder"
        return fault(_NAME, found, mend)
    try:
        back = (shared.folder / sight.answer).read_text(encoding="ascii")
    except OSError:
        back = ""
    if back != shared.word:
        return fault(_NAME, f"a file written on the node in {root} is not here at once ({sight.mount})", mend)
    found = f"{root} is one folder here and on the node ({sight.mount}): each sees at once what the other writes"
    if sight.locked is None:
        return note(_NAME, f"{found}; it has no file locks")
    if not sight.locked:
        return fault(_NAME, f"{found}, but a lock held here does not keep the node out", f"sudo mount -o remount,local_lock=none {root}")
    return ok(_NAME, f"{found}, and locks hold between them")


def _lock(descriptor: int) -> bool | None:
    """Whether this got the lock; None where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
