"""What clients may load into a running engine: which adapters, from where, and why not others. No engine, no routes."""

from dataclasses import dataclass
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.serve.adapters import ServedAdapter, ServedBase, check_rank


@dataclass(frozen=True)
class HotLoading:
    """The limits of one server."""

    base: ServedBase
    roots: tuple[Path, ...]
    """Folders that adapters may come from, with all below them."""
    rank: int
    """The largest rank that the engine has memory for; 0 when it serves no adapters."""
    engines: int = 1
    """Engines that the server has at most. A request reaches one of them, so with several none is changed while it runs."""

    def adapter(self, name: str, path: str) -> ServedAdapter:
        """Return the PEFT adapter at `path` ready for the engine, or raise `InputError`: one message for the client.

        Nothing is said of paths outside the roots, not even whether they exist; links are followed before they are judged.
        """
        if not self.rank:
            raise InputError("This server has no room for adapters. Start it with serve.max_loras=1 or more.")
        folder = Path(path)
        if not folder.is_absolute() or not any(folder.resolve().is_relative_to(root.resolve()) for root in self.roots):
            raise InputError(
                f"lora_path={path!r} is not allowed. Allowed: the absolute path of a PEFT adapter folder in storage.root, or in a folder "
                "that the server was started with."
            )
        adapter = self.base.adapter(name, folder.resolve())
        check_rank(adapter, self.rank)
        return adapter
