"""TCP ports of this machine: free ones, who listens on one that is taken, and sockets that nobody can listen beside.

Linux lets a process listen on a port beside another one of the same user when both ask for it (SO_REUSEPORT); each connection then meets
either. Ray Serve and vLLM ask for it, so that a port which can be bound is not yet a port that is free.
"""

import errno
import socket
from collections.abc import Collection
from contextlib import suppress

import psutil

from crossmesh.installation import job_of

_SHOWN = 160
"""Characters of a command line in a message."""
_LAUNCHERS = 12
"""Ancestors of a process that are looked at for the job that started it."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of `host` on which nothing listens now."""
    with socket.socket(_family(host)) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port


def port_taken(host: str, port: int) -> str | None:
    """Who keeps `port` of `host` from being listened on alone, in words for a message; None when nobody does.

    Asks for the port without SO_REUSEPORT, which no listener on the same address, or on all addresses, allows. Connections that are only
    being forgotten (TIME_WAIT) are in nobody's way. Raises `OSError` for a host that is not an address of this machine.
    """
    absent: OSError | None = None
    addresses = {(family, address) for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for family, address in addresses:
        try:
            with socket.socket(family) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
        except OSError as error:
            if error.errno == errno.EACCES:
                return "the system (ports under 1024 are root's)"
            if error.errno == errno.EADDRINUSE:
                return (
                    " and ".join(_described(pid) for pid in listening(port))
                    or "a process of another user, or by connections that it has just closed"
                )
            absent = error  # Another address of a name such as localhost may be there.
            if len(addresses) == 1:
                raise
    if absent is not None and all(family == socket.AF_INET6 for family, _ in addresses):
        raise absent
    return None


def listening(port: int) -> list[int]:
    """Process ids that listen on `port` of any address of this machine, as far as this user may see them."""
    found = {
        one.pid
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid
    }
    return sorted(found)


def listens_alone(port: int, root: int) -> bool:
    """Whether no process other than `root` and its descendants is seen to listen on `port`."""
    return not _others(listening(port), root)


def _others(pids: Collection[int], root: int) -> list[int]:
    own = {root}
    with suppress(psutil.Error):
        own |= {child.pid for child in psutil.Process(root).children(recursive=True)}
    return [pid for pid in pids if pid not in own]


def _described(pid: int) -> str:
    """A process and the Python program that it belongs to: Ray's own processes say only what they are."""
    try:
        process = psutil.Process(pid)
        own = _command(process)
        for ancestor in [process, *process.parents()[:_LAUNCHERS]]:
            command = _command(ancestor)
            if job_of(command):
                return f"process {pid} ({own})" if ancestor is process else f"process {pid} ({own}), of process {ancestor.pid} ({command})"
    except psutil.Error:
        return f"process {pid}"
    return f"process {pid} ({own})"


def _command(process: psutil.Process) -> str:
    command = " ".join(process.cmdline()).strip() or process.name()
    return command if len(command) <= _SHOWN else f"{command[:_SHOWN]}..."


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
