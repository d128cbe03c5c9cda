"""How far two training runs are apart: losses step by step, adapters as a whole, and the sets of matrices they trained.

Pure functions of what the runs left behind.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from crossmesh.adapters.initial import PEFT_PREFIX
from crossmesh.errors import CrossmeshError
from crossmesh.models.targets import Target

Arrays = Mapping[str, npt.NDArray[np.float32]]


def loss_differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The relative difference of each step's loss; `CrossmeshError` when one run has more steps."""
    if len(one) != len(other):
        raise CrossmeshError(f"The two runs have {len(one)} and {len(other)} steps: their losses cannot be compared.")
    return [abs(left - right) / abs(right) for left, right in zip(one, other, strict=True)]


def frobenius(arrays: Arrays) -> float:
    """The Frobenius norm over all arrays together."""
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values())))


def distance(one: Arrays, other: Arrays, origin: Arrays | None = None) -> float:
    """The Frobenius norm of `one - other` relative to that of `other`, or of `other - origin` when `origin` is given.

    Infinite when the two have other names: there is no distance between different adapters.
    """
    if one.keys() != other.keys():
        return float("inf")
    base = other if origin is None else {name: array - origin[name] for name, array in other.items()}
    apart = frobenius({name: array - other[name] for name, array in one.items()})
    size = frobenius(base)
    return apart / size if size else float("inf")


def trained_modules(adapter: Arrays) -> set[str]:
    """Hugging Face names of the modules that an adapter has arrays for."""
    return {name.removeprefix(PEFT_PREFIX).partition(".lora_")[0] for name in adapter}


def layer_kinds(targets: Iterable[Target], attention: Sequence[str]) -> dict[str, str]:
    """The layer kind and projection of each target by its module name, e.g. `sliding q`; `attention` has the kind of every layer."""
    return {target.hf: f"{attention[target.layer]} {target.name}" for target in targets}


def modules_by_kind(modules: Iterable[str], kinds: Mapping[str, str]) -> dict[str, int]:
    """How many modules of each layer kind there are; those that the table does not know are `unknown`."""
    return dict(sorted(Counter(kinds.get(module, "unknown") for module in modules).items()))


def module_difference(one: set[str], other: set[str], kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """Modules that only one side has, by layer kind; empty when both trained the same."""
    by_kind: dict[str, list[str]] = {}
    for module in sorted(one ^ other):
        by_kind.setdefault(kinds.get(module, "unknown"), []).append(module)
    return by_kind
