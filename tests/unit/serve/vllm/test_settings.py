import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import BatchSpec, HardwareSpec, ModelSpec
from crossmesh.errors import InputError
from crossmesh.files import write_json
from crossmesh.models.weights.random_weights import architecture_config, architecture_names
from crossmesh.serve.adapters import ServedAdapter, ServedBase, serving_rank
from crossmesh.serve.vllm.settings import CPU_LORA_WORKER, engine_settings


@pytest.fixture
def model(tmp_path: Path) -> ServedBase:
    folder = tmp_path / "model"
    folder.mkdir()
    write_json(folder / "config.json", architecture_config("tiny_llama"))
    return ServedBase("base", folder, "d1gest", tmp_path / "forms")


def adapter(name: str, rank: int) -> ServedAdapter:
    return ServedAdapter(name, Path("/forms") / name, rank)


def on(hardware: str, **serve: object) -> ExperimentSpec:
    return ExperimentSpec(hardware=HardwareSpec(hardware), batch=BatchSpec(8, 1), serve=ServeSpec(**serve))


def test_an_engine_on_a_cpu_reserves_one_core_and_a_fixed_cache(model: ServedBase) -> None:
    settings = engine_settings(on("cpu", kv_cache_gib=0.5), model)
    assert settings.kind == "serve/vllm-cpu"
    assert settings.models == ("base",)
    assert settings.engine_kwargs["kv_cache_memory_bytes"] == 1 << 29
    assert "gpu_memory_utilization" not in settings.engine_kwargs
    assert "enable_lora" not in settings.engine_kwargs
    assert settings.deployment["placement_group_bundles"] == [{"CPU": 1}]
    assert settings.llm_config["placement_group_config"] == {"bundles": [{"CPU": 1}]}


def test_only_what_the_adapters_need_is_allocated(model: ServedBase) -> None:
    adapters = [adapter("torch", 4), adapter("jax", 12)]
    settings = engine_settings(on("cpu"), model, adapters)
    assert settings.models == ("base", "torch", "jax")
    assert settings.adapters == {"torch": "/forms/torch", "jax": "/forms/jax"}
    assert settings.engine_kwargs["max_loras"] == 2
    assert settings.engine_kwargs["max_lora_rank"] == 16
    assert settings.engine_kwargs["worker_cls"] == CPU_LORA_WORKER
    assert "worker_cls" not in engine_settings(on("gpu_2xh100"), model, adapters).engine_kwargs


def test_an_engine_with_room_for_more_adapters_takes_any_rank_up_to_the_limit(model: ServedBase) -> None:
    empty = engine_settings(on("cpu", max_loras=3, max_lora_rank=20), model).engine_kwargs
    assert (empty["enable_lora"], empty["max_loras"], empty["max_lora_rank"], empty["worker_cls"]) == (True, 3, 32, CPU_LORA_WORKER)
    full = engine_settings(on("cpu", max_loras=1), model, [adapter("a", 4), adapter("b", 4)]).engine_kwargs
    assert (full["max_loras"], full["max_cpu_loras"], full["max_lora_rank"]) == (1, 2, 8)


@pytest.mark.parametrize(("needed", "rank"), [(1, 1), (2, 8), (17, 32), (64, 64)])
def test_rank_is_rounded_to_what_vllm_allocates(needed: int, rank: int) -> None:
    assert serving_rank(needed) == rank


def test_rank_over_the_limits_is_refused(model: ServedBase) -> None:
    with pytest.raises(InputError, match=r"'b' has rank 65, over serve\.max_lora_rank=64"):
        engine_settings(on("cpu"), model, [adapter("a", 8), adapter("b", 65)])
    with pytest.raises(InputError, match="largest LoRA rank is 512"):
        serving_rank(513)


def test_dtype_follows_the_model_unless_the_server_says_otherwise(model: ServedBase) -> None:
    spec = ExperimentSpec(model=ModelSpec(dtype="bfloat16"))
    assert engine_settings(spec, model).engine_kwargs["dtype"] == "bfloat16"
    spec = ExperimentSpec(model=ModelSpec(dtype="bfloat16"), serve=ServeSpec(dtype="float32"))
    assert engine_settings(spec, model).engine_kwargs["dtype"] == "float32"


def test_sampling_defaults_hidden_in_the_model_folder_do_not_count(model: ServedBase) -> None:
    assert engine_settings(on("cpu"), model).engine_kwargs["generation_config"] == "vllm"


def test_tensor_parallel_on_gpus_is_one_bundle_a_gpu_with_the_replica_in_the_first(model: ServedBase) -> None:
    settings = engine_settings(on("gpu_2xh100", tp=2), model)
    assert settings.deployment["placement_group_bundles"] == [
        {"GPU": 1, "accelerator_type:H100": 0.001, "CPU": 1},
        {"GPU": 1, "accelerator_type:H100": 0.001},
    ]
    assert settings.llm_config["accelerator_type"] == "H100"
    assert settings.engine_kwargs["tensor_parallel_size"] == 2


def test_pipeline_stages_and_replicas_are_placed_on_chips_of_their_own(model: ServedBase) -> None:
    settings = engine_settings(on("gpu_8xh100", tp=2, pp=3, replicas=2), model)
    assert len(settings.deployment["placement_group_bundles"]) == 6
    assert (settings.engine_kwargs["pipeline_parallel_size"], settings.chips) == (3, 6)
    assert settings.deployment["num_replicas"] == 2
    with pytest.raises(InputError, match=r"serve\.tp=4 with serve\.pp=3 is more than the 8 chips"):
        engine_settings(on("gpu_8xh100", tp=4, pp=3), model)


def test_a_new_version_starts_beside_the_old_one_which_may_finish(model: ServedBase) -> None:
    deployment = engine_settings(on("cpu", request_timeout_s=77), model).deployment
    assert (deployment["max_surge_percent"], deployment["graceful_shutdown_timeout_s"]) == (100, 77)


def test_on_an_emulated_cluster_the_chips_are_reserved_and_a_cpu_engine_computes(
    model: ServedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSMESH_EMULATE", "1")
    settings = engine_settings(on("gpu_2xh100", tp=2, kv_cache_dtype="fp8"), model, [adapter("a", 4)])
    assert settings.kind == "serve/vllm-cpu"
    assert settings.llm_config["accelerator_type"] == "H100"
    assert settings.llm_config["engine_kwargs"]["tensor_parallel_size"] == 2
    assert [bundle["GPU"] for bundle in settings.deployment["placement_group_bundles"]] == [1, 1]
    assert (settings.engine_kwargs["tensor_parallel_size"], settings.engine_kwargs["kv_cache_dtype"]) == (1, "auto")
    assert settings.engine_kwargs["worker_cls"] == CPU_LORA_WORKER
    assert engine_settings(on("cpu"), model).stand_in is None


@pytest.mark.parametrize(("hardware", "chip", "topology"), [("tpu_v5p_8", "TPU-V5P", "2x2x1"), ("tpu_v6e_8", "TPU-V6E", "2x4")])
def test_a_tpu_slice_is_named_by_chip_and_topology_and_reserved_by_the_replica(
    model: ServedBase, hardware: str, chip: str, topology: str
) -> None:
    settings = engine_settings(on(hardware, tp=4), model)
    assert settings.llm_config["accelerator_type"] == chip
    assert settings.llm_config["accelerator_config"] == {"kind": "tpu", "topology": topology}
    assert "placement_group_bundles" not in settings.deployment


def test_more_chips_than_there_are_is_refused(model: ServedBase) -> None:
    with pytest.raises(InputError, match=r"serve\.tp=4 is more than the 2 chips of h100"):
        engine_settings(on("gpu_2xh100", tp=4), model)


def test_a_folder_that_is_no_model_and_a_name_used_twice_are_named(model: ServedBase, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json is missing"):
        engine_settings(on("cpu"), ServedBase("base", tmp_path, "", tmp_path))
    with pytest.raises(InputError, match=r"serve\.adapters: the name 'a' is used twice"):
        engine_settings(on("cpu"), model, [adapter("a", 4), adapter("a", 8)])


@pytest.mark.parametrize("inside", [False, True])
def test_adapters_of_a_model_with_experts_are_refused_on_a_cpu_only(model: ServedBase, inside: bool) -> None:
    experts = architecture_config("tiny_gemma4_moe")
    write_json(model.folder / "config.json", {"model_type": "gemma4", "text_config": experts} if inside else experts)
    with pytest.raises(InputError, match=r"has experts, .* on a CPU.*mode=merged"):
        engine_settings(on("cpu"), model, [adapter("a", 8)])
    engine_settings(on("cpu"), model)
    arguments = engine_settings(on("gpu_1xh100"), model, [adapter("a", 8)]).engine_kwargs
    assert arguments["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("name", [name for name in architecture_names() if name.startswith("tiny_")])
def test_vllm_serves_every_family_and_its_adapters(name: str) -> None:
    """Read in vLLM's sources, which take half a minute to import."""
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    models = Path(found.origin).parent / "model_executor" / "models"
    (asked,) = architecture_config(name)["architectures"]
    entry = re.search(rf'"{asked}": \(\s*"(\w+)",\s*"(\w+)"', (models / "registry.py").read_text())
    assert entry is not None
    if entry[1] == "transformers":  # vLLM's backend for models that it has no code of its own for: all of them take adapters.
        assert re.search(r"class Base\([^)]*SupportsLoRA", (models / "transformers" / "base.py").read_text())
        return
    assert re.search(rf"class {entry[2]}\([^)]*(SupportsLoRA|LlamaForCausalLM)", (models / f"{entry[1]}.py").read_text())
