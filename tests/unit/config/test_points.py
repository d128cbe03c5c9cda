"""Points of a sweep are composed once, and each is what Hydra composes of it alone, also where it is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.config.points import PointComposer, SweptJobs
from crossmesh.errors import InputError

CONF = Path(__file__).resolve().parents[3] / "conf"


@dataclass(frozen=True)
class Keys(JobKeys):
    """Keys of the job `status`, whose file the tests compose."""

    sizes: tuple[int, ...] = ()
    by_name: dict[str, int] = field(default_factory=dict)


class Loader:
    """Hydra's loader, counted."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.loaded = loader, 0

    def load_sweep_config(self, config: Any, overrides: list[str]) -> Any:
        self.loaded += 1
        return self.loader.load_sweep_config(config, overrides)


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`composed(arguments)` runs a job with them and `-m`, and gives its composer, its loader and its points."""
    GlobalHydra.instance().clear()

    def compose(*arguments: str) -> tuple[PointComposer[Keys], Loader, SweptJobs[Keys]]:
        found: list[Any] = []
        monkeypatch.setattr("sys.argv", ["jobs/status.py", "-m", *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        made = PointComposer.__init__

        def counted(self: Any, loader: Any, *rest: Any) -> None:
            found.extend([self, Loader(loader)])
            made(self, found[-1], *rest)

        monkeypatch.setattr(PointComposer, "__init__", counted)
        points: list[SweptJobs[Keys]] = []
        run_job("status", Keys, lambda _: None, CONF, points.append, try_storage=False)
        return found[0], found[1], points[0]

    yield compose
    GlobalHydra.instance().clear()


def outcome(job: Job[Keys] | InputError) -> Any:
    return str(job) if isinstance(job, InputError) else job


@pytest.mark.parametrize(
    ("arguments", "compositions"),
    [
        (("batch.size=8,16,32", "batch.micro=1,2,3"), 1),
        (("experiment=demo", "optim.steps=range(5,9)", "lora.rank=4,8", "name=a,b"), 1),
        (("backend=jax,torch", "optim.learning_rate=1e-3,1,0.5"), 2),
        (("hardware=tpu_v5p_8,gpu_2xh100", "mesh.fsdp=2,4", "mesh.tp=1,2"), 2),
        (("lora.targets=[q_proj],[q_proj,v_proj]", "sizes=[1,2],[3]", "output=json"), 1),
        (("eval.max_tokens=null,8", "data.source='a b,c','x'"), 1),
        (("+lora.rank_pattern.q_proj=4,8", "lora.rank=2,4"), 2),
        (("lora.rank_pattern={q_proj:4},{q_proj:8}", "lora.rank=2,4"), 2),
        (("serve.max_model_len=${data.max_length}", "data.max_length=128,256"), 3),
        (("hydra/launcher=ray", "tracking.system_metrics=true,false,yes"), 1),
    ],
)
def test_each_point_is_what_hydra_composes_of_it_alone(arguments: tuple[str, ...], compositions: int, composed: Any) -> None:
    composer, loader, points = composed(*arguments)
    found = list(points)
    assert len(found) == len(points) > 1
    assert loader.loaded <= compositions
    assert [outcome(point.job) for point in found] == [outcome(composer._alone(point.overrides)) for point in found]
    assert points.launcher == ("ray" if "hydra/launcher=ray" in arguments else "basic")


def test_what_cannot_be_is_said_in_the_words_of_a_single_job(composed: Any) -> None:
    _, loader, points = composed("batch.size=8", "batch.micro=1,3", "optim.steps=2,-1")
    said = [outcome(point.job) for point in points]
    assert isinstance(said[0], Job)
    assert said[1].startswith("optim.steps=-1")
    assert "Allowed: batch.micro one of [1, 2, 4, 8]" in said[2]
    assert loader.loaded == 1


def test_a_wrong_type_ends_the_sweep_as_it_ends_a_job(composed: Any) -> None:
    _, _, points = composed("batch.size=8,many")
    with pytest.raises(HydraException, match="many"):
        list(points)
