"""Measures what the torch backend's step really allocates, by torch's own record of its CPU allocator.

`python torch_memory.py JOB.json RANK` is one rank of several. It sees every allocation, also those that kernels make for themselves.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from crossmesh.plan.compilers.trace_gpu import batch_of, setup_of
from crossmesh.train import model_torch
from crossmesh.train.torch_backend import TorchBackend

_STEP = "the step that is measured"


def measured_peak(question: dict[str, Any], folder: Path) -> int:
    """Bytes that torch held at the peak of a second step of `question` (`trace_gpu.trace`), with the weights of `folder`."""
    setup, batch = setup_of(question, folder), batch_of(question)
    model_torch.loss_rows = lambda on_cpu: 1024  # As on a GPU, which is what a trace is of.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        backend = TorchBackend()
        backend.init(setup)
        backend.step(batch)
        with record_function(_STEP):
            backend.step(batch)
    events = recorded.profiler.kineto_results.events()
    step = next(event for event in events if event.name() == _STEP)
    held = peak = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        held += event.nbytes()
        if step.start_ns() <= event.start_ns() <= step.end_ns():
            peak = max(peak, held)
    return peak


def main(job: Path, rank: int) -> None:
    """Be one rank of the job's question."""
    torch.set_num_threads(1)
    told = json.loads(job.read_text())
    world = 1
    for size in told["question"]["mesh"].values():
        world *= size
    dist.init_process_group("gloo", init_method=f"file://{job}.group", rank=rank, world_size=world)
    peak = measured_peak(told["question"], Path(told["folder"]))
    if rank == 0:
        job.with_suffix(".peak").write_text(str(peak))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
