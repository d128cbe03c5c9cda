"""How long collectives take over a slice's interconnect: rings over links, and the network between slices."""

from crossmesh.hardware.chips import Chip


def ring_bytes_per_s(chip: Chip, chips: int) -> float:
    """Bytes per second that each chip of a ring of `chips` sends.

    On a torus a ring runs both ways at once where it has more than two chips: two links, one direction each (jax-ml/scaling-book,
    sharding). Through a switch a chip has all of its links to any other; directly joined chips have one link to each.
    """
    link = chip.link
    if link.topology.startswith("torus"):
        return link.bytes_per_s * (1 if chips == 2 else 2)
    if link.topology == "mesh":
        return link.bytes_per_s * min(link.links, chips - 1)
    return link.bytes_per_s * link.links


def all_gather_s(chip: Chip, chips: int, whole: float) -> float:
    """Seconds until each of `chips` has all of an array of `whole` bytes that they held in parts; also those of a reduce-scatter."""
    return 0.0 if chips == 1 else whole * (chips - 1) / chips / ring_bytes_per_s(chip, chips)


def all_reduce_s(chip: Chip, chips: int, size: float) -> float:
    """Seconds until each of `chips` has the sum of their arrays of `size` bytes: a reduce-scatter and an all-gather."""
    return 2 * all_gather_s(chip, chips, size)


def network_all_reduce_s(chip: Chip, slices: int, size: float) -> float:
    """Seconds of an all-reduce of `size` bytes a chip between slices; infinite where the network is not known."""
    if slices == 1:
        return 0.0
    if chip.network_bytes_per_s is None:
        return float("inf")
    return 2 * size * (slices - 1) / slices / chip.network_bytes_per_s
