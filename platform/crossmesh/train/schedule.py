"""The learning rate of every step: one pure function that both backends call.

Linear warm-up, then half a cosine down to `optim.final_fraction` of the peak.
"""

import math

from crossmesh.config.training import OptimSpec


def learning_rate(step: int, optim: OptimSpec) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    `peak * (step + 1) / warmup` while `step < warmup`: the first step already moves and the last warm-up step is at the peak. Then
    `final + (peak - final) * (1 + cos(pi * t)) / 2` with t going from 0 at the first step after warm-up to 1 at the last step, so
    that the last step is at `final_fraction` of the peak exactly. A run with a single step after warm-up takes it at the peak.
    """
    if not 0 <= step < optim.steps:
        raise ValueError(f"step {step} is outside a run of {optim.steps} steps")
    peak = optim.learning_rate
    if step < optim.warmup:
        return peak * (step + 1) / optim.warmup
    intervals = optim.steps - 1 - optim.warmup
    if intervals == 0:
        return peak
    final = optim.final_fraction * peak
    progress = (step - optim.warmup) / intervals
    return final + (peak - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
