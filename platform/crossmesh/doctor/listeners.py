"""Ports of crossmesh's, Ray's, MLflow's and vLLM's processes that other machines can reach."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.doctor.private_files import token_file
from crossmesh.installation import job_command, job_of

_NAME = "listening ports"
_ALONE = "RAY_AUTH_MODE=token ray start --head --node-ip-address=127.0.0.1"
_FAMILIES = (
    ("Ray", re.compile(r"\bray::|/ray/(core|dashboard|_private|util)/|\braylet\b|\bgcs_server\b|\bray start\b")),
    ("MLflow", re.compile(r"\bmlflow(\.server| server| ui)\b")),
    ("vLLM", re.compile(r"\bVLLM::|\bvllm(\.entrypoints| serve)\b")),
)


@dataclass(frozen=True)
class Listener:
    """A port that another machine can reach."""

    address: str
    port: int
    pid: int
    family: str
    """`Ray`, `MLflow`, `vLLM` or `crossmesh`."""
    guarded: bool
    """Whether it asks for a token or a key."""

    def __str__(self) -> str:
        """As a person reads it."""
        return f"{self.address}:{self.port} ({self.family}, process {self.pid})"


def check_listeners(_spec: ExperimentSpec) -> Iterator[Finding]:
    """What listens beyond loopback."""
    yield _finding(_ALONE)


def listeners_of_node(*, head: bool) -> Finding:
    """The same on a node of a cluster, which other nodes must reach."""
    return _finding("RAY_AUTH_MODE=token ray start --head" if head else "RAY_AUTH_MODE=token ray start --address=HEAD:6379")


def _finding(again: str) -> Finding:
    try:
        return listeners_finding(tuple(_listeners()), again)
    except psutil.Error as error:
        return note(_NAME, f"cannot be listed: {error}")


def listeners_finding(found: tuple[Listener, ...], start_ray: str = _ALONE) -> Finding:
    """What it means that others can reach these ports; `start_ray`: how a Ray is started that asks for its token."""
    loose = [one for one in found if not one.guarded]
    if loose:
        ray = any(one.family == "Ray" for one in loose)
        again = start_ray if ray else job_command("ui")
        ended = " ".join(str(pid) for pid in sorted({one.pid for one in loose}))
        said = ", ".join(map(str, loose))
        return fault(_NAME, f"others reach without a token or key: {said}", f"kill {ended}    # and start it again by: {again}")
    if found:
        return note(_NAME, f"others reach, with a token or key: {', '.join(map(str, found))}")
    return ok(_NAME, "none beyond loopback")


def family(command: str) -> str | None:
    """Whose process has this command line; None: not one that we start."""
    job = job_of(command)
    ours = {None: None, "ui": "MLflow"}.get(job, "crossmesh")
    return next((name for name, sign in _FAMILIES if sign.search(command)), ours)


def beyond_loopback(address: str) -> bool:
    """Whether a socket that listens on `address` can be reached from another machine."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return not (mapped or parsed).is_loopback


def asks(family: str, command: str, environ: Mapping[str, str], *, token: bool) -> bool:
    """Whether a process that was started so asks for a token or key.

    `token`: Ray finds one, which turns its authentication on where the environment does not say otherwise.
    """
    if family == "Ray":
        mode = environ.get("RAY_AUTH_MODE", "")
        return mode == "token" or (mode != "disabled" and (token or bool(environ.get("RAY_AUTH_TOKEN"))))
    return family == "crossmesh" and "serve.allow_anonymous=true" not in command  # Its gate; the other two have none that we know of.


def _listeners() -> Iterable[Listener]:
    token = token_file({}).is_file()
    reachable = [
        one
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr and one.pid and beyond_loopback(one.laddr.ip)
    ]
    for one in reachable:
        with suppress(psutil.Error):
            process = psutil.Process(one.pid)
            command = " ".join(process.cmdline()) or process.name()
            whose = family(command)
            if whose is not None:
                yield Listener(one.laddr.ip, one.laddr.port, one.pid, whose, asks(whose, command, _environ(process), token=token))


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        values: Mapping[str, str] = process.environ()
    except psutil.Error:
        return {}
    return values
