"""What hardware costs an hour, with the basis of the price in words; reads the catalogue."""

from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.report.variants import Rent


def rent(hardware: str, kind: str, region: str, catalogue: str, slices: int = 1) -> Rent:
    """Return what `slices` of the slice called `hardware` cost, or why that is not known.

    Args:
        hardware: name of a slice.
        kind: `on_demand`, `spot`, ...
        region: empty: the catalogue's first price of the kind.
        catalogue: a file with own slices and prices; empty: ours.
        slices: how many are rented together.
    """
    try:
        price = find_slice(hardware, catalogue).price(kind, region)
    except InputError as error:
        return Rent(None, why=f"no price of {hardware}: {error}")
    if price is None:
        return Rent(
            None,
            why=f"the catalogue has no {kind} price of {hardware}; give yours in hardware.catalogue=FILE (docs/plan.md, Your own prices)",
        )
    where = f" in {price.region}" if price.region else ""
    read = f"read {price.read.isoformat()}" if price.read else "of unknown date"
    unsold = f". {price.unsold}" if price.unsold else ""
    return Rent(slices * price.usd_per_hour, f"{kind}{where}: {price.source}, {read}{unsold}")
