"""Every job answers --help and --cfg, ends bad input with exit code 2 and one message, and imports no framework."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from crossmesh.command.verbs import verbs

pytestmark = pytest.mark.integration

JOBS = sorted((Path(__file__).resolve().parents[2] / "jobs").glob("*.py"))
SLOW = {"benchmark", "evaluate", "finetune", "lengths", "pipeline", "serve", "tune", "verify"}
"""Jobs whose imports take seconds, which come after the command line is known to be good."""
FRAMEWORKS = {"jax", "torch", "vllm", "transformers", "tensorflow", "flax"}

# One interpreter runs all jobs: starting one costs more than what is tested.
RUN_ALL = """
import contextlib, io, json, runpy, sys
from hydra.core.global_hydra import GlobalHydra

def call(path, *arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = [path, *arguments]
    GlobalHydra.instance().clear()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}

answers, slow = {}, []
for path in sys.argv[1:]:
    answers[path] = {
        "screen": call(path, "--help"),
        "help": call(path, "--help-all"),
        "cfg": call(path, "--cfg", "job"),
        "experiment": call(path, "experiment=gemma4_31b_codev_v5p8_tp4", "--cfg", "job"),
        "typo": call(path, "batch.micr=3"),
        "output": call(path, "output=yaml"),
        "group": call(path, "model=null"),
        "relative": call(path, "storage.root=not/absolute"),
        "unwritable": call(path, "storage.root=/proc/no-folder"),
    }
    slow = slow if "ray" in sys.modules else [*slow, path]
answers["before_ray"] = slow
answers["modules"] = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(clean_environment):
    jobs = sorted(JOBS, key=lambda job: job.stem not in SLOW)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *map(str, jobs)], capture_output=True, text=True, env=clean_environment, timeout=300, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_help_fits_a_screen_and_describes_every_key_that_it_shows(job, answers):
    shown = answers[str(job)]["screen"]
    assert shown["code"] == 0
    lines = shown["out"].splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"crossmesh {job.stem}: ")
    assert "  storage.root= " in shown["out"]
    assert "--help-all" in lines[-1]
    keys = lines[lines.index("Keys of this job:") + 1 : lines.index("Groups:")]
    assert [line for line in keys if line.startswith("  ") and not line[28:].strip()] == []


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_help_all_names_the_job_its_groups_and_its_keys(job, answers):
    shown = answers[str(job)]["help"]
    assert shown["code"] == 0
    assert f"crossmesh: {job.stem}" in shown["out"]
    models = sorted(file.stem for file in (job.parents[1] / "conf" / "model").glob("*.yaml"))
    assert f"model: {', '.join(models)}" in shown["out"]
    assert "learning_rate: 0.001" in shown["out"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_cfg_prints_what_would_run(job, answers):
    shown = answers[str(job)]["cfg"]
    assert shown["code"] == 0
    assert "family: llama" in shown["out"]
    assert "output: table" in shown["out"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_experiment_that_is_named_is_what_runs(job, answers):
    shown = answers[str(job)]["experiment"]
    assert shown["code"] == 0
    for part in ("name: gemma4_31b_codev_v5p8_tp4", "family: gemma4", "rank: 64", "steps: 1250", "name: tpu_v5p_8"):
        assert part in shown["out"], part


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_typo_exits_2_with_one_line_that_names_the_right_key(job, answers):
    shown = answers[str(job)]["typo"]
    assert shown["code"] == 2
    assert shown["err"].count("\n") == 1
    assert "batch.micr=3" in shown["err"]
    assert "Did you mean batch.micro?" in shown["err"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_the_jobs_own_keys_are_checked(job, answers):
    shown = answers[str(job)]["output"]
    assert shown["code"] == 2
    assert "output='yaml'" in shown["err"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("group", ["model=null", "smollm2_135m"]),
        ("relative", ["storage.root='not/absolute'", "an absolute path"]),
        ("unwritable", ["storage.root='/proc/no-folder'", "CROSSMESH_STORAGE"]),
    ],
)
def test_what_hydra_would_stumble_over_is_one_line_and_leaves_nothing(job, given, named, answers):
    shown = answers[str(job)][given]
    assert shown["code"] == 2
    assert shown["err"].count("\n") == 1
    for part in named:
        assert part in shown["err"]
    assert not Path("not").exists()


def test_jobs_import_no_framework(answers):
    assert not FRAMEWORKS & set(answers["modules"])


def test_a_mistake_costs_no_import_of_ray(answers):
    assert {Path(job).stem for job in answers["before_ray"]} >= SLOW


def test_a_job_of_the_checkout_is_a_verb_and_has_its_config(conf):
    assert {job.stem for job in JOBS} == set(verbs()) == {file.stem for file in (conf / "job").glob("*.yaml")}
    assert {len(job.read_text().splitlines()) for job in JOBS} == {11}
    assert {
        verb: lines for verb in verbs() if (lines := len(inspect.getsource(import_module(f"crossmesh.jobs.{verb}")).splitlines())) > 85
    } == {}
