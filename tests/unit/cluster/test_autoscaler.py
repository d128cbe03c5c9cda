"""What is said of nodes that could not be started is what the autoscaler logs, in the cloud's words."""

import pytest

from crossmesh.cluster.autoscaler import FailedLaunch, launches_in, said_of

STOCKOUT = (
    "2026-12-03 05:10:01,727\tINFO node_provider.py:439 -- Failed to launch 1 nodes of type gpu_2xh100: {'errors': [{'code': "
    "'ZONE_RESOURCE_POOL_EXHAUSTED', 'message': \"The zone 'projects/p/zones/z' does not have enough resources available to fulfill the "
    'request. Try a different zone, or try again later."}]}'
)
TPU = (
    "2026-12-03 05:11:01,001\tINFO node_provider.py:439 -- Failed to launch 1 nodes of type tpu_v5p_8: {'code': 8, 'message': 'There is no "
    "more capacity in the zone'}"
)
OTHER = (
    "2026-12-03 05:12:01,001\tINFO node_provider.py:439 -- Failed to launch 2 nodes of type gpu_2xh100: <HttpError 403 when requesting "
    "https://compute.googleapis.com/ returned \"Quota 'GPUS' exceeded.\">"
)


def test_the_log_of_the_autoscaler_says_which_nodes_did_not_come_and_why() -> None:
    log = f"2026-12-03 05:10:00,000\tINFO x.py:1 -- Launching 1 nodes of type gpu_2xh100.\n{STOCKOUT}\n{TPU}\n{OTHER}\n"
    found = launches_in(log)
    assert [launch.node_type for launch in found] == ["gpu_2xh100", "tpu_v5p_8", "gpu_2xh100"]
    assert found[0].reason == (
        "ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request. "
        "Try a different zone, or try again later."
    )
    assert found[1].reason == "There is no more capacity in the zone"
    assert found[2].reason.startswith("<HttpError 403")
    assert found[1].at_s - found[0].at_s == 60


def test_each_kind_of_node_is_said_once_with_its_newest_reason() -> None:
    launches = [FailedLaunch("gpu_2xh100", 2.0, "Quota exceeded."), FailedLaunch("gpu_2xh100", 1.0, "old"), FailedLaunch("tpu_v5p_8", 3.0)]
    assert said_of(launches) == (
        "gpu_2xh100 could not be started (2 times): Quota exceeded; "
        "tpu_v5p_8 could not be started (once): the reason is in monitor.log on the cluster's head"
    )
    assert said_of([]) == ""


@pytest.mark.parametrize("log", ["", "no line of a log", "2026-12-03 05:10:01,727\tINFO x.py:1 -- Launched 1 nodes of type gpu_2xh100."])
def test_a_log_without_failures_says_nothing(log: str) -> None:
    assert launches_in(log) == []


def test_an_answer_without_end_is_cut() -> None:
    line = f"2026-12-03 05:10:01,727\tINFO x.py:1 -- Failed to launch 1 nodes of type a: {'x' * 1000}"
    assert len(launches_in(line)[0].reason) < 310
