"""One start of a JAX run, to its first step: how long from the process's beginning, and how many programs XLA compiled.

A request for a program is answered by the persistent cache or by the compiler; what the cache did not answer was compiled.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax

from crossmesh.train import jax_backend  # noqa: F401 - imported here, so that `imports_s` has all of it.
from crossmesh.verify.measure import Progress
from crossmesh.verify.peers.work import packed_work, ready_backend
from crossmesh.verify.process import Request, answer_measurement

_REQUESTS = "/jax/compilation_cache/compile_requests_use_cache"
_HITS = "/jax/compilation_cache/cache_hits"
_PHASES = {
    "tracing_s": "/jax/core/compile/jaxpr_trace_duration",
    "lowering_s": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compiling_or_fetching_s": "/jax/core/compile/backend_compile_duration",
}
"""Phases of the largest program by JAX's own clocks."""


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Initialise the backend and take the first step; `started` is when the process was, by the wall clock."""
    imported = time.time()
    events: Counter[str] = Counter()
    longest: dict[str, float] = {}
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: longest.update({event: max(seconds, longest.get(event, 0.0))})
    )
    folder = Path(request["folder"])
    spec, batches = packed_work("jax", folder, request["limit"], 2)
    backend = ready_backend(spec, folder, Path(request["cache"]))
    ready = time.time()
    progress("start", 1, 2)
    loss = backend.step(batches[0]).loss
    progress("start", 2, 2)
    return {
        "first_step_s": time.time() - request["started"],
        "imports_s": imported - request["started"],
        "loading_s": ready - imported,
        **{name: longest.get(event, 0.0) for name, event in _PHASES.items()},
        "programs": events[_REQUESTS],
        "compilations": events[_REQUESTS] - events[_HITS],
        "loss": loss,
    }


if __name__ == "__main__":
    answer_measurement(main)
