"""A run that contradicts itself is refused, by name and by what disagrees."""

from dataclasses import replace

import pytest

from crossmesh.errors import InputError
from crossmesh.report.integrity import check_contents, check_examined, check_identity, check_optimizer, check_trained
from crossmesh.spec.fingerprint import Record, trained_record, trial_identity
from crossmesh.track.tracker import TAG_EVALUATION, TAG_IDENTITY, TAG_PROVENANCE, TAG_SCIENCE, TAG_SYSTEM, TrackedRun

SCIENCE = Record({"optimizer": {"learning_rate": 2e-4, "steps": 30, "warmup_steps": 3}})
SYSTEM = Record({"backend": "torch"})
OTHER = Record({"optimizer": {"learning_rate": 1e-4, "steps": 30, "warmup_steps": 3}})
RECORD = {"task": "rtl", "judge": {"code": "a"}, "engine": {"dtype": "float32"}}
RUN = TrackedRun(
    "r" * 32,
    "torch",
    "FINISHED",
    tags={
        TAG_SCIENCE: SCIENCE.digest,
        TAG_SYSTEM: SYSTEM.digest,
        TAG_PROVENANCE: Record({"python": "3.11"}).digest,
        TAG_EVALUATION: Record(RECORD).digest,
        TAG_IDENTITY: trial_identity(SCIENCE, SYSTEM),
    },
    params={"optim.learning_rate": "0.0002", "optim.steps": "30", "optim.warmup_steps": "100"},
)


def tagged(**tags):
    names = {"science": TAG_SCIENCE, "system": TAG_SYSTEM, "identity": TAG_IDENTITY}
    return replace(RUN, tags={**RUN.tags, **{names[key]: value for key, value in tags.items()}})


def test_a_run_as_it_was_made_passes():
    for scope, contents in (
        ("science", SCIENCE.contents),
        ("system", SYSTEM.contents),
        ("provenance", {"python": "3.11"}),
        ("evaluation", RECORD),
    ):
        check_contents(RUN, scope, contents)
    check_identity(RUN)
    check_optimizer(RUN, SCIENCE.contents)
    check_trained(RUN, trained_record(SCIENCE, SYSTEM, "adapter"))
    check_examined(RUN, RECORD, {"comparable_on": {"task": "rtl", "judge": {"code": "a"}}})


@pytest.mark.parametrize("scope", ["science", "system", "provenance", "evaluation"])
def test_contents_that_were_edited_are_refused(scope):
    with pytest.raises(InputError, match=rf"run r{{32}} \(torch\) contradicts itself: records/{scope}\.json has the digest"):
        check_contents(RUN, scope, {"edited": True})


def test_a_tag_that_was_edited_is_refused():
    with pytest.raises(InputError, match=r"crossmesh\.science says"):
        check_contents(tagged(science=OTHER.digest), "science", SCIENCE.contents)
    # The tag and the contents together: the identity is of another science.
    both = tagged(science=OTHER.digest)
    check_contents(both, "science", OTHER.contents)
    with pytest.raises(InputError, match=r"crossmesh\.identity"):
        check_identity(both)
    # All three: what lies beside the adapter still says it, and so do the parameters, which MLflow does not change.
    three = tagged(science=OTHER.digest, identity=trial_identity(OTHER, SYSTEM))
    check_identity(three)
    with pytest.raises(InputError, match=r"beside its adapter has the science"):
        check_trained(three, trained_record(SCIENCE, SYSTEM, "adapter"))
    with pytest.raises(InputError, match=r"optimizer\.learning_rate=0\.0001, and its parameter optim\.learning_rate is 0\.0002"):
        check_optimizer(three, OTHER.contents)


def test_a_result_that_was_examined_otherwise_than_its_record_says_is_refused():
    with pytest.raises(InputError, match=r"records/evaluation\.json and result\.json differ in judge"):
        check_examined(RUN, RECORD, {"comparable_on": {"task": "rtl", "judge": {"code": "b"}}})


def test_an_older_run_without_a_tag_is_not_accused():
    check_contents(replace(RUN, tags={}), "evaluation", RECORD)
    check_identity(replace(RUN, tags={}))
    check_trained(replace(RUN, tags={}), {})
