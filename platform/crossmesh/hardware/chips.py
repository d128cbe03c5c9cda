"""A chip's figures and what a slice of them costs: frozen values, and the ratios that make offers comparable. Reads no file."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

PRICE_KINDS = ("on_demand", "spot", "flex_start", "committed_1y", "committed_3y")
"""Ways in which slices are sold, and kinds of prices."""
TOPOLOGIES = ("torus2d", "torus3d", "switch", "mesh", "pcie")
"""How the chips of a slice are joined: by links to neighbours, all to all through a switch or directly, or over the host's bus."""
_GIB = 1 << 30


@dataclass(frozen=True)
class Link:
    """The interconnect of one chip."""

    bytes_per_s: float
    """One link, one direction."""
    links: int
    topology: str


@dataclass(frozen=True)
class Chip:
    """The published figures of one chip."""

    name: str
    bfloat16: float
    """Peak FLOP/s with dense bfloat16 factors."""
    fp8: float | None
    int8: float | None
    float32: float | None
    """Peak FLOP/s in true float32; None where it is not published."""
    hbm_bytes: float
    hbm_bytes_per_s: float
    link: Link
    network_bytes_per_s: float | None
    """A chip's share of its host's network, one direction; None where it is not known."""
    sources: tuple[str, ...]

    def peak(self, dtype: str) -> float | None:
        """Peak FLOP/s of products with factors of `dtype`; None where the chip has no such figure."""
        figures = {"bfloat16": self.bfloat16, "float16": self.bfloat16, "fp8": self.fp8, "int8": self.int8, "float32": self.float32}
        return figures[dtype]


class AgeWarning(str):
    """What is said of a price's age, told from other warnings by its type: of many prices one line is said in place of each."""

    __slots__ = ()


@dataclass(frozen=True)
class Price:
    """A price: USD per hour for the whole slice, where it was read and when."""

    usd_per_hour: float
    kind: str
    """One of `PRICE_KINDS`."""
    region: str
    """Empty where the source does not say."""
    source: str
    read: date | None
    """When; None where the source's date is not known."""
    unsold: str = ""
    """Why nothing is rented at this price, and what is sold instead; empty where nothing is known against it."""

    def age_days(self, today: date) -> int | None:
        """Days since it was read."""
        return (today - self.read).days if self.read else None

    def warning(self, today: date, max_age_days: int) -> AgeWarning:
        """What to say of its age; empty when it is fresh."""
        what = f"The price of {self.usd_per_hour:g} USD/h ({self.source})"
        age = self.age_days(today)
        if age is None:
            return AgeWarning(f"{what} is of unknown age. Look it up, or give your own in hardware.catalogue.")
        if age > max_age_days:
            return AgeWarning(
                f"{what} is {age} days old, more than plan.price_max_age_days={max_age_days}. "
                "Look it up, or give your own in hardware.catalogue."
            )
        return AgeWarning()


@dataclass(frozen=True)
class Offer:
    """How one seller sells a slice."""

    seller: str
    product: str
    """The seller's name of the machine or slice."""
    ways: tuple[str, ...]
    """Of `PRICE_KINDS`."""
    source: str
    read: date | None
    """When; None where the source's date is not known."""

    def __str__(self) -> str:
        """What can be rented, in words."""
        return f"{self.seller} sells {self.product} as {' or '.join(self.ways)}"


def unsold(kind: str, seller: str, offers: Sequence[Offer]) -> str:
    """Why nothing is sold at a price of `kind` by `seller`; empty where it is, or where it is not known how that seller sells."""
    asked = next((offer for offer in offers if offer.seller == seller), None)
    if asked is None or kind in asked.ways:
        return ""
    said = "; ".join(str(offer) for offer in (asked, *(offer for offer in offers if offer is not asked)))
    when = asked.read.isoformat() if asked.read else "no date"
    return f"Nothing is sold at this {kind} price: {said} ({asked.source}, {when}). Choose another plan.price or plan.region."


@dataclass(frozen=True)
class UnitPrices:
    """What a slice costs per hour and unit of what it has."""

    usd_per_tflop_hour: float
    """Per 10^12 peak bfloat16 FLOP/s."""
    usd_per_tbps_hour: float
    """Per 10^12 bytes/s of memory bandwidth."""
    usd_per_gib_hour: float
    """Per GiB of memory."""


def unit_prices(chip: Chip, chips: int, price: Price) -> UnitPrices:
    """Divide `price` by what `chips` of `chip` have together."""
    return UnitPrices(
        price.usd_per_hour / (chips * chip.bfloat16 / 1e12),
        price.usd_per_hour / (chips * chip.hbm_bytes_per_s / 1e12),
        price.usd_per_hour / (chips * chip.hbm_bytes / _GIB),
    )
