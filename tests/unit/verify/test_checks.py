"""Which checks there are, and how a job hears of one that there is not."""

import json
import subprocess
import sys

import pytest

from crossmesh.errors import InputError
from crossmesh.verify.checks import CHECKS, find_check


@pytest.mark.parametrize("name", CHECKS.names)
def test_every_check_is_the_function_of_its_name(name):
    assert find_check(name).__name__ == f"verify_{name}"


@pytest.mark.parametrize("name", ["training-parity", ""])
def test_an_unknown_check_is_one_message_with_the_list(name):
    with pytest.raises(InputError) as refused:
        find_check(name)
    assert f"check={name!r}" in str(refused.value)
    for known in CHECKS.names:
        assert known in str(refused.value)


def test_only_a_check_of_runs_takes_their_number():
    assert find_check("compare_speed", 10_000).keywords == {"runs": 10_000}
    with pytest.raises(InputError, match="0 with check=packing; compare_speed takes a number of runs"):
        find_check("packing", 10)
    for runs in (1, -1):
        with pytest.raises(InputError, match="two or more"):
            find_check("compare_speed", runs)


RUN_WITH = """
import runpy, sys
from crossmesh.verify import checks
from crossmesh.verify.result import CheckResult, Limit

worst = float(sys.argv.pop())
checks.find_check = lambda name, runs: lambda spec, folder, console: CheckResult(
    name, (Limit("difference", worst, 1.0),), {"steps": spec.optim.steps}
)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("worst", "code"), [("0.5", 0), ("1.5", 1)])
def test_the_job_ends_with_the_json_and_exits_1_when_not_passed(worst, code, checkout, own_storage, clean_environment):
    command = [sys.executable, "-c", RUN_WITH, str(checkout / "jobs" / "verify.py"), "check=loss_head", "output=json", worst]
    environment = clean_environment | {"PYTHONPATH": str(checkout / "platform"), "CROSSMESH_STORAGE": str(own_storage)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == code, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["check"] == "loss_head"
    assert record["passed"] is (code == 0)
    assert record["worst"] == {"difference": float(worst)}
    assert record["figures"] == {"steps": 50}
    assert str(own_storage / "verify") in done.stderr


OUTSIDE = """
from crossmesh.verify.result import CheckResult, Limit

def verify_steps(spec, folder, console):
    return CheckResult("steps", (Limit("steps", spec.optim.steps, 60.0),), {"steps": spec.optim.steps})
"""


@pytest.mark.parametrize(("steps", "code"), [(60, 0), (61, 1)])
def test_a_check_of_an_installed_package_runs(steps, code, checkout, own_storage, clean_environment, tmp_path):
    folder = tmp_path / "steps-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: steps\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[crossmesh.checks]\nsteps = steps_of_a_test:verify_steps\n")
    (tmp_path / "steps_of_a_test.py").write_text(OUTSIDE)
    command = [sys.executable, str(checkout / "jobs" / "verify.py"), "check=steps", f"optim.steps={steps}", "output=json"]
    environment = clean_environment | {"PYTHONPATH": str(tmp_path), "CROSSMESH_STORAGE": str(own_storage)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["worst"] == {"steps": steps}
