"""The one catalogue of slices and prices, read from `catalogue.yaml`."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from crossmesh.errors import require_choice
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu


@dataclass(frozen=True)
class Price:
    """A list price: USD per hour for the whole slice, where it was read and when."""

    usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True)
class Slice:
    """A named set of devices that is rented as one."""

    name: str
    device: Device
    price: Price | None

    @property
    def default_backend(self) -> str:
        """The framework that is at home on this hardware: jax on TPU, torch elsewhere."""
        return "jax" if isinstance(self.device, Tpu) else "torch"


def _device(entry: dict[str, Any]) -> Device:
    match entry["kind"]:
        case "cpu":
            return Cpu()
        case "gpu":
            return Gpu(entry["chip"], entry["count"], entry["accelerator_type"])
        case "tpu":
            return Tpu(entry["chip"], entry["topology"], entry["accelerator_type"], entry["chips_per_host"])
        case kind:
            raise AssertionError(f"catalogue.yaml: unknown kind {kind!r}")


@cache
def slices() -> dict[str, Slice]:
    """All slices of the catalogue by name."""
    entries = yaml.safe_load((files("crossmesh.hardware") / "catalogue.yaml").read_text(encoding="utf-8"))
    found = {}
    for name, entry in entries.items():
        price = entry.get("price")
        found[name] = Slice(name, _device(entry), Price(price["usd_per_hour"], price["source"], str(price["date"])) if price else None)
    return found


def find_slice(name: str) -> Slice:
    """Return the slice called `name`; `InputError` names the nearest when there is none."""
    require_choice("hardware.name", name, slices())
    return slices()[name]
