"""How many chips a training and a server hold: one rule for all jobs."""

from contextlib import ExitStack, nullcontext

import pytest

from crossmesh.cluster import session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import HardwareSpec, MeshSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.pipeline import evaluation_job, serving
from crossmesh.pipeline.benchmark_subject import own_server


@pytest.mark.parametrize(
    ("hardware", "serve", "chips"),
    [
        ("gpu_8xh100", ServeSpec(tp=2), 2),
        ("gpu_8xh100", ServeSpec(tp=2, pp=2), 4),
        ("gpu_8xh100", ServeSpec(tp=2, replicas=3), 6),
        ("gpu_8xh100", ServeSpec(tp=2, replicas=0, max_replicas=2), 2),
        ("tpu_v5p_8", ServeSpec(tp=4), 4),
        ("tpu_v5p_8", ServeSpec(tp=2), 4),
        ("tpu_v5p_16", ServeSpec(tp=8, replicas=2), 16),
    ],
)
def test_a_server_holds_the_chips_of_all_its_engines(hardware: str, serve: ServeSpec, chips: int) -> None:
    assert ExperimentSpec(hardware=HardwareSpec(hardware), serve=serve).serving_chips == chips


def test_a_training_holds_all_slices() -> None:
    assert ExperimentSpec(hardware=HardwareSpec("gpu_2xh100"), mesh=MeshSpec(dcn=2)).training_chips == 4


@pytest.mark.parametrize("job", ["evaluate", "serve", "benchmark"])
def test_every_job_that_serves_asks_for_the_same(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation asked for `serve.tp` alone, and waited without end for the rest."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "visible_chips", lambda _: 3)
    monkeypatch.setattr(evaluation_job, "ray_session", lambda _: nullcontext())
    monkeypatch.setattr("crossmesh.pipeline.benchmark_subject.ray_session", lambda _: nullcontext())
    monkeypatch.setattr(evaluation_job, "gate_serving", lambda *_: None)
    monkeypatch.setattr(serving, "check_port", lambda _: None)  # It asks the Ray that a job has by then.
    spec = ExperimentSpec(hardware=HardwareSpec("gpu_8xh100"), serve=ServeSpec(tp=2, replicas=2))
    jobs = {
        "evaluate": lambda: evaluation_job._on_own_server(spec, None, Console(), force=False),
        "serve": lambda: serving.serve_until_interrupted(spec, Console(), "table"),
        "benchmark": lambda: own_server(spec, Console(), ExitStack()),
    }
    with pytest.raises(InputError, match=r"GPU chips asked for: 4 .*this machine has 3"):
        jobs[job]()
