"""A port is free only when nobody can be met on it beside us, whatever options the other listener has, and a refusal names the listener."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crossmesh.errors import InputError
from crossmesh.ports import free_port, listening, listens_alone, port_taken
from crossmesh.serve.applications import check_local_port


@contextmanager
def listener(host: str, *options: int) -> Iterator[int]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        for option in options:
            one.setsockopt(socket.SOL_SOCKET, option, 1)
        one.bind((host, 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.mark.parametrize("options", [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)], ids=["", "addr", "port"])
@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("127.0.0.1", "::"),
        ("127.0.0.1", "localhost"),
    ],
)
def test_a_port_on_which_somebody_listens_is_taken_whoever_may_listen_beside(theirs: str, wanted: str, options: tuple[int, ...]) -> None:
    with listener(theirs, *options) as port:
        assert f"process {socket_owner()} (" in str(port_taken(wanted, port))
        assert listening(port) == [socket_owner()]
        assert not listens_alone(port, 1 << 22)
        assert listens_alone(port, socket_owner())
        with pytest.raises(InputError, match=rf"serve\.port={port}: the port of {wanted} is taken by process \d+ .*serve\.port=0"):
            check_local_port(wanted, port)
    assert port_taken(wanted, port) is None


def socket_owner() -> int:
    return os.getpid()


def test_two_sockets_that_share_a_port_are_both_seen(tmp_path: Path) -> None:
    code = (
        "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('up', flush=True); sys.stdin.read()"
    )
    program = tmp_path / "jobs" / "serve.py"
    program.parent.mkdir()
    program.write_text(code)
    with listener("127.0.0.1", socket.SO_REUSEADDR, socket.SO_REUSEPORT) as port:
        command = [sys.executable, str(program), str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == b"up\n"
            assert listening(port) == sorted([socket_owner(), other.pid])
            assert f"process {other.pid} ({sys.executable} {program} {port}"[:100] in str(port_taken("127.0.0.1", port))
            assert listens_alone(port, socket_owner()), "a child of ours is ours"
            assert not listens_alone(port, other.pid)
            other.stdin.close()


def test_connections_that_are_only_being_forgotten_do_not_take_a_port() -> None:
    with listener("127.0.0.1", socket.SO_REUSEADDR) as port, socket.create_connection(("127.0.0.1", port)) as client:
        served = socket.fromfd(listening_socket(port), socket.AF_INET, socket.SOCK_STREAM)
        accepted, _ = served.accept()
        served.close()
        accepted.close()  # The server closes first, so its port is what waits.
        assert client.recv(1) == b""
    assert port_taken("127.0.0.1", port) is None


def listening_socket(port: int) -> int:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            one = socket.socket(fileno=int(entry.name))
        except OSError:
            continue
        try:
            if one.getsockname()[1] == port and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return one.fileno()
        except (OSError, IndexError):
            pass
        finally:
            one.detach()
    raise AssertionError("no such socket")


def test_free_ports_are_free_and_a_foreign_host_is_said_to_be_one() -> None:
    assert port_taken("127.0.0.1", free_port()) is None
    with pytest.raises(InputError, match=r"serve\.host='192\.0\.2\.7' is not an address of this machine"):
        check_local_port("192.0.2.7", free_port())
