"""Every key of the spec says what it decides."""

from crossmesh.config.classes import CLASSES, KEY_CLASSES, leaves, settings
from crossmesh.config.experiment import ExperimentSpec


def test_every_key_has_joined_a_class() -> None:
    """A new key joins `KEY_CLASSES`, and gets a row in `tests/unit/report/gate/test_unlike.py`."""
    assert sorted(key for key, _ in leaves(ExperimentSpec())) == sorted(KEY_CLASSES)
    for key, classes in KEY_CLASSES.items():
        assert classes, key
        assert set(classes) <= set(CLASSES), key
        assert len(set(classes)) == len(classes), key


def test_settings_are_those_of_a_group_that_decide_nothing() -> None:
    found = settings(ExperimentSpec(), ("name", "checkpoint", "eval"))
    assert set(found) == {
        "name",
        *(f"checkpoint.{key}" for key in ("every_steps", "every_minutes", "keep", "target")),
        *(f"eval.{key}" for key in ("only", "model", "api_key_env", "k", "concurrency", "workers")),
    }
    assert found["eval.k"] == [1]
