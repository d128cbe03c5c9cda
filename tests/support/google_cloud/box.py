"""A box: a namespace of processes, files and network in which a Google Cloud and somebody's laptop are, and nothing of this machine runs.

`box()` starts it; the rest runs inside, as the first process there, and ends with it whatever happened.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google_cloud.certificates import make_keys
from google_cloud.cloud import Cloud
from google_cloud.discovery import FILES
from google_cloud.launcher_file import PROJECT, REGION, ZONE, launcher_file
from google_cloud.machines import Machine
from google_cloud.namespaces import BRIDGE, METADATA, Namespaces
from google_cloud.server import Server, listen

LAPTOP = "10.128.0.2"
_SUPPORT = Path(__file__).resolve().parents[1]
_CHECKOUT = _SUPPORT.parents[1]


def missing() -> str:
    """Why no box can be made here; empty when it can."""
    programs = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync", "ip": "iproute2", "unshare": "util-linux"}
    lacking = [package for program, package in programs.items() if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if lacking:
        return f"needs {' '.join(lacking)}: apt-get install {' '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return f"needs root, to make namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Box:
    """A running box."""

    folder: Path
    _process: "subprocess.Popen[str]"

    def ask(self, **request: Any) -> dict[str, Any]:
        """Ask the cloud: `state`, or one of `fault` (with `sort`) and `preempt`; or for a machine beside it: `boot` (with `address`)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the box has ended: {(self.folder / 'box.log').read_text()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, command: str, log: Path, address: str = LAPTOP, user: str = "ubuntu") -> "subprocess.Popen[bytes]":
        """Run a command as a user would, on the laptop or, by its address, on another machine; what it says goes to `log`."""
        ssh = ["ssh", "-q", "-i", str(self.folder / "admin"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        inside = ["nsenter", "-t", self._first(), "-n", "-m", "--"]
        with log.open("ab") as out:
            return subprocess.Popen([*inside, *ssh, f"{user}@{address}", command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def run(self, command: str, log: Path, address: str = LAPTOP, timeout: float = 120, user: str = "ubuntu") -> str:
        """Run it to its end and return what it said."""
        before = log.stat().st_size if log.exists() else 0
        code = self.start(command, log, address, user).wait(timeout)
        said = log.read_bytes()[before:].decode(errors="replace")
        assert code == 0, f"{command}: exit code {code}\n{said}"
        return said

    def _first(self) -> str:
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]


@contextmanager
def box(variables: Mapping[str, str], delay_s: float = 0.5) -> Iterator[Box]:
    """Start a box whose nodes have `variables` in their environment; end it and all that is in it with the block."""
    folder = Path(tempfile.mkdtemp(prefix="cm-g-", dir="/tmp"))
    folder.chmod(0o711)
    unshare = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    outside = str(Path("/proc/self/ns/pid").readlink())
    command = [*unshare, sys.executable, "-m", "google_cloud.box", str(folder), outside, str(delay_s), json.dumps(dict(variables))]
    with (folder / "box.log").open("w") as log:
        environment = {**os.environ, "PYTHONPATH": str(_SUPPORT)}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=_SUPPORT
        )
    made = Box(folder, process)
    try:
        assert made.ask(state=True)["machines"] == {}
        yield made
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _main(folder: Path, outside: str, delay_s: float, variables: Mapping[str, str]) -> None:
    """Inside: make the network, the cloud and the laptop, then do what is asked for."""
    own = str(Path("/proc/self/ns/pid").readlink())
    if own == outside or os.getpid() != 1:
        raise SystemExit("the box sees processes of others: refused")
    _network(folder)
    keys = make_keys(folder, PROJECT)
    _prepare(folder)
    trusted = {"HTTPLIB2_CA_CERTS": "/etc/ssl/box.pem", "REQUESTS_CA_BUNDLE": "/etc/ssl/box.pem"}
    hosts = Namespaces(folder, _CHECKOUT, own, {**trusted, **variables})
    cloud = Cloud(PROJECT, REGION, ZONE, hosts, delay_s)
    hosts.ssh_keys = lambda: cloud.ssh_keys
    server = Server(cloud, keys)
    listen(server, (BRIDGE, 443), tls=True)
    listen(server, (METADATA, 80), tls=False)
    _laptop(hosts, folder, {**trusted, "GOOGLE_APPLICATION_CREDENTIALS": "/home/ubuntu/account.json"})
    for line in sys.stdin:
        request = json.loads(line)
        if "fault" in request:
            cloud.break_next(request["fault"], request["sort"], request.get("count", 1))
        if "boot" in request:
            hosts.boot(request["boot"], request["address"], request["external"], {**trusted, **variables})
        if "preempt" in request:
            cloud.preempt(request["preempt"])
        sys.stdout.write(json.dumps(_state(server)) + "\n")
        sys.stdout.flush()


def _state(server: Server) -> dict[str, Any]:
    def told(machine: Machine) -> dict[str, Any]:
        return {"sort": machine.sort, "state": machine.state, "address": machine.internal_ip, "labels": machine.labels}

    machines = {name: told(machine) for name, machine in list(server.cloud.machines.items())}
    history = [machine.sort for machine in server.cloud.history]
    return {"machines": machines, "history": history, "violations": server.violations, "calls": server.calls}


def _network(folder: Path) -> None:
    (folder / "machines").mkdir()
    (folder / "share").mkdir()
    for command in (
        "mount -t tmpfs run /run",
        f"mount -t tmpfs machines {folder}/machines",
        "ip link set lo up",
        "ip link add br0 type bridge",
        "ip link set br0 up",
        f"ip address add {BRIDGE}/20 dev br0",
        "ip address add 203.0.113.1/24 dev br0",
        f"ip address add {METADATA}/32 dev br0",
    ):
        subprocess.run(command.split(), check=True)


def _prepare(folder: Path) -> None:
    """What machines are made with."""
    shutil.copytree(Path(__file__).with_name("commands"), folder / "commands")
    names = [*FILES, "oauth2.googleapis.com"]
    hosts = [f"{BRIDGE} {name}" for name in names] + [f"{METADATA} metadata.google.internal metadata", "127.0.0.1 localhost"]
    (folder / "hosts").write_text("".join(f"{line}\n" for line in hosts))
    for name in ("admin", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)


def _laptop(hosts: Namespaces, folder: Path, variables: Mapping[str, str]) -> None:
    """Somebody's machine: a checkout without what git ignores, the cluster file filled in, a token and a service account."""
    hosts.boot("laptop", LAPTOP, "203.0.113.2", variables)
    staged = folder / "laptop"
    (staged / ".ray").mkdir(parents=True)
    (staged / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    shutil.copy(folder / "account.json", staged)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=_CHECKOUT, capture_output=True, check=True).stdout
    subprocess.run(
        ["rsync", "-a", "--ignore-missing-args", "--files-from=-", ".", f"{staged}/checkout/"], cwd=_CHECKOUT, input=listed, check=True
    )
    (staged / "checkout" / "cluster.yaml").write_text(launcher_file(_CHECKOUT))
    home = folder / "machines" / "laptop"  # Its files are behind the mounts of its own namespace: they go in by SSH.
    assert home.exists()
    options = f"ssh -q -i {folder}/admin -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    subprocess.run(["rsync", "-a", "--chown=ubuntu:ubuntu", "-e", options, f"{staged}/", f"root@{LAPTOP}:/home/ubuntu/"], check=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), json.loads(sys.argv[4]))
