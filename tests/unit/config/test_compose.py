"""Every shipped YAML composes and is valid; what cannot be is one message that names key, value, what is allowed and the nearest."""

import shutil
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from crossmesh.config.compose import compose_spec, run_job
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import JobKeys
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import BatchSpec
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.storage_check import Mount

CONF = Path(__file__).resolve().parents[3] / "conf"
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name not in ("job", "tune"))
CHOICES = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
# Mesh files that ask for more than one device need hardware that has them, and 16 chips a batch that divides.
NEEDS = {
    ("mesh", "fsdp_tp"): ["hardware=tpu_v5p_8"],
    ("hardware", "tpu_v6e_16"): ["batch.size=16"],
    ("bench", "trace"): ["bench.trace=a.csv"],
}


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_shipped_yaml_composes(group, option):
    spec = compose_spec(CONF, f"{group}={option}", *NEEDS.get((group, option), []))
    assert isinstance(spec, ExperimentSpec)


def test_defaults_stand_in_the_dataclasses_alone(own_storage):
    assert compose_spec(CONF) == ExperimentSpec(storage=StorageSpec(root=str(own_storage)))


def test_experiment_overrides_its_groups():
    spec = compose_spec(CONF, "experiment=demo")
    assert spec.name == "demo"
    assert spec.data.source == "rtl"


def test_the_command_line_wins_over_the_experiment():
    assert compose_spec(CONF, "experiment=demo", "data.max_length=200", "batch.micro=1").batch == BatchSpec(size=2, micro=1)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("batch.micr=3", ["batch.micr", "Did you mean batch.micro?", "batch.size"]),
        ("+batch.zzz=1", ["batch.zzz", "batch.micro"]),
        ("+fo=1", ["'fo'"]),
        ("modle=tiny_llama", ["modle", "Did you mean model?"]),
        ("model=tiny_gema4", ["tiny_gema4", "Did you mean model=tiny_gemma4?", "smollm2_135m"]),
        ("experiment=dmo", ["Did you mean experiment=demo?"]),
        ("batch.micro=many", ["batch.micro", "many", "a whole number"]),
        ("optim.steps=1.5", ["optim.steps", "1.5", "a whole number"]),
        ("batch.micro=3", ["batch.micro=3", "batch.size=8", "[1, 2, 4, 8]"]),
        ("lora.targets=[q,kk]", ["lora.targets", "'kk'", "down, gate, k, o, q, up, v", "Did you mean 'k'?"]),
        ("lora.targets=[]", ["lora.targets", "one or more"]),
        ("lora.targets=[q,q]", ["lora.targets", "each target once"]),
        ("model.dtype=float16", ["model.dtype", "float16", "bfloat16, float32"]),
        ("hardware.name=tpu_v5p8", ["hardware.name", "Did you mean 'tpu_v5p_8'?"]),
        ("mesh.tp=3", ["3", "1 devices"]),
        ("data.max_length=2", ["data.max_length=2", "at least 8"]),
        ("eval.k=[2]", ["eval.k=2", "eval.samples=1"]),
        ("eval.samples=3", ["eval.samples=3", "eval.temperature=0"]),
        ("eval.sandbox=docker", ["eval.sandbox", "bubblewrap, none"]),
        ("serve.adapters=[torch]", ["serve.adapters", "name:source"]),
        ("serve.max_lora_rank=8", ["serve.max_lora_rank=8", "lora.rank=16"]),
        ("storage.root=here", ["storage.root", "absolute"]),
        ("batch.micro=[1", ["[1"]),
        ("batch.size=2=3", ["Cannot read 'batch.size=2=3'", "quotes"]),
        ("storage.root=~/x", ["Cannot read 'storage.root=~/x'", "~ is not expanded"]),
        ("optim.steps=null", ["optim.steps", "null", "a whole number"]),
        ("optim.learning_rate=inf", ["optim.learning_rate=inf", "a finite number"]),
        ("eval.timeout_s=inf", ["eval.timeout_s=inf", "a finite number"]),
        ("lora.seed=-1", ["lora.seed=-1", "0 to 4294967295"]),
        ("data.rtl.seed=99999999999999999999", ["data.rtl.seed", "0 to 4294967295"]),
        ("optim.steps=99999999999", ["optim.steps=99999999999", "2147483647"]),
        ("lora.targets=q", ["lora.targets", "a list of texts, in brackets: [a,b]"]),
        ("lora.targets={a:1}", ["lora.targets", "a list of texts, in brackets: [a,b]"]),
        ("eval.k=null", ["eval.k", "in brackets: [1,2]"]),
        ("eval.k=[]", ["eval.k=[]", "one or more"]),
        ("data.rtl=5", ["data.rtl", "data.rtl.seed"]),
        ("model={a:1}", ["model.a", "model.weights"]),
        ("Batch.size=2", ["Batch.size", "Did you mean batch.size?"]),
        ("~batch.size", ["batch.size", "not taken away"]),
        ("model.weights=???", ["model.weights", "Missing"]),
        ("model.weights=${nope}", ["model.weights", "'nope' not found"]),
        ("name=../../etc", ["name='../../etc'", "it names a folder"]),
        ("name=", ["name=''", "it names a folder"]),
        ("serve.host=", ["serve.host", "127.0.0.1"]),
        ("serve.start_timeout_s=0", ["serve.start_timeout_s", "a positive number"]),
        ("serve.kv_cache_dtype=fp3", ["serve.kv_cache_dtype", "Did you mean 'fp8'?"]),
        ("tracking.experiment=", ["tracking.experiment", "a name"]),
        ("lora.rank_pattern={q_proj:0}", ["lora.rank_pattern.q_proj=0", "a positive number"]),
        ("lora.rank_pattern={q_proj:x}", ["lora.rank_pattern.q_proj", "a whole number"]),
        ("lora.alpha_pattern=3", ["lora.alpha_pattern", "a map, in braces: {q_proj:8}"]),
        ("lora.rank_pattern={q_proj:500}", ["serve.max_lora_rank=64", "lora.rank_pattern=500"]),
        ("packing.mode=strem", ["packing.mode", "none, step, stream", "Did you mean 'stream'?"]),
        ("packing.length=512", ["packing.length=512", "packing.mode=none"]),
        ("backend.remat=all", ["backend.remat", "dots, layer, none"]),
        ("backend.compile=true", ["backend.compile", "layer, none"]),
        ("backend.attention=splash", ["backend.attention=splash", "torch backend", "plain, sdpa, flex, flash, auto"]),
        ("backend.attention=flash", ["backend.attention=flash", "GPU hardware only", "plain, sdpa, auto"]),
        ("model.quantization=int4", ["model.quantization", "nf4, none"]),
        ("hardware.cpu_devices=0", ["hardware.cpu_devices=0", "a positive number"]),
        ("mesh.dcn=0", ["mesh.dcn=0", "a positive number of slices"]),
        ("checkpoint.keep=0", ["checkpoint.keep=0", "a positive number"]),
        ("retry.failures=-1", ["retry.failures=-1", "zero or more"]),
    ],
)
def test_bad_input_is_one_clear_message(override, parts):
    with pytest.raises(InputError) as caught:
        compose_spec(CONF, override)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_batch_that_does_not_divide_names_the_sizes_that_do_at_once():
    with pytest.raises(InputError, match=r"batch\.micro one of \[1, 2, 3, 6, 7, .*, 2147483646\]"):
        compose_spec(CONF, "batch.size=2147483646", "batch.micro=4")


@pytest.mark.parametrize(("hardware", "micro", "accumulation"), [("cpu", 8, 1), ("tpu_v5p_8", 2, 1), ("gpu_2xh100", 4, 1)])
def test_micro_batch_is_a_ranks_whole_share_unless_named(hardware, micro, accumulation):
    spec = compose_spec(CONF, f"hardware={hardware}")
    assert (spec.micro_batch, spec.accumulation) == (micro, accumulation)
    assert compose_spec(CONF, f"hardware={hardware}", "batch.micro=1").accumulation == 8 // spec.mesh_shape.dp_size
    assert compose_spec(CONF, f"hardware={hardware}", "packing=step").micro_batch == 1


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("packing=step", "packing.length=128", "data.max_length=256"), ["packing.length=128", "data.max_length=256", "does not fit"]),
        (("lora=none", "model.quantization=nf4"), ["model.quantization=nf4", "lora.rank=0", "cannot be trained"]),
        (("lora=none", "lora.dropout=0.1"), ["lora.dropout=0.1", "lora.rank=0"]),
        (("backend=jax", "backend.compile=layer"), ["backend.compile=layer", "always compiles the whole step", "Allowed with jax: none"]),
        (("backend.compile=layer", "backend.remat=dots"), ["backend.compile=layer", "backend.remat=dots", "backend.remat=layer or none"]),
        (("backend=jax", "backend.attention=splash"), ["backend.attention=splash", "TPU hardware only", "Allowed there: plain, auto"]),
        (("hardware=gpu_2xh100", "hardware.cpu_devices=2"), ["hardware.cpu_devices=2", "splits a CPU only"]),
        (("hardware.cpu_devices=4", "mesh.fsdp=3"), ["3 positions for 4 devices"]),
        (("hardware.cpu_devices=4", "mesh.dcn=2", "mesh.fsdp=8"), ["8 positions for 4 devices"]),
    ],
)
def test_settings_that_do_not_go_together_are_one_clear_message(overrides, parts):
    with pytest.raises(InputError) as caught:
        compose_spec(CONF, *overrides)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "kernel"),
    [
        (("hardware=cpu", "backend=torch"), "sdpa"),
        (("hardware=cpu", "backend=jax"), "plain"),
        (("hardware=gpu_2xh100", "backend.attention=flash"), "flash"),
        (("hardware=tpu_v5p_8",), "splash"),
        (("hardware=tpu_v5p_8", "backend.attention=plain"), "plain"),
    ],
)
def test_the_attention_kernel_follows_backend_and_hardware_unless_named(overrides, kernel):
    assert compose_spec(CONF, *overrides).attention == kernel


def test_a_cpu_is_split_into_the_devices_asked_for_and_slices_multiply_the_batch_ways():
    spec = compose_spec(CONF, "hardware.cpu_devices=4", "mesh=fsdp_tp", "mesh.dcn=2")
    assert spec.mesh_shape == MeshShape(data=1, fsdp=2, tp=2, dcn=2)
    assert (spec.mesh_shape.devices, spec.mesh_shape.dp_size, spec.micro_batch) == (8, 4, 2)


def test_a_packed_sequence_is_as_long_as_the_longest_row_unless_named():
    assert compose_spec(CONF, "packing=step", "data.max_length=192").sequence_length == 192
    assert compose_spec(CONF, "packing=step", "data.max_length=192", "packing.length=512").sequence_length == 512


def test_backend_follows_the_hardware_unless_named():
    assert compose_spec(CONF, "hardware=tpu_v5p_8").backend_name == "jax"
    assert compose_spec(CONF, "hardware=gpu_2xh100").backend_name == "torch"
    assert compose_spec(CONF, "hardware=gpu_2xh100", "backend=jax").backend_name == "jax"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "/x"), RuntimeError("ray::f()\n ... I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_is_one_message(error, monkeypatch, capsys):
    def run(job):
        raise error

    monkeypatch.setattr("sys.argv", ["lengths.py"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # What run_job sets, given back after the test.
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ended:
        run_job("lengths", JobKeys, run, CONF)
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("crossmesh: No space left on device. The job writes under storage.root=")
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["-m", "batch.micro=1,2"]])
def test_a_storage_that_is_a_bucket_is_refused_before_the_job_starts(arguments, monkeypatch, capsys):
    started = []

    def run(job):
        started.append(job)

    monkeypatch.setattr("crossmesh.storage_check.mount_of", lambda _: Mount("/mnt", "fuse.gcsfuse", "bucket"))
    monkeypatch.setattr("sys.argv", ["finetune.py", *arguments])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # What run_job sets, given back after the test.
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as ended:
        run_job("finetune", JobKeys, run, CONF, sweep=started.extend, slow=True)
    assert (ended.value.code, started) == (2, [])
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("crossmesh: storage.root=")
    assert "gcsfuse has no atomic rename" in said
    assert said.count("\n") == 1 + bool(arguments)


def test_any_other_failure_keeps_its_traceback(monkeypatch):
    def run(job):
        raise RuntimeError("a bug")

    monkeypatch.setattr("sys.argv", ["lengths.py"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # What run_job sets, given back after the test.
    GlobalHydra.instance().clear()
    with pytest.raises(RuntimeError, match="a bug"):
        run_job("lengths", JobKeys, run, CONF)


def test_an_unknown_key_inside_a_shipped_file_is_named(tmp_path):
    broken = tmp_path / "conf"
    shutil.copytree(CONF, broken)
    (broken / "batch" / "wrong.yaml").write_text("sise: 4\n")
    with pytest.raises(InputError, match=r"batch\.sise.*Did you mean batch\.size"):
        compose_spec(broken, "batch=wrong")


def test_ranks_and_alphas_by_module_are_maps_of_any_names():
    spec = compose_spec(CONF, "lora.rank_pattern={layers.0.self_attn.q_proj:8,o_proj:2}", "lora.alpha_pattern={up_proj:3}")
    assert spec.lora.rank_pattern == {"layers.0.self_attn.q_proj": 8, "o_proj": 2}
    assert spec.lora.alpha_pattern == {"up_proj": 3.0}
