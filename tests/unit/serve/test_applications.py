"""When a server that was replaced has been taken over by its new engines."""

from types import SimpleNamespace

import pytest

from crossmesh.serve.admission import application_name, server_name
from crossmesh.serve.applications import _taken_over


@pytest.mark.parametrize(
    ("states", "over"),
    [
        ({"RUNNING": 1}, False),  # Serve has not begun.
        ({"RUNNING": 1, "STARTING": 1}, False),
        ({"RUNNING": 2}, False),  # The old one still takes requests.
        ({"RUNNING": 1, "STOPPING": 1}, True),
        ({"RUNNING": 2, "STOPPING": 1, "STARTING": 1}, False),  # One of several is over.
        ({"STOPPING": 1}, False),
        ({"RUNNING": 2, "STOPPING": 2, "STARTING": 0}, True),
    ],
)
def test_new_engines_have_taken_over_once_the_old_ones_only_finish(states: dict[str, int], over: bool) -> None:
    assert _taken_over(SimpleNamespace(deployments={"engine": SimpleNamespace(replica_states=states)})) is over


def test_servers_without_a_name_and_with_one_are_applications_of_their_own() -> None:
    assert [application_name(name) for name in ("", "gpu")] == ["crossmesh", "crossmesh-gpu"]
    assert [server_name(application_name(name)) for name in ("", "gpu", "a-b")] == ["", "gpu", "a-b"]
