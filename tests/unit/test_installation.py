"""How jobs are called, whose process a command line is, and what an interpreter without packages says."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh import installation
from crossmesh.installation import conf_folder, job_command, job_of


def test_a_checkout_is_seen_as_one(conf, checkout: Path):
    assert installation.checkout() == checkout
    assert conf_folder() == conf


def test_a_command_is_printed_as_it_was_called(monkeypatch, tmp_path):
    for called, printed in (
        ("jobs/finetune.py", "python jobs/evaluate.py"),
        ("/usr/lib/python3/site-packages/pytest/__main__.py", "python jobs/evaluate.py"),
        (".venv/bin/crossmesh", ".venv/bin/crossmesh evaluate"),
        ("/my tools/crossmesh", "'/my tools/crossmesh' evaluate"),
        (str(Path(installation.__file__).with_name("__main__.py")), "python -m crossmesh evaluate"),
    ):
        monkeypatch.setattr("sys.argv", [called, "experiment=demo"])
        assert job_command("evaluate") == printed
    program = tmp_path / "crossmesh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(program)])
    assert job_command("evaluate") == "crossmesh evaluate"
    (tmp_path / "cm").symlink_to(program)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "cm")])
    assert job_command("evaluate") == "crossmesh evaluate"
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr("sys.argv", ["-c"])
    assert job_command("evaluate") == "crossmesh evaluate"


@pytest.mark.parametrize(
    ("command_line", "job"),
    [
        ("python jobs/serve.py serve.port=1", "serve"),
        ("/a/.venv/bin/python /a/jobs/finetune.py -m", "finetune"),
        ("/a/.venv/bin/python /a/.venv/bin/crossmesh serve serve.port=1", "serve"),
        ("python -m crossmesh ui", "ui"),
        ("vim /srv/crossmesh README.md", None),
        ("python -m crossmesh.serve.replica", None),
        ("python /srv/somejobs/serve.py.bak", None),
        ("ls jobs/ serve.py", None),
        ("git -C /srv/crossmesh pull", None),
        ("gunicorn --chdir /srv/crossmesh app -b 0.0.0.0:80", None),
        ("/usr/bin/crossmesh nonsense", None),
    ],
)
def test_whose_process_a_command_line_is(command_line, job):
    assert job_of(command_line) == job


@pytest.mark.parametrize("form", ["script", "module"])
def test_an_interpreter_without_the_packages_says_which_has_them(checkout, form, tmp_path):
    job = ["jobs/plan.py"] if form == "script" else ["-m", "crossmesh", "plan"]
    # -S: without site-packages, as an interpreter of the system that nothing was installed for.
    command = [sys.executable, "-S", *job, "experiment=demo"]
    environment = {"PYTHONPATH": str(checkout / "platform") if form == "module" else ""}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not have the packages of crossmesh (hydra, ray, mlflow, rich)" in done.stderr
    assert f"{checkout}/.venv/bin/python " in done.stderr
    assert done.stderr.rstrip().endswith(f"{shlex.join(job)} experiment=demo")
    assert "Traceback" not in done.stderr


def test_an_installed_package_without_its_dependencies_says_how_they_are_installed(monkeypatch, capsys):
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        installation.require_packages()
    assert ended.value.code == 2
    assert f"{sys.executable} -m pip install crossmesh==" in capsys.readouterr().err
