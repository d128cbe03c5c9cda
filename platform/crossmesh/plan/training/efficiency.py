"""How much of its peak a chip is expected to reach in each phase: the stated assumptions of the model, in one place.

They are no measurements of ours. Where a published or measured figure exists for a whole step, the plan shows the ratio beside them
(`calibration` of the paper's report); a factor is not bent to fit one run.
"""

from dataclasses import dataclass

from crossmesh.hardware.devices import Device, Tpu


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peak."""

    matmul: float
    """Products of matrices: a large dense model trains at 55 to 70% of peak on either kind of chip."""
    fused_attention: float
    """Kernels that never store the scores (splash, flex, flash), against the pairs that they compute."""
    plain_attention: float
    """Products of an attention that stores its scores."""
    bandwidth: float
    """Memory."""
    link: float
    """Collectives within a slice, against the ring's bandwidth."""
    network: float
    """Collectives between slices."""
    fsdp_overlap: float
    """Part of the computation behind which gathering weights can hide."""
    latency_s: float
    """Of one collective, however small."""
    usable_hbm: float
    """Part of the memory that a program can have: the rest is the runtime's, and lost between allocations."""


_TPU = Efficiency(0.65, 0.40, 0.40, 0.80, 0.80, 0.60, 0.70, 5e-6, 0.97)
_GPU = Efficiency(0.60, 0.45, 0.40, 0.80, 0.75, 0.60, 0.70, 15e-6, 0.93)
IDEAL = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
"""No chip does better: what a physical lower bound is made with."""


def efficiency(device: Device) -> Efficiency:
    """The factors for a kind of device."""
    return _TPU if isinstance(device, Tpu) else _GPU
