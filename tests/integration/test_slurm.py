"""A job by `sbatch` on a Slurm of two nodes: its own daemons, on machines that are namespaces of this one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from google_cloud.box import Box, box, missing
from tiny_job import TINY

_DAEMONS = ("slurmctld", "slurmd", "munged")
_LACKING = [name for name in _DAEMONS if shutil.which(name, path="/usr/sbin:/usr/bin") is None]
_REASON = f"a box {missing()}" if missing() else "needs slurm-wlm munge: apt-get install slurm-wlm munge"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing() or _LACKING), reason=_REASON),
]

NODES = {"n1": "10.128.0.11", "n2": "10.128.0.12"}
CONFIGURATION = """
ClusterName=box
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
NodeName=n[1-2] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture(scope="module")
def slurm(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    log = tmp_path_factory.mktemp("slurm") / "log"
    hosts = "".join(f"{address} {name}\\n" for name, address in NODES.items())
    with box({"OMP_NUM_THREADS": "1"}) as boxed:
        for place, (name, address) in enumerate(NODES.items()):
            boxed.ask(boot=name, address=address, external=f"203.0.113.{11 + place}")
            prepared = (
                f"printf '{hosts}' | cat - /etc/hosts >/run/hosts && cat /run/hosts >/etc/hosts",
                "mkdir -p /run/munge /run/slurmctld /run/slurmd /var/log/munge /etc/slurm && chown munge /run/munge /var/log/munge",
                f"cat >/etc/slurm/slurm.conf <<'CONFIGURATION'\n{CONFIGURATION}\nCONFIGURATION",
                "printf 'CgroupPlugin=cgroup/v1\\nCgroupAutomount=no\\n' >/etc/slurm/cgroup.conf",  # Loaded, and not used.
                "setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged",
                *(["/usr/sbin/slurmctld"] if place == 0 else []),
                "/usr/sbin/slurmd",
            )
            boxed.run("\n".join(("set -e", *prepared)), log, address, user="root")
        boxed.run("chmod 777 /srv/share", log, user="root")
        boxed.run("cp -r ~/checkout /srv/share/crossmesh", log)
        for address in NODES.values():
            boxed.run(f"ln -s {checkout}/.venv ~/crossmesh-venv", log, address)
        yield boxed


def submit(boxed: Box, log: Path, nodes: int, *arguments: str) -> str:
    """Submit, wait for the end, and return what the job said."""
    place = "cd /srv/share/crossmesh && export CROSSMESH_STORAGE=/srv/share/storage CROSSMESH_EMULATE=1"
    out = f"/srv/share/{log.name}"
    command = f"sbatch --wait --output={out} --nodes={nodes} conf/cluster/slurm.sbatch {' '.join(arguments)}"
    try:
        boxed.run(f"{place}; {command}", log, NODES["n1"], timeout=600)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{boxed.run(f'cat {out} || true', log, NODES['n1'])}") from error
    return boxed.run(f"cat {out}", log, NODES["n1"])


def test_a_job_trains_on_the_nodes_that_slurm_gave_it_and_leaves_none_of_rays_processes(slurm: Box, tmp_path: Path) -> None:
    ran = submit(slurm, tmp_path / "first", 2, "jobs/finetune.py", *TINY, "optim.steps=2", "hardware=cpu")
    result = json.loads(next(line for line in ran.splitlines() if line.startswith('{"')))
    assert result["final_loss"] > 0
    for address in NODES.values():
        assert slurm.run("pgrep -c raylet || true", tmp_path / "left", address).strip() == "0"


def test_the_exit_code_of_a_mistake_is_that_of_the_slurm_job(slurm: Box, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"exit code 2\n(.|\n)*optim\.stepz"):
        submit(slurm, tmp_path / "wrong", 1, "jobs/finetune.py", *TINY, "optim.stepz=2")
