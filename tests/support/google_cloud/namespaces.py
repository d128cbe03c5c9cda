"""Machines as namespaces: an address on a bridge, processes, files and a name of its own, and an SSH server as its first process."""

import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google_cloud.machines import TPU, Machine

BRIDGE, METADATA = "10.128.0.1", "169.254.169.254"
_UP_S = 30.0


@dataclass
class Namespaces:
    """The machines of a box; `start` and `stop` are what the cloud calls."""

    folder: Path
    checkout: Path
    outside: str
    """The PID namespace of this box, which no machine may see."""
    variables: Mapping[str, str]
    """What every machine has in its environment."""
    ssh_keys: Any = field(default=list)
    """Gives the public keys that are let in."""
    _processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    _count: int = 0

    def start(self, machine: Machine) -> None:
        variables = dict(self.variables)
        if machine.kind == TPU:
            variables["BOX_TPU"] = machine.sort
        self.boot(machine.name, machine.internal_ip, machine.external_ip, variables)

    def boot(self, name: str, address: str, external: str, variables: Mapping[str, str]) -> None:
        """Bring a machine up and wait until SSH answers."""
        own = self.folder / "machines" / name
        own.mkdir(parents=True)
        (own / "authorized_keys").write_text("".join(f"{key}\n" for key in self.ssh_keys()))
        (own / "environment").write_text("\n".join(f"{key}={value}" for key, value in variables.items()))
        self._count += 1
        link = f"veth{self._count}"
        for command in (
            f"ip netns add {name}",
            f"ip link add {link} type veth peer name eth0 netns {name}",
            f"ip link set {link} master br0 up",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set eth0 up",
            f"ip -n {name} address add {address}/20 dev eth0",
            f"ip -n {name} address add {external}/24 dev eth0",
            f"ip -n {name} route add default via {BRIDGE}",
        ):
            subprocess.run(command.split(), check=True)
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "bash"]
        boot = [str(Path(__file__).with_name("boot.sh")), str(self.folder), name, str(self.checkout), self.outside]
        with (self.folder / f"{name}.log").open("w") as log:
            self._processes[name] = subprocess.Popen(["ip", "netns", "exec", name, *unshare, *boot], stdout=log, stderr=log, cwd="/")
        self._wait(name, address)

    def _wait(self, name: str, address: str) -> None:
        deadline = time.monotonic() + _UP_S
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            try:
                socket.create_connection((address, 22), 1.0).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{name} did not come up: {(self.folder / f'{name}.log').read_text()}")

    def stop(self, machine: Machine) -> None:
        process = self._processes.pop(machine.name, None)
        if process is None:
            return
        process.kill()  # And with it the first process of its namespace, and so all of it.
        process.wait()
        subprocess.run(["ip", "netns", "delete", machine.name], check=True)

    def processes(self, name: str) -> int:
        """How many processes of Ray a machine has."""
        namespace = str(Path(f"/proc/{self._first(name)}/ns/pid").readlink())
        count = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    count += str((entry / "ns" / "pid").readlink()) == namespace and b"ray" in (entry / "cmdline").read_bytes()
                except OSError:
                    continue
        return count

    def _first(self, name: str) -> str:
        process = self._processes[name].pid
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()[0]
