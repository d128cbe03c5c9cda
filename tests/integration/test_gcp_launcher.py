"""`ray up`, jobs on nodes that come and go, and `ray down` with cluster.yaml, on a Google Cloud in a box.

Ray's launcher and autoscaler are unchanged. Machines are namespaces of this machine: what they install is the checkout's environment, and
their accelerators are CPU devices (`CROSSMESH_EMULATE`).
"""

from pathlib import Path

import pytest

from google_cloud.box import Box, box, missing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=f"a box {missing()}"),
]

VARIABLES = {
    "CROSSMESH_EMULATE": "1",
    "OMP_NUM_THREADS": "1",
    # Intervals that a user may set: nothing else is faster than on Google Cloud.
    "AUTOSCALER_NODE_SSH_INTERVAL_S": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def test_a_machine_sees_nothing_of_this_one(checkout: Path, tmp_path: Path) -> None:
    """Commands of cluster.yaml end Ray's processes by name."""
    with box(VARIABLES) as boxed:
        said = boxed.run("ls /proc | grep -c '^[0-9]'; hostname; id -un; ls /tmp ~/checkout/cluster.yaml; sudo id -u", tmp_path / "log")
    processes, name, user, file, root = said.split()
    assert int(processes) < 15
    assert (name, user, file, root) == ("laptop", "ubuntu", "/home/ubuntu/checkout/cluster.yaml", "0")


def test_ray_up_makes_a_head_and_ray_down_leaves_nothing(checkout: Path, tmp_path: Path) -> None:
    with box(VARIABLES) as boxed:
        ray_up(boxed, checkout, tmp_path)
        state = boxed.ask(state=True)
        (head,) = state["machines"].values()
        assert (head["sort"], head["state"], head["labels"]["ray-node-status"]) == ("n2-standard-8", "RUNNING", "up-to-date")
        listening = boxed.run("cat /proc/net/tcp /proc/net/tcp6", tmp_path / "head.log", head["address"])
        assert "0100007F:2059" in listening  # The dashboard: 127.0.0.1:8265 alone.
        assert "00000000:2059" not in listening
        ray_down(boxed, checkout, tmp_path)


def ray_up(boxed: Box, checkout: Path, folder: Path) -> None:
    boxed.run(f"cd checkout && {checkout}/.venv/bin/ray up -y cluster.yaml", folder / "up.log", timeout=300)


def ray_down(boxed: Box, checkout: Path, folder: Path) -> None:
    """End the cluster; nothing is left, and every request was one that Google's documents know."""
    boxed.run(f"cd checkout && {checkout}/.venv/bin/ray down -y cluster.yaml", folder / "down.log", timeout=300)
    state = boxed.ask(state=True)
    assert state["machines"] == {}
    assert state["violations"] == []
