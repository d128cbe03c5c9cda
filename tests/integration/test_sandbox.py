"""The sandbox attacked: real bubblewrap, real processes."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate import sandbox as room
from crossmesh.evaluate.sandbox import Limits, Sandbox, open_sandbox

pytestmark = pytest.mark.integration

SHORT = Limits(wall_s=3.0, memory_mib=256, disk_mib=4)


@pytest.fixture(scope="module")
def box() -> Sandbox:
    return open_sandbox("bubblewrap")


def alive(marker: str) -> list[str]:
    """Command lines of this machine's processes that contain `marker`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and "pytest" not in line:
            found.append(line)
    return found


def test_files_go_in_and_output_comes_back(box):
    outcome = box.run(["sh", "-c", "cat a.txt; cat b.txt >&2; exit 3"], {"a.txt": "one\n", "b.txt": "two\n"}, SHORT)
    assert (outcome.returncode, outcome.output, outcome.stopped) == (3, "one\ntwo\n", "")


def test_nothing_of_the_host_is_visible(box, monkeypatch):
    monkeypatch.setenv("CROSSMESH_API_KEY", "secret-of-the-host")
    shown = box.run(["sh", "-c", "cat /etc/passwd; ls /; ls /proc /etc /root /home /var; env; id -u; pwd"], {}, SHORT).output
    assert "root:" not in shown
    assert "secret-of-the-host" not in shown
    assert "/etc/passwd: No such file" in shown
    assert shown.endswith("1000\n/sandbox\n")
    for hidden in ("proc", "etc", "root", "home", "var"):
        assert f"'/{hidden}': No such file" in shown


def test_only_its_own_folder_is_writable_and_that_is_bounded(box):
    outcome = box.run(["sh", "-c", "for f in /x /usr/x /bin/x /dev/x /sandbox/x; do echo 1 > $f && echo wrote $f; done"], {}, SHORT)
    assert [line for line in outcome.output.splitlines() if line.startswith("wrote")] == ["wrote /sandbox/x"]
    # All files together, not each: 4 MiB of 9 MB.
    many = "for i in 1 2 3 4 5 6 7 8 9; do head -c 1000000 /usr/bin/vvp > f$i 2>/dev/null; done; du -sk . | cut -f1"
    filled = box.run(["sh", "-c", many], {}, Limits(wall_s=10, disk_mib=4))
    assert int(filled.output.splitlines()[-1]) <= 4096
    assert not Path("/sandbox").exists()


def test_no_network_not_even_this_machine(box):
    code = "import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('connected')"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outside = subprocess.run(
            [shutil.which("python3") or sys.executable, "-c", code.format(port=port)], capture_output=True, text=True, check=False
        )
        assert outside.stdout == "connected\n"
        inside = box.run(["python3", "-c", code.format(port=port)], {}, SHORT)
    assert "Connection refused" in inside.output or "unreachable" in inside.output
    assert "connected" not in inside.output


@pytest.mark.parametrize("kind", ["bubblewrap", "none"])
def test_an_endless_command_ends_with_all_its_children(kind):
    marker = f"{987000 + os.getpid() % 1000}.{1 if kind == 'none' else 2}"
    began = time.monotonic()
    outcome = open_sandbox(kind).run(["sh", "-c", f"sleep {marker} & sleep {marker}"], {}, Limits(wall_s=1.0))
    assert outcome.stopped == "timeout"
    assert time.monotonic() - began < 3
    time.sleep(0.2)
    assert alive(f"sleep {marker}") == []


def test_a_daemon_that_left_its_session_dies_with_the_sandbox(box):
    marker = f"{988000 + os.getpid() % 1000}.3"
    outcome = box.run(["sh", "-c", f"setsid sleep {marker} >/dev/null 2>&1 & echo started"], {}, Limits(wall_s=5.0))
    assert outcome.output == "started\n"
    time.sleep(0.2)
    assert alive(f"sleep {marker}") == []


@pytest.mark.parametrize("kind", ["bubblewrap", "none"])
def test_an_output_flood_is_cut(kind):
    outcome = open_sandbox(kind).run(["sh", "-c", "while :; do echo flood; done"], {}, Limits(wall_s=20.0, output_bytes=10_000))
    assert outcome.stopped == "output_limit"
    assert len(outcome.output) == 10_000
    assert outcome.seconds < 10


@pytest.mark.parametrize("kind", ["bubblewrap", "none"])
def test_a_memory_flood_fails(kind):
    outcome = open_sandbox(kind).run(["python3", "-c", "x = bytearray(1 << 30); print('got it')"], {}, Limits(wall_s=20.0, memory_mib=256))
    assert "MemoryError" in outcome.output
    assert "got it" not in outcome.output


def test_a_fork_bomb_is_contained(box):
    outcome = box.run(
        ["sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 3 & i=$((i+1)); done; echo all"], {}, Limits(wall_s=2.0, processes=20)
    )
    assert "Cannot fork" in outcome.output
    assert "all" not in outcome.output


def test_the_sandbox_dies_with_its_parent(box, tmp_path):
    marker = f"{989000 + os.getpid() % 1000}.4"
    code = f"""
    from crossmesh.evaluate.sandbox import Limits, open_sandbox
    open_sandbox("bubblewrap").run(["sh", "-c", "sleep {marker} & sleep {marker}"], {{}}, Limits(wall_s=60.0))
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(room.__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment)
    try:
        until = time.monotonic() + 20
        while len(alive(f"sleep {marker}")) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        assert alive(f"sleep {marker}")
    finally:
        parent.kill()
        parent.wait()
    time.sleep(0.5)
    assert alive(f"sleep {marker}") == []


def test_without_a_sandbox_limits_hold_and_the_result_says_so():
    box = open_sandbox("none")
    assert "without a sandbox" in box.warning
    shown = box.run(["sh", "-c", "cat a.txt; ulimit -v; ulimit -f; env; pwd"], {"a.txt": "one\n"}, SHORT).output.splitlines()
    assert shown[0] == "one"
    assert shown[1] == str(256 * 1024)
    assert not Path(shown[-1]).exists()


@pytest.fixture
def fresh_probe():
    room._working_bubblewrap.cache_clear()
    yield
    room._working_bubblewrap.cache_clear()


def test_a_missing_bubblewrap_is_an_error_that_says_how_to_install_it(fresh_probe, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"sudo apt-get install bubblewrap.*eval\.sandbox=none"):
        open_sandbox("bubblewrap")


def test_a_bubblewrap_without_namespaces_is_an_error_that_says_why(fresh_probe, monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace'\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InputError, match=r"No permissions to create new namespace.*eval\.sandbox=none"):
        open_sandbox("bubblewrap")


def test_a_program_outside_the_system_is_visible_and_its_folder_not_writable(monkeypatch, tmp_path):
    program = tmp_path / "suite" / "bin" / "simulate"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho simulated; echo 1 > $(dirname $0)/x\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    shown = open_sandbox("bubblewrap", ("simulate", "sh")).run(["simulate"], {}, SHORT).output
    assert shown.startswith("simulated\n")
    assert "Read-only file system" in shown
