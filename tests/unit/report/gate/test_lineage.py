from crossmesh.report.gate.lineage import link
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BACKEND, TAG_BASE, TAG_KIND, TAG_SUBJECT, TrackedRun

WAYS = {"greedy1": "greedy", "greedy2": "greedy", "sampled2": "sampled", "base": "greedy", "other": "sampled"}


def run(name, kind, adapter=None, base="llama", parent=None):
    tags = {TAG_KIND: kind, TAG_BASE: base, **({TAG_ADAPTER: adapter} if adapter else {})}
    return TrackedRun(name, name, "FINISHED", {**tags, **({"mlflow.parentRunId": parent} if parent else {})})


ONE, TWO = run("one", "train", "a1"), run("two", "train", "a2")


def examined(evaluation):
    return WAYS[evaluation.run_id]


def test_of_several_evaluations_the_one_that_most_trainings_share_is_taken():
    recent = [run("sampled2", "evaluate", "a2"), run("greedy2", "evaluate", "a2"), run("greedy1", "evaluate", "a1")]
    found = link([ONE, TWO], [], recent, examined)
    assert [one.run_id for one in found.of(ONE)] == ["greedy1"]
    assert [one.run_id for one in found.of(TWO)] == ["greedy2"]


def test_the_newest_benchmark_of_an_adapter_counts_and_those_of_others_do_not():
    recent = [run("new", "benchmark", "a1"), run("old", "benchmark", "a1"), run("stranger", "benchmark", "a9")]
    found = link([ONE, TWO], [], recent, examined)
    assert [one.run_id for one in found.of(ONE)] == ["new"]
    assert found.of(TWO) == []


def test_the_base_is_there_when_it_was_examined_in_the_same_way():
    recent = [run("greedy1", "evaluate", "a1"), run("other", "evaluate"), run("base", "evaluate")]
    assert link([ONE], [], recent, examined).base.run_id == "base"
    assert link([ONE], [], recent[1:], examined).base is None


def test_stages_of_one_pipeline_belong_together_without_digests():
    training = TrackedRun("t", "torch", "FINISHED", {TAG_KIND: "train", "mlflow.parentRunId": "p"})
    stage = TrackedRun("greedy1", "evaluate torch", "FINISHED", {TAG_KIND: "evaluate", "mlflow.parentRunId": "p"})
    elsewhere = TrackedRun("greedy2", "evaluate torch", "FINISHED", {TAG_KIND: "evaluate", "mlflow.parentRunId": "q"})
    assert link([training], [], [elsewhere, stage], examined).of(training) == [stage]


def test_what_was_asked_for_by_name_goes_before_the_newest_and_is_never_dropped():
    first, second = run("first", "benchmark", "a1"), run("second", "benchmark", "a1")
    found = link([ONE], [first, second], [run("new", "benchmark", "a1")], examined)
    assert list(found.of(ONE)) == [first]
    assert found.alone == (second,)
    assert link([], [first, second], [], examined).alone == (first, second)


def test_what_a_run_is_called_in_the_ui_decides_nothing():
    """Stages of a pipeline were found by the names of their runs, which people change."""
    under = {"mlflow.parentRunId": "p"}
    training = TrackedRun("t", "my best one", "FINISHED", {TAG_KIND: "train", TAG_BACKEND: "torch", **under})
    stage = TrackedRun("greedy1", "look at this", "FINISHED", {TAG_KIND: "evaluate", TAG_SUBJECT: "torch", **under})
    base = TrackedRun("base", "before", "FINISHED", {TAG_KIND: "evaluate", TAG_SUBJECT: "base", **under})
    impostor = TrackedRun("greedy2", "evaluate torch", "FINISHED", {TAG_KIND: "evaluate", TAG_SUBJECT: "jax", **under})
    found = link([training], [], [impostor, stage, base], examined)
    assert found.of(training) == [stage]
    assert found.base == base


def test_runs_from_before_the_tags_are_known_by_their_names():
    assert TrackedRun("t", "jax", "FINISHED").backend == "jax"
    assert TrackedRun("e", "evaluate jax", "FINISHED").subject == "jax"
    assert TrackedRun("e", "renamed", "FINISHED", {TAG_SUBJECT: "jax", TAG_BACKEND: "torch"}).subject == "jax"
