"""The one catalogue of chips, slices and prices, read from `catalogue.yaml` and, where a user gives one, from a file of the same form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from crossmesh.errors import InputError, reading, require, require_choice
from crossmesh.hardware.chips import PRICE_KINDS, TOPOLOGIES, Chip, Link, Offer, Price, unsold
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu

_GIB = 1 << 30
_TERA, _GIGA = 1e12, 1e9
_SECTIONS = {"sources", "chips", "slices"}


@dataclass(frozen=True)
class Slice:
    """A named set of devices that is rented as one."""

    name: str
    device: Device
    chip: Chip | None
    """The figures of one of its chips; None for a CPU, which has none."""
    prices: tuple[Price, ...]
    """The preferred one of each kind first."""
    offers: tuple[Offer, ...] = ()
    """How it is sold, by seller; empty where that is not known."""

    @property
    def figures(self) -> Chip:
        """Those of its chip. Raises `InputError` where there are none."""
        if self.chip is None:
            raise InputError(f"hardware.name={self.name} has no figures in the catalogue. Plan for a slice of TPUs or GPUs.")
        return self.chip

    @property
    def default_backend(self) -> str:
        """The framework that is at home on this hardware: jax on TPU, torch elsewhere."""
        return "jax" if isinstance(self.device, Tpu) else "torch"

    def price(self, kind: str, region: str = "") -> Price | None:
        """The first price of `kind`, in `region` where one is given; None where there is none."""
        return next((price for price in self.prices if price.kind == kind and region in ("", price.region)), None)


def slices(own: str = "") -> dict[str, Slice]:
    """All slices by name; those of the file `own`, where it is given, beside or in place of ours."""
    found = _shipped()
    return {**found, **_own(own)} if own else found


def find_slice(name: str, own: str = "") -> Slice:
    """Return the slice called `name`; `InputError` names the nearest when there is none."""
    known = slices(own)
    require_choice("hardware.name", name, known)
    return known[name]


@cache
def _shipped() -> dict[str, Slice]:
    values = yaml.safe_load((files("crossmesh.hardware") / "catalogue.yaml").read_text(encoding="utf-8"))
    chips = {name: _chip(name, entry) for name, entry in values["chips"].items()}
    return {name: _slice(name, entry, chips) for name, entry in values["slices"].items()}


@cache
def _own(path: str) -> dict[str, Slice]:
    """The slices of a user's file, which may be made of our chips; a chip of its own takes the place of ours in its slices."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"hardware.catalogue={path!r} is not a file. Give a YAML file with `chips`, `slices` or both, or leave it empty.")
    with reading(file, "a catalogue: `chips` and `slices` as in crossmesh/hardware/catalogue.yaml"):
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        if unknown := sorted(set(values) - _SECTIONS):
            raise InputError(f"{path}: there is no section {unknown[0]!r}. Allowed: {', '.join(sorted(_SECTIONS))}.")
        shipped = {one.chip.name: one.chip for one in _shipped().values() if one.chip}
        chips = {**shipped, **{name: _chip(name, entry) for name, entry in (values.get("chips") or {}).items()}}
        return {name: _slice(name, entry, chips) for name, entry in (values.get("slices") or {}).items()}


def _chip(name: str, entry: Mapping[str, Any]) -> Chip:
    tflops, hbm, link = entry["tflops"], entry["hbm"], entry["link"]
    require_choice(f"catalogue, chip {name}: link.topology", link["topology"], TOPOLOGIES)
    peaks = {dtype: _TERA * tflops[dtype] if dtype in tflops else None for dtype in ("fp8", "int8", "float32")}
    network = entry.get("network_gbps")
    return Chip(
        name=name,
        bfloat16=_TERA * tflops["bfloat16"],
        fp8=peaks["fp8"],
        int8=peaks["int8"],
        float32=peaks["float32"],
        hbm_bytes=_GIB * hbm["gib"],
        hbm_bytes_per_s=_GIGA * hbm["gbps"],
        link=Link(_GIGA * link["gbps"], link["links"], link["topology"]),
        network_bytes_per_s=_GIGA * network if network else None,
        sources=tuple(entry["sources"]),
    )


def _slice(name: str, entry: Mapping[str, Any], chips: Mapping[str, Chip]) -> Slice:
    device = _device(name, entry)
    if not isinstance(device, Cpu):
        require_choice(f"catalogue, slice {name}: chip", device.chip, chips)
    offers = tuple(_offer(name, offer) for offer in entry.get("sold", ()))
    return Slice(
        name,
        device,
        None if isinstance(device, Cpu) else chips[device.chip],
        tuple(_price(name, price, offers) for price in entry.get("prices", ())),
        offers,
    )


def _device(name: str, entry: Mapping[str, Any]) -> Device:
    require_choice(f"catalogue, slice {name}: kind", entry["kind"], ("cpu", "gpu", "tpu"))
    match entry["kind"]:
        case "cpu":
            return Cpu()
        case "gpu":
            return Gpu(entry["chip"], entry["count"], entry["accelerator_type"])
        case _:
            return Tpu(entry["chip"], entry["topology"], entry["accelerator_type"], entry["chips_per_host"])


def _offer(name: str, entry: Mapping[str, Any]) -> Offer:
    for way in entry["ways"]:
        require_choice(f"catalogue, slice {name}: way of selling", way, PRICE_KINDS)
    return Offer(entry["seller"], entry["product"], tuple(entry["ways"]), entry["source"], _date(f"slice {name}: date of an offer", entry))


def _price(name: str, entry: Mapping[str, Any], offers: Sequence[Offer]) -> Price:
    require_choice(f"catalogue, slice {name}: price kind", entry["kind"], PRICE_KINDS)
    seller = entry.get("seller", offers[0].seller if offers else "")
    return Price(
        float(entry["usd_per_hour"]),
        entry["kind"],
        entry.get("region", ""),
        entry["source"],
        _date(f"slice {name}: price date", entry),
        unsold(entry["kind"], seller, offers),
    )


def _date(what: str, entry: Mapping[str, Any]) -> date | None:
    read = entry.get("date")
    require(read is None or isinstance(read, date), f"catalogue, {what}", read, "a date, 2026-05-01, or none")
    return read
