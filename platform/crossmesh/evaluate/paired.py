"""Two models on the same problems: the difference, its interval, its p-value, and what it would take to show it. Arithmetic on counts.

Whether the two were examined alike is not seen here; a difference between models that were not is not a difference of the models.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from crossmesh.evaluate.passk import pass_at_k

MCNEMAR, BOOTSTRAP = "exact McNemar", "paired bootstrap"
LEVEL = 0.95
TARGET_POWER = 0.8
_RESAMPLES = 10_000
_Z_LEVEL = NormalDist().inv_cdf((1 + LEVEL) / 2)
_Z_POWER = NormalDist().inv_cdf(TARGET_POWER)

Counts = Mapping[str, tuple[int, int]]
"""(answers, right answers) by problem."""


@dataclass(frozen=True)
class Paired:
    """How one model did against another on the problems that both answered."""

    k: int
    problems: int
    one: float
    """pass@k of the one."""
    other: float
    difference: float
    """`one` minus `other`, -1 to 1."""
    low: float
    high: float
    """Interval of the difference at `LEVEL`: problems are resampled with both models' answers (percentiles of the paired bootstrap)."""
    p_value: float
    """Of no difference, two-sided."""
    test: str
    """`exact McNemar` where every problem is either solved or not (k is the number of answers), else `paired bootstrap`."""
    better: int
    """Problems on which the one scores higher."""
    worse: int
    effect: float | None
    """Mean difference over its standard deviation across problems (Cohen's d_z; 0.2 is called small, 0.5 medium, 0.8 large); None where all
    problems differ alike."""
    power: float
    """Chance that so many problems show a difference of this size at all (two-sided, 5%)."""
    detectable: float
    """The smallest difference that so many problems show with a chance of 80%."""
    problems_needed: int | None
    """Problems that show this difference with that chance; None where there is none."""
    samples_needed: int | None
    """Answers to each of these same problems that would; None where no number is enough, or one answer each leaves it open."""

    @property
    def shown(self) -> bool:
        """Whether the difference is more than chance: the p-value is below 5%."""
        return self.p_value < 1 - LEVEL


def compare_counts(one: Counts, other: Counts, k: int = 1, seed: int = 0) -> Paired:
    """Compare two models' answers to the same problems by pass@k.

    Power and the numbers needed are those of a normal approximation to the mean of paired differences; where problems are solved or not it
    is Connor's for McNemar's test (1987, doi:10.2307/2531961).

    Raises:
        ValueError: the problems are not the same, or there are none, or one has fewer than `k` answers.
    """
    if one.keys() != other.keys() or not one:
        raise ValueError(
            f"A paired comparison needs the same problems: {len(one)} and {len(other)}, {len(one.keys() & other.keys())} common."
        )
    names = sorted(one)
    mine, theirs = (np.array([pass_at_k(*counts[name], k) for name in names]) for counts in (one, other))
    differences = mine - theirs
    number, difference = len(names), float(differences.mean())
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    spread = float(differences.std(ddof=1)) if number > 1 else 0.0
    low, high, p_bootstrap = _bootstrap(differences, seed)
    if not spread:
        low, high = _without_spread(better, worse, number)
    solved_or_not = bool(np.isin(np.concatenate([mine, theirs]), (0.0, 1.0)).all())
    error = spread / math.sqrt(number)
    samples = {counts[name][0] for counts in (one, other) for name in names}
    return Paired(
        k=k,
        problems=number,
        one=float(mine.mean()),
        other=float(theirs.mean()),
        difference=difference,
        low=low,
        high=high,
        p_value=mcnemar_p(better, worse) if solved_or_not else p_bootstrap,
        test=MCNEMAR if solved_or_not else BOOTSTRAP,
        better=better,
        worse=worse,
        effect=difference / spread if spread else None,
        power=_power(difference, error),
        detectable=(_Z_LEVEL + _Z_POWER) * error,
        problems_needed=math.ceil(((_Z_LEVEL + _Z_POWER) * spread / difference) ** 2) or 1 if difference else None,
        samples_needed=_samples_needed(one, other, difference, spread) if k == 1 and len(samples) == 1 and min(samples) > 1 else None,
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's corrected p-values: as many tests as these were made, and the best of them was picked."""
    if len(p_values) < 2:
        return tuple(p_values)
    # Imported here for the same reason as in `mcnemar_p`.
    from statsmodels.stats.multitest import multipletests

    return tuple(float(one) for one in multipletests(p_values, method="holm")[1])


def mcnemar_p(better: int, worse: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: a fair coin, thrown for each problem that only one of the two solves."""
    # Imported here because it takes seconds (pandas, scipy) and only a finished evaluation needs it.
    from statsmodels.stats.contingency_tables import mcnemar

    return float(mcnemar([[0, better], [worse, 0]], exact=True).pvalue) if better + worse else 1.0


def _bootstrap(differences: npt.NDArray[np.float64], seed: int) -> tuple[float, float, float]:
    """Return interval and two-sided p-value from resampled problems; the p-value is below 5% where the interval leaves zero out."""
    generator = np.random.Generator(np.random.PCG64(seed))
    means = differences[generator.integers(len(differences), size=(_RESAMPLES, len(differences)))].mean(axis=1)
    low, high = (float(bound) for bound in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    # One more in each tail: no finite number of resamples shows a chance of zero.
    tail = (1 + min(int((means <= 0).sum()), int((means >= 0).sum()))) / (1 + _RESAMPLES)
    return low, high, min(1.0, 2 * tail)


def _without_spread(better: int, worse: int, number: int) -> tuple[float, float]:
    """Return an interval where all problems differ alike and a bootstrap would claim certainty.

    Bonett and Price 2012, Journal of Educational and Behavioral Statistics 37(4): a problem of each kind is added.
    """
    up, down = (better + 1) / (number + 2), (worse + 1) / (number + 2)
    margin = _Z_LEVEL * math.sqrt((up + down - (up - down) ** 2) / (number + 2))
    return max(-1.0, up - down - margin), min(1.0, up - down + margin)


def _power(difference: float, error: float) -> float:
    if not error:
        return 1.0 if difference else 1 - LEVEL
    normal, distance = NormalDist(), abs(difference) / error
    return normal.cdf(distance - _Z_LEVEL) + normal.cdf(-distance - _Z_LEVEL)


def _samples_needed(one: Counts, other: Counts, difference: float, spread: float) -> int | None:
    """Return answers per problem at which the error over these problems is small enough.

    The variance of a problem's difference has a part that more answers average out, estimated from the answers, and one that they do not.
    """
    each = next(iter(one.values()))[0]
    within = sum(right / n * (1 - right / n) * n / (n - 1) for counts in (one, other) for n, right in counts.values()) / len(one)
    between = max(0.0, spread**2 - within / each)
    room = len(one) * (difference / (_Z_LEVEL + _Z_POWER)) ** 2 - between
    return max(1, math.ceil(within / room)) if room > 0 else None
