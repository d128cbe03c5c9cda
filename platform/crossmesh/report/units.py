"""How figures are written for people, in tables and pages alike."""


def time_text(seconds: float | None) -> str:
    """Three digits, in seconds or milliseconds; empty where there is no time."""
    if seconds is None:
        return ""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"


def number_text(value: float) -> str:
    """A whole number with its thousands apart, or three digits below a hundred."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
