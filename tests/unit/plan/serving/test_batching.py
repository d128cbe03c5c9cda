"""The schedule of continuous batching, counted by hand: a step takes one second unless said otherwise."""

import random
from statistics import fmean

import pytest

from crossmesh.plan.serving.batching import Chunk, LoadRequest, Step, StepLimits, _Engine, serve
from crossmesh.plan.serving.kv import KvBytes

PLAIN = KvBytes(1.0, 0.0, 0)
ROOMY = StepLimits(64, 8, 10_000, PLAIN)


def second(step: Step) -> float:
    return 1.0


def test_one_request() -> None:
    seen = []

    def seconds(step: Step) -> float:
        seen.append(step)
        return 1.0

    served = serve([LoadRequest(5.0, 100, 3)], ROOMY, seconds)
    # A prompt of 100 in parts of 64 and 36; the step with the last part makes the first token.
    assert seen == [
        Step(0, 0, 0, (Chunk(0, 64),)),
        Step(0, 0, 0, (Chunk(64, 36),)),
        Step(1, 101, 0, ()),
        Step(1, 102, 0, ()),
    ]
    answer = served.answers[0]
    assert (answer.first_s, answer.end_s, answer.ttft_s, answer.e2e_s, answer.tpot_s) == (7.0, 9.0, 2.0, 4.0, 1.0)
    assert (served.end_s, served.busy_s, served.steps, served.waiting) == (9.0, 4.0, 4, 0)


def test_two_that_overlap() -> None:
    seen = []

    def seconds(step: Step) -> float:
        seen.append((step.decodes, step.chunks))
        return 1.0

    served = serve([LoadRequest(0.0, 64, 5), LoadRequest(0.5, 100, 2)], ROOMY, seconds)
    # The token of the first comes before the prompt of the second: 63 of its 100 fit into the step.
    assert seen == [(0, (Chunk(0, 64),)), (1, (Chunk(0, 63),)), (1, (Chunk(63, 37),)), (2, ()), (1, ())]
    assert [(one.first_s, one.end_s) for one in served.answers] == [(1.0, 5.0), (3.0, 4.0)]
    assert served.sequence_s == 1 + 2 + 2 + 2 + 1


def test_several_prompts_in_one_step() -> None:
    served = serve([LoadRequest(0.0, 20, 1), LoadRequest(0.0, 20, 1), LoadRequest(0.0, 40, 1)], ROOMY, second)
    assert [one.end_s for one in served.answers] == [1.0, 1.0, 2.0]
    assert all(one.tpot_s is None for one in served.answers)


def test_one_at_a_time_queues() -> None:
    served = serve([LoadRequest(0.0, 8, 3)] * 3, StepLimits(64, 1, 1000, PLAIN), second)
    assert [(one.first_s, one.end_s) for one in served.answers] == [(1.0, 3.0), (4.0, 6.0), (7.0, 9.0)]
    assert served.waiting == 2
    assert served.queued_until_s == 7.0


def test_the_latest_is_preempted_and_computed_again() -> None:
    # Four blocks of 4. Both hold two after step 5 and need a third: the second gives its two back. It has made 5 tokens by then, so 9 must
    # be computed again, which needs three blocks; they are free after step 10, the first one's last.
    served = serve([LoadRequest(0.0, 4, 10), LoadRequest(0.0, 4, 10)], StepLimits(16, 8, 16.0, PLAIN, 4), second)
    assert [(one.first_s, one.end_s, one.preemptions) for one in served.answers] == [(1.0, 10.0, 0), (1.0, 15.0, 1)]


def test_a_prompt_waits_for_room_for_all_of_it() -> None:
    # 20 tokens of room, of which the first holds 12, then 16, up to step 4: the second does not fit, and the third may not pass it.
    served = serve([LoadRequest(0.0, 12, 4), LoadRequest(0.0, 12, 1), LoadRequest(0.0, 4, 1)], StepLimits(64, 8, 20.0, PLAIN, 4), second)
    assert [one.first_s for one in served.answers] == [1.0, 5.0, 5.0]


def test_layers_with_a_window_see_and_hold_no_more() -> None:
    seen = []

    def seconds(step: Step) -> float:
        seen.append((step.context, step.windowed))
        return 1.0

    limits = StepLimits(64, 8, 1000, KvBytes(1.0, 10.0, 4), 4)
    serve([LoadRequest(0.0, 2, 5)], limits, seconds)
    assert seen == [(0, 0), (3, 3), (4, 4), (5, 4), (6, 4)]
    assert limits.held(3) == 4 * (1 + 10)
    assert limits.held(9) == 12 * 1 + 4 * 10


@pytest.mark.parametrize("kv", [PLAIN, KvBytes(1.0, 3.0, 48), KvBytes(0.5, 2.0, 20)])
def test_everything_is_given_back(kv: KvBytes) -> None:
    chosen = random.Random(1)
    requests = sorted(
        (LoadRequest(chosen.uniform(0, 300), chosen.randint(1, 150), chosen.randint(1, 90)) for _ in range(200)),
        key=lambda one: one.arrival_s,
    )
    limits = StepLimits(48, 10, 3 * StepLimits(48, 10, 0.0, kv).held(240), kv)
    engine = _Engine(requests, limits, lambda step: 0.1 + 0.001 * step.tokens)
    served = engine.run()
    assert sum(one.preemptions for one in served.answers) > 0
    assert engine.free == limits.cache_bytes
    sums = engine.decoding
    assert (sums.count, sums.context, sums.windowed, sums.growing) == (0, 0, 0, 0)
    assert not any(sums.phases)
    assert not any(sums.growing_phases)
    assert not any(sums.ends.values())
    assert not any(sums.crossings.values())
    assert all(one.request.arrival_s < one.first_s <= one.end_s for one in served.answers)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_queue_is_that_of_theory(load: float) -> None:
    # One server, Poisson arrivals, every service one second (M/D/1): the mean wait is load / (2 (1 - load)) (Pollaczek-Khinchine).
    chosen, now, requests = random.Random(7), 0.0, []
    for _ in range(30_000):
        now += chosen.expovariate(load)
        requests.append(LoadRequest(now, 1, 1))
    served = serve(requests, StepLimits(1, 1, 1000, PLAIN), second)
    assert fmean(one.ttft_s for one in served.answers) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert served.busy_s / served.end_s == pytest.approx(load, rel=0.02)


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 112 bytes"):
        serve([LoadRequest(0.0, 90, 12)], StepLimits(64, 8, 100, PLAIN), second)
    with pytest.raises(ValueError, match="below sequences=8"):
        serve([], StepLimits(4, 8, 100, PLAIN), second)
