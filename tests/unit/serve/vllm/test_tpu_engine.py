"""Settings of a TPU engine against what the locked tpu-inference says of itself (`tests/support/tpu_wheel.py` read it in the wheel)."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray.util.tpu import get_chips_per_host, get_tpu_version_from_type

from crossmesh.config.compose import compose_spec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import BatchSpec, HardwareSpec
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.evaluate.answers import refused_parameter
from crossmesh.files import write_json
from crossmesh.hardware.catalogue import slices
from crossmesh.hardware.devices import Tpu
from crossmesh.models.weights.random_weights import architecture_config, architecture_names
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.vllm.settings import EngineSettings, engine_settings
from tpu_wheel import implementation

ADAPTER = ServedAdapter("a", Path("/forms/a"), 8)
TPUS = sorted(name for name, one in slices().items() if isinstance(one.device, Tpu) and one.device.chip != "v7x")


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return dict(json.loads((Path(__file__).parent / "tpu_inference.json").read_text()))


@pytest.fixture
def model(tmp_path: Path) -> ServedBase:
    return base(tmp_path, "tiny_llama")


def base(folder: Path, architecture: str) -> ServedBase:
    write_json(folder / "config.json", architecture_config(architecture))
    return ServedBase("base", folder, "d1gest", folder)


def on(hardware: str, model: ServedBase, *adapters: ServedAdapter, **serve: Any) -> EngineSettings:
    return engine_settings(
        ExperimentSpec(hardware=HardwareSpec(hardware), batch=BatchSpec(16, 1), serve=ServeSpec(**serve)), model, adapters
    )


def device_of(name: str) -> Tpu:
    device = slices()[name].device
    assert isinstance(device, Tpu)
    return device


def test_the_facts_are_of_the_locked_wheel(checkout: Path, facts: dict[str, Any]) -> None:
    lock = (checkout / "requirements" / "tpu-serve.txt").read_text()
    entry = re.search(r"^tpu-inference==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock, re.MULTILINE)
    assert entry is not None
    assert facts["wheel"].split("-")[1] == entry[1]
    assert facts["sha256"] in entry[2]


@pytest.mark.parametrize("name", architecture_names())
def test_adapters_of_every_architecture_are_served_by_an_implementation_that_takes_them(
    name: str, tmp_path: Path, facts: dict[str, Any]
) -> None:
    (architecture,) = architecture_config(name)["architectures"]
    model = base(tmp_path, name)
    for variables in (on("tpu_v6e_8", model, ADAPTER, tp=8).variables, on("tpu_v6e_8", model, tp=8, max_loras=2).variables):
        assert facts["adapters"][implementation(facts, architecture, variables)]
    # Without adapters the engine's own choice stands: its models in JAX are the ones that it is measured with.
    assert "MODEL_IMPL_TYPE" not in on("tpu_v6e_8", model, tp=8).variables


def test_left_to_itself_the_engine_would_take_models_without_adapters(facts: dict[str, Any]) -> None:
    asked = {architecture_config(name)["architectures"][0] for name in architecture_names()}
    assert {one for one in asked if not facts["adapters"][implementation(facts, one, {})]} == {
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Gemma4ForCausalLM",
    }


@pytest.mark.parametrize("name", TPUS)
def test_an_engine_of_a_whole_slice_has_a_process_on_each_host_of_it(name: str, model: ServedBase, facts: dict[str, Any]) -> None:
    device = device_of(name)
    # Ray Serve makes a bundle a host; where it counted hosts otherwise, an engine of one would wait for processes that never start.
    version = get_tpu_version_from_type(on(name, model, tp=device.chip_count()).llm_config["accelerator_type"])
    assert get_chips_per_host(device.topology, version) == device.chips_per_host
    variables = on(name, model, tp=device.chip_count()).variables
    assert variables["TPU_MULTIHOST_BACKEND"] in facts["choices"]["TPU_MULTIHOST_BACKEND"]
    assert variables["TPU_MULTIHOST_BACKEND"] == "ray"


@pytest.mark.parametrize("name", TPUS)
def test_stages_of_layers_are_for_chips_that_the_engine_counts_as_one_device(name: str, model: ServedBase, facts: dict[str, Any]) -> None:
    device = device_of(name)
    stages = {"tp": device.chips_per_host, "pp": device.hosts} if device.hosts > 1 else {"tp": device.chips_per_host // 2, "pp": 2}
    if device.accelerator_type.startswith(tuple(facts["chips_of_one_device"])):
        assert ("TPU_MULTIHOST_BACKEND" in on(name, model, **stages).variables) == (device.hosts > 1)
    else:
        with pytest.raises(InputError, match=rf"on {device.accelerator_type}: the engine gives a stage of layers half of its chips"):
            on(name, model, **stages)


def test_what_is_set_reaches_the_replica_and_the_processes_on_other_hosts(model: ServedBase, facts: dict[str, Any]) -> None:
    settings = on("tpu_v6e_16", model, ADAPTER, tp=16)
    ours = {"MODEL_IMPL_TYPE": "vllm", "TPU_MULTIHOST_BACKEND": "ray"}
    assert ours.items() <= environment(settings.kind).with_variables(**settings.variables).runtime_env["env_vars"].items()
    assert ours.keys() <= set(facts["copied_to_workers"])
    assert not ours.keys() & on("gpu_2xh100", model, ADAPTER, tp=2).variables.keys()
    assert not ours.keys() & on("cpu", model, ADAPTER).variables.keys()


def test_an_engine_on_a_part_of_one_host_computes_in_its_replica(model: ServedBase) -> None:
    assert "TPU_MULTIHOST_BACKEND" not in on("tpu_v6e_8", model, tp=1).variables
    # Ray's executor gives a stage a host of its own.
    assert "TPU_MULTIHOST_BACKEND" not in on("tpu_v6e_8", model, tp=4, pp=2).variables


@pytest.mark.parametrize(
    ("hardware", "serve", "said"),
    [
        (
            "tpu_v6e_16",
            {"tp": 8},
            r"serve\.tp=8 does not fill the 16 chips of v6e-16.*serve\.tp=16, or serve\.tp=4 with serve\.pp=4",
        ),
        ("tpu_v6e_16", {"tp": 1}, r"serve\.tp=1 does not fill the 16 chips"),
        ("tpu_v6e_16", {"tp": 8, "pp": 2}, r"serve\.tp=8 with serve\.pp=2 on 4 hosts of 4 chips: a stage"),
        ("tpu_v6e_16", {"tp": 2, "pp": 8}, r"serve\.tp=2 with serve\.pp=8 on 4 hosts of 4 chips: a stage"),
        ("tpu_v5p_16", {"tp": 4}, r"serve\.tp=4 does not fill the 8 chips of v5p-16: .*Allowed: serve\.tp=8; or a slice of one host"),
        ("tpu_v7x_8", {"tp": 4}, r"serve\.tp on v7x-8: .*half of the chips"),
        ("tpu_v6e_8", {"tp": 4, "replicas": 2}, r"serve\.tp=4 with up to 2 engines: .*Allowed: one engine, or serve\.tp=8"),
        ("tpu_v6e_8", {"tp": 1, "replicas": 0, "max_replicas": 2}, r"serve\.tp=1 with up to 2 engines"),
    ],
)
def test_what_would_wait_or_meet_on_one_host_is_refused(hardware: str, serve: dict[str, Any], said: str, model: ServedBase) -> None:
    with pytest.raises(InputError, match=said):
        on(hardware, model, **serve)


def test_engines_that_have_slices_of_their_own_may_be_several(model: ServedBase) -> None:
    assert on("tpu_v6e_8", model, tp=8, replicas=2).deployment["num_replicas"] == 2


@pytest.mark.parametrize("name", TPUS)
def test_the_options_of_the_tpu_group_are_ones_that_the_engine_has(name: str, conf: Path, model: ServedBase, facts: dict[str, Any]) -> None:
    spec = compose_spec(conf, "serve=tpu", f"hardware={name}", "batch.size=16", f"serve.tp={device_of(name).chip_count()}")
    arguments = engine_settings(spec, model, [ADAPTER]).engine_kwargs
    assert arguments["kv_cache_dtype"] in facts["cache_dtypes"]
    assert (arguments["max_model_len"], arguments["max_num_seqs"]) == (8192, 256)
    for dtype in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        engine_settings(replace(spec, serve=replace(spec.serve, kv_cache_dtype=dtype)), model)
        assert dtype in facts["cache_dtypes"]


def test_the_engine_guesses_by_ngrams_and_by_no_draft_model(facts: dict[str, Any], model: ServedBase) -> None:
    assert "ngram" in facts["speculative"]
    assert "draft_model" not in facts["speculative"]
    assert on("tpu_v6e_8", model, tp=8, speculative="ngram").engine_kwargs["speculative_config"]["method"] == "ngram"


def test_evaluations_leave_out_the_seed_that_the_engine_refuses(facts: dict[str, Any]) -> None:
    assert facts["refuses_seeds"]
    body = json.dumps(
        {"error": {"message": "JAX does not support per-request seed.", "type": "BadRequestError", "param": None, "code": 400}}
    )
    assert refused_parameter(body.encode(), {"temperature": 0.8, "max_tokens": 16, "seed": 7}) == "seed"


def test_no_chip_has_a_name_for_which_vllm_knows_step_tokens(facts: dict[str, Any]) -> None:
    """Hence `plan.serving.point` plans with the default of a device of unknown memory on every TPU."""
    vllm = find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    known = re.findall(r'chip_name == "(\w+)"', (Path(vllm.origin).parent / "engine" / "arg_utils.py").read_text())
    assert known == ["V6E", "V5E", "V5P"]
    assert all(name.strip("f'").startswith("TPU") for name in facts["device_names"])
    assert facts["device_memory"] == "raise NotImplementedError"
