"""pass@k with intervals: arithmetic on counts of right answers, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000


@dataclass(frozen=True)
class PassAtK:
    """An estimate of pass@k over the problems of a split."""

    k: int
    value: float
    low: float
    high: float
    """`low` to `high` is the confidence interval at `level`."""
    level: float
    method: str
    """`wilson` or `bootstrap over problems`."""
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `c` right answers among `n`: 1 - C(n-c, k) / C(n, k).

    Computed as a product, so that no binomial overflows (Chen et al. 2021, arXiv:2107.03374, section 2.1).

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k of n={n}, c={c}, k={k} is not defined: 0 <= c <= n and 1 <= k <= n.")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def estimate(counts: Sequence[tuple[int, int]], k: int, seed: int = 0, level: float = 0.95) -> PassAtK:
    """Return mean pass@k over problems, given each problem's (answers, right answers), with a confidence interval.

    One answer per problem makes a binomial proportion: Wilson's interval. Otherwise answers of one problem hang together, and
    problems are resampled (percentile bootstrap, seeded). Where all problems score alike at 0 or 1 a bootstrap would claim
    certainty; Wilson's interval over problems is given instead.

    Raises:
        ValueError: there are no problems, or `pass_at_k` is not defined for one.
    """
    if not counts:
        raise ValueError("pass@k needs at least one problem.")
    scores = np.array([pass_at_k(n, c, k) for n, c in counts])
    mean = float(scores.mean())
    if all(n == 1 for n, _ in counts) or bool(np.all(scores == scores[0]) and scores[0] in (0.0, 1.0)):
        low, high = wilson(round(float(scores.sum())), len(scores), level)
        return PassAtK(k, mean, low, high, level, "wilson", len(scores))
    generator = np.random.Generator(np.random.PCG64(seed))
    means = scores[generator.integers(len(scores), size=(_RESAMPLES, len(scores)))].mean(axis=1)
    low, high = (float(bound) for bound in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return PassAtK(k, mean, low, high, level, "bootstrap over problems", len(scores))


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion."""
    # Imported here because it takes seconds (pandas, scipy) and only a finished evaluation needs it.
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, trials, alpha=1 - level, method="wilson")
    # At the ends rounding leaves 1e-17 where the formula gives 0 and 1.
    return (float(low) if successes else 0.0), (float(high) if successes < trials else 1.0)
