"""The training state of the JAX backend as files: Orbax, sharded, written in the background, restorable on another mesh.

Arrays of one kind (the same matrix of all layers) are saved as one: Orbax takes about a millisecond an array. Stacking is also the copy
on the device that lets the next step go ahead. When to save and how files prove themselves is `checkpoint.py`'s.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from crossmesh.errors import InputError
from crossmesh.models.jax.tunix_jax import Path_
from crossmesh.train.backend import Saving

_PARTS = ("trained", "mu", "nu")
_FOLDER = "orbax"


class StateFiles:
    """Saves and restores the state of one run: trained arrays, both moments, steps done."""

    def __init__(self, abstract: Any, shardings: Any, mesh: Any) -> None:
        """`abstract` is the `nnx.State` of trained arrays without arrays, `shardings` the same with their shardings on `mesh`."""
        self._abstract = abstract
        self._shardings = shardings
        flat, places = dict(abstract.flat_state()), dict(shardings.flat_state())
        self._kinds: dict[str, list[Path_]] = {}
        for path, variable in flat.items():
            self._kinds.setdefault(_kind(path, variable.get_value().shape), []).append(path)
        self._stacked = {}
        for kind, paths in self._kinds.items():
            one, place = flat[paths[0]].get_value(), places[paths[0]].get_value()
            stacked = NamedSharding(mesh, PartitionSpec(None, *place.spec))
            self._stacked[kind] = jax.ShapeDtypeStruct((len(paths), *one.shape), one.dtype, sharding=stacked)
        self._checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def save(self, folder: Path, trained: Any, moments: optax.ScaleByAdamState, step: int) -> Saving:
        """Copy the state and start writing it below `folder`. Every process calls this; the answer waits for all of them."""
        states = dict(zip(_PARTS, (trained, moments.mu, moments.nu), strict=True))
        arrays = self._stack({part: dict(state.flat_state()) for part, state in states.items()})
        tree = {**arrays, "step": np.asarray(step, np.int64)}
        self._checkpointer.save(folder.resolve() / _FOLDER, args=ocp.args.StandardSave(tree))
        return self._wait

    def load(self, folder: Path) -> tuple[Any, optax.ScaleByAdamState, int]:
        """What `save` was given, bit for bit, on this mesh. Raises `InputError` when it is the state of another adapter."""
        abstract = {**dict.fromkeys(_PARTS, self._stacked), "step": np.asarray(0, np.int64)}
        try:
            tree = self._checkpointer.restore(folder.resolve() / _FOLDER, args=ocp.args.StandardRestore(abstract))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder} holds the state of another adapter: its arrays are not those of this spec's model, lora.targets and lora.rank. "
                "Start anew, or give the spec it was trained with."
            ) from error
        step = int(tree.pop("step"))
        trained, mu, nu = (nnx.from_flat_state(self._unstack(tree)[part]) for part in _PARTS)
        return trained, optax.ScaleByAdamState(count=self.counter(step), mu=mu, nu=nu), step

    def counter(self, step: int) -> Any:
        """The optimizer's step count as the step gives it back, so that its first call compiles the only program."""
        mesh = next(iter(self._stacked.values())).sharding.mesh
        return jax.make_array_from_callback((), NamedSharding(mesh, PartitionSpec()), lambda _: np.asarray(step, np.int32))

    def _wait(self) -> None:
        self._checkpointer.wait_until_finished()

    @functools.cached_property
    def _stack(self) -> Any:
        def stack(parts: Mapping[str, Mapping[Path_, Any]]) -> dict[str, dict[str, Any]]:
            return {
                part: {kind: jnp.stack([flat[path].get_value() for path in paths]) for kind, paths in self._kinds.items()}
                for part, flat in parts.items()
            }

        places = {kind: one.sharding for kind, one in self._stacked.items()}
        return jax.jit(stack, out_shardings=dict.fromkeys(_PARTS, places))

    @functools.cached_property
    def _unstack(self) -> Any:
        flat, places = dict(self._abstract.flat_state()), dict(self._shardings.flat_state())

        def unstack(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[Path_, Any]]:
            return {
                part: {path: flat[path].replace(stacks[kind][at]) for kind, paths in self._kinds.items() for at, path in enumerate(paths)}
                for part, stacks in parts.items()
            }

        return jax.jit(unstack, out_shardings=dict.fromkeys(_PARTS, places))


def _kind(path: Path_, shape: tuple[int, ...]) -> str:
    """Name of the arrays that differ from this one in their layer only."""
    name = ".".join("n" if isinstance(part, int) else str(part) for part in path)
    return f"{name}.{'x'.join(map(str, shape))}"
