"""One quantity of all variants, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crossmesh.evaluate.estimates import Estimate
from crossmesh.metrics import FINAL_LOSS
from crossmesh.report.tables.cells import TableCell

TRAINING, EVALUATION, SERVED, COST = "training", "evaluation", "serving", "cost"
LOSS = FINAL_LOSS.name
"""Key of the loss, whose differences are nats."""
NOT_TRAINED, NOT_EVALUATED = "not trained", "not evaluated"


@dataclass(frozen=True)
class Quantity:
    """One quantity of all variants."""

    key: str
    section: str
    label: str
    unit: str
    how: str
    """How it was measured."""
    better: str
    """`HIGHER`, `LOWER` or `NEITHER`."""
    aspect: str
    """Of the gate: `quality`, `speed`, `cost` or `serving`."""
    cells: Mapping[str, TableCell]
    """By variant, for every variant."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Of the variants that have a number that may be compared."""
    split: str = ""
    """Of an evaluation."""
    load: str = ""
    """Of a benchmark."""
    share: bool = False
    """A share of 0 to 1, shown in percent, whose differences are percentage points."""
