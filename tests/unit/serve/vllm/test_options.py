"""Options of an engine become vLLM's arguments, and what an accelerator's engine cannot do is refused by its key."""

from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.serving import ServeSpec
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.serve.vllm.options import capacity, check_options, compile_variables, option_arguments, scaling, service_limits


def test_defaults_are_one_engine_with_chunked_prefill_and_a_prefix_cache() -> None:
    assert option_arguments(ServeSpec()) == {"tensor_parallel_size": 1, "enable_chunked_prefill": True, "enable_prefix_caching": True}
    assert scaling(ServeSpec()) == {"num_replicas": 1}


def test_speculation_is_vllms_own_dictionary() -> None:
    ngram = option_arguments(ServeSpec(speculative="ngram", speculative_tokens=5))["speculative_config"]
    assert ngram == {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    draft = option_arguments(ServeSpec(speculative="draft", draft_model="/models/small"))["speculative_config"]
    assert draft == {"method": "draft_model", "model": "/models/small", "num_speculative_tokens": 3}


def test_an_embedding_engine_pools_and_generates_nothing() -> None:
    assert option_arguments(ServeSpec(task="embed")) == {"tensor_parallel_size": 1, "runner": "pooling", "convert": "embed"}


def test_engines_follow_the_load_between_limits_also_to_none() -> None:
    found = scaling(ServeSpec(replicas=0, max_replicas=3, target_ongoing_requests=4, scale_down_s=20))["autoscaling_config"]
    assert found == {
        "min_replicas": 0,
        "max_replicas": 3,
        "initial_replicas": 1,
        "target_ongoing_requests": 4,
        "downscale_delay_s": 20,
    }
    assert scaling(ServeSpec(replicas=2, max_replicas=3))["autoscaling_config"]["target_ongoing_requests"] == 16
    assert capacity(ServeSpec(replicas=0, max_replicas=3, max_num_seqs=8, max_queue=10)) == 34


def test_limits_are_what_decides_how_many_answer_and_whom_they_turn_away() -> None:
    fixed = {"replicas": 1, "max_replicas": 1, "max_queue": 1024, "request_timeout_s": 600.0}
    assert service_limits(ServeSpec()) == service_limits(ServeSpec(max_replicas=1)) == fixed
    # What moves the number of engines says nothing where that number is fixed.
    assert service_limits(ServeSpec(target_ongoing_requests=4, scale_down_s=20)) == fixed
    moving = {"replicas": 1, "max_replicas": 2, "target_ongoing_requests": 16.0, "scale_down_s": 300.0}
    assert service_limits(ServeSpec(max_replicas=2)) == {**fixed, **moving}
    assert service_limits(ServeSpec(max_replicas=2, target_ongoing_requests=16)) == service_limits(ServeSpec(max_replicas=2))


def test_what_is_compiled_is_kept_on_the_volume() -> None:
    assert compile_variables(ServeSpec(compile_cache="/mnt/c")) == {"VLLM_CACHE_ROOT": "/mnt/c", "VLLM_XLA_CACHE_PATH": "/mnt/c/xla_cache"}


@pytest.mark.parametrize(
    ("hardware", "options", "said"),
    [
        ("cpu", {"compile_cache": "/c"}, r"serve\.compile_cache: the CPU engine compiles nothing"),
        ("cpu", {"kv_cache_dtype": "bfloat16"}, r"serve\.kv_cache_dtype=bfloat16: .*Allowed: auto, fp8"),
        ("cpu", {"pp": 2}, r"serve\.tp=1 with serve\.pp=2 is more than the 1 chips of cpu"),
        ("tpu_v6e_8", {"kv_cache_dtype": "float16"}, r"serve\.kv_cache_dtype=float16: TPUs"),
        ("tpu_v6e_16", {"tp": 10}, r"serve\.tp=10 does not fill the 16 chips of v6e-16"),
        ("gpu_2xh100", {"disaggregated": True}, r"serve\.disaggregated=true is not possible: .*NIXL"),
        ("gpu_2xh100", {"task": "embed", "max_loras": 1}, r"serve\.task=embed serves no adapters"),
        ("gpu_2xh100", {"task": "embed", "speculative": "ngram"}, r"serve\.speculative=ngram with serve\.task=embed"),
        ("gpu_2xh100", {"speculative": "draft", "draft_model": "/no/such"}, r"serve\.draft_model='/no/such' holds no model"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_its_key(hardware: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_options(ServeSpec(**options), find_slice(hardware).device)


def test_draft_models_are_for_engines_that_have_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    draft = ServeSpec(speculative="draft", draft_model=str(tmp_path))
    check_options(draft, find_slice("gpu_1xh100").device)
    with pytest.raises(InputError, match=r"serve\.speculative=draft: vLLM's TPU engine has no draft models"):
        check_options(draft, find_slice("tpu_v6e_8").device)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "v1"}, r"serve\.name='v1'"),
        ({"name": "Two Words"}, r"serve\.name='Two Words'"),
        ({"tls_cert": "/c.pem"}, r"serve\.tls_cert and serve\.tls_key belong together"),
        ({"tls_cert": "c.pem", "tls_key": "/k.pem"}, r"serve\.tls_cert='c\.pem'.*absolute"),
        ({"speculative": "draft"}, r"serve\.draft_model=''"),
        ({"draft_model": "/m"}, r"serve\.speculative=none with serve\.draft_model='/m'"),
        ({"speculative": "draftt", "draft_model": "/m"}, "Did you mean 'draft'"),
        ({"replicas": 0}, r"serve\.replicas=0 is not possible.*serve\.max_replicas=1"),
        ({"replicas": 3, "max_replicas": 2}, r"serve\.max_replicas=2.*serve\.replicas=3 at least"),
        ({"max_queue": -1}, r"serve\.max_queue=-1"),
        ({"request_timeout_s": 0}, r"serve\.request_timeout_s=0"),
    ],
)
def test_keys_that_do_not_go_together_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ServeSpec(**options)
