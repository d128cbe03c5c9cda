"""Lengths of a dataset under a model's template, and how packing fills: `python jobs/lengths.py data=codev_r1 model=gemma4_31b`."""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.interpreter import require_packages

require_packages()

from crossmesh.cluster import ray_session
from crossmesh.console import Console
from crossmesh.data.packing import efficiencies
from crossmesh.data.served import dropped_text
from crossmesh.spec.compose import Job, JobKeys, run_job
from crossmesh.sweep.trial import fetch, read_data


@dataclass(frozen=True)
class LengthsKeys(JobKeys):
    """The job's own keys."""


def run(job: Job[LengthsKeys]) -> None:
    """Tokenize the rows and print mean, percentiles, the share that each limit keeps, and packing efficiency over the spec's steps."""
    spec, console = job.spec, Console()
    with ray_session(spec.storage), console.stage(f"data: {spec.data.source}"):
        data = read_data(spec, fetch(spec))
    lengths = data.lengths
    result = {
        "rows": lengths.count,
        "mean": lengths.mean,
        "shortest": lengths.shortest,
        "longest": lengths.longest,
        **{f"p{percentile:g}": length for percentile, length in lengths.percentiles},
        **{f"kept_at_{limit}": share for limit, share in lengths.kept},
        "max_length": spec.data.max_length,
        "dropped_long": data.dropped_long,
        "dropped_empty": data.dropped_empty,
        **({"dropped": dropped_text(data)} if data.dropped else {}),
        "packing": spec.packing.mode,
        "sequence_length": spec.sequence_length,
        **{f"efficiency_{mode}": share for mode, share in efficiencies([len(row.tokens) for row in data.rows], spec).items()},
    }
    console.result(f"lengths in tokens: {spec.data.source}", result, job.keys.output)


if __name__ == "__main__":
    run_job("lengths", LengthsKeys, run, Path(__file__).resolve().parents[1] / "conf")
