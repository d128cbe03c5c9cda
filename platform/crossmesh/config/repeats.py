"""How often the first steps of a training may be repeated to decide which trains faster."""

from crossmesh.errors import require


def check_repeats(key: str, count: int, key_steps: str, steps: int) -> None:
    """Raise `InputError` for numbers that cannot be."""
    require(count == 0 or count >= 3, key, count, "0, or 3 and more: fewer decide nothing")
    require(steps >= 3, key_steps, steps, "3 or more: the first compiles")
