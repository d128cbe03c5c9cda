"""`crossmesh` as it is typed: one screen of verbs, one message for a verb that does not exist, and nothing heavy loaded for either."""

import os
import subprocess
import sys
import time

import pytest

from crossmesh import __version__
from crossmesh.command import main as command
from crossmesh.command.verbs import line_of, screen, verbs

QUICK_S = 0.3
HEAVY = {"hydra", "omegaconf", "ray", "mlflow", "rich", "numpy", "yaml"}


def typed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/crossmesh", *arguments])
    code = 0
    try:
        command.main()
    except SystemExit as ended:
        code = ended.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_screen_has_every_verb_with_what_it_does(monkeypatch, capsys, arguments):
    code, out, err = typed(monkeypatch, capsys, *arguments)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "..." not in "".join(line for line in lines if "VERB" not in line)
    for verb in verbs():
        assert f"  {verb} " in out
        assert len(line_of(verb)) > 10
    assert "docs/" in out


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fintune", "finetune"), ("eval", "evaluate"), ("Plan", "plan"), ("-m", None), ("model=tiny_llama", None), ("qqq", None)],
)
def test_a_verb_that_does_not_exist_is_one_line_and_exit_code_2(monkeypatch, capsys, given, meant):
    code, out, err = typed(monkeypatch, capsys, given, "experiment=demo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert repr(given) in err
    assert (f"Did you mean {meant}?" in err) if meant else ("Did you mean" not in err)
    assert all(verb in err for verb in verbs())


def test_the_schema_takes_no_arguments(monkeypatch, capsys):
    code, _, said = typed(monkeypatch, capsys, "schema", "--help")
    assert code == 2
    assert "schema takes no arguments" in said


def test_a_reader_that_has_seen_enough_is_no_error(checkout):
    """As `| head` is."""
    command = f"{sys.executable} -m crossmesh completion words 'crossmesh finetune hardware.name=' | head -c 1"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "platform")}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version(monkeypatch, capsys):
    assert typed(monkeypatch, capsys, "--version") == (0, f"crossmesh {__version__}\n", "")


def test_a_verb_s_help_is_the_job_s_own_and_names_the_command_as_it_was_typed(monkeypatch, capsys):
    code, out, _ = typed(monkeypatch, capsys, "compare", "--help")
    assert code == 0
    assert out.startswith("crossmesh compare: Set runs side by side")
    assert "Usage: /opt/venv/bin/crossmesh compare [group=file]" in out
    assert "jobs/compare.py" not in out


def test_the_screen_is_quick_and_loads_the_standard_library_alone(checkout, clean_environment):
    code = "import sys; from crossmesh.command.main import main; main(); print(sorted({name.partition('.')[0] for name in sys.modules}))"
    environment = clean_environment | {"PYTHONPATH": str(checkout / "platform")}
    times = []
    for _ in range(3):  # The best of three: a busy machine is not what is measured.
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, "--help"], capture_output=True, text=True, env=environment, check=True, timeout=60
        )
        times.append(time.perf_counter() - start)
    *shown, modules = done.stdout.splitlines()
    assert "\n".join(shown) == screen()
    assert not HEAVY & set(modules.strip("[]").replace("'", "").split(", "))
    assert min(times) < QUICK_S
