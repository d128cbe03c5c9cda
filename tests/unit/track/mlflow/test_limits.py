from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from crossmesh.track.flatten import KEY_LIMIT
from crossmesh.track.mlflow.limits import metric_name


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
