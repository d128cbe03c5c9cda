"""What logging costs a step: `PYTHONPATH=platform:tests/support python tests/benchmarks/tracking.py [seconds the server is killed for]`.

Ten metrics a step, steps of arithmetic of some 50 ms, to a server of its own over HTTP. Rounds with and without logging take turns, so
that both see the same machine. Then the server is killed in the middle of a round for the time given (default 30 s). Prints JSON: the share
of a step that the call takes, what a step takes with logging over without, and what MLflow has in the end.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
from mlflow_server import mlflow_server

METRICS = 10
ROUNDS = 6
STEPS_A_ROUND = 60


def main(away_s: float) -> None:
    matrix = np.ones((1_100, 1_100), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder, mlflow_server(Path(folder)) as server:
        said: list[str] = []
        tracker = MlflowTracker(TrackingSpec(server.uri), StorageSpec(folder), said.append)
        run = tracker.start("benchmark", "train")
        step, calls = 0, []

        def one(*, logging: bool) -> float:
            nonlocal step
            started = time.perf_counter()
            for _ in range(3):
                matrix @ matrix
            if logging:
                step += 1
                called = time.perf_counter()
                tracker.metrics(run, {f"metric_{index}": step / (index + 1) for index in range(METRICS)}, step)
                calls.append(time.perf_counter() - called)
            return time.perf_counter() - started

        rounds = [[one(logging=bool(turn % 2)) for _ in range(STEPS_A_ROUND)] for turn in range(2 * ROUNDS)]
        plain = [seconds for turn in rounds[::2] for seconds in turn]
        logged = [seconds for turn in rounds[1::2] for seconds in turn]
        share = sum(calls) / sum(logged)
        server.end()
        until = time.perf_counter() + away_s
        away, up_to = [], len(calls)
        while time.perf_counter() < until:
            away.append(one(logging=True))
        waited = calls[up_to:]
        server.start()
        server.wait()
        tracker.finish(run)
        there = [tracker.history(run, f"metric_{index}") for index in (0, METRICS - 1)]
        wanted = [tuple((number, number / (index + 1)) for number in range(1, step + 1)) for index in (0, METRICS - 1)]
        figures = {
            "metrics_a_step": METRICS,
            "step_ms": 1e3 * median(plain),
            "call_ms_median": 1e3 * median(calls[:up_to]),
            "call_share_of_step": share,
            "step_with_logging_over_without": median(logged) / median(plain),
            "away_s": away_s,
            "steps_while_away": len(away),
            "step_while_away_over_before": median(away) / median(logged),
            "call_ms_while_away_median": 1e3 * median(waited),
            "call_ms_while_away_longest": 1e3 * max(waited),
            "steps_logged": step,
            "lost_or_twice": sum(found != expected for found, expected in zip(there, wanted, strict=True)),
            "said": said,
        }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
