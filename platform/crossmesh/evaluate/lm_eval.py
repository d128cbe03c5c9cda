"""Tasks of lm-evaluation-harness, run by its own package against an OpenAI endpoint.

The harness runs as a program in an environment of its own (`eval/lm-eval`), asks through chat completions, and keeps every answer; ours is
to start it, show its progress and read what it found. Tasks that score given answers need log-probabilities of prompts, which chat
completions do not give: the harness refuses them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from crossmesh.environments import environment, made_harness
from crossmesh.errors import CrossmeshError, InputError, reading
from crossmesh.evaluate.harness import Progress, sampling_record
from crossmesh.evaluate.judge import silent
from crossmesh.evaluate.passk import estimate
from crossmesh.evaluate.results import RECORD_FORM, RESULT, EvalResult, SplitResult
from crossmesh.files import canonical_json, digest_text, write_json, write_text
from crossmesh.origin import Origin, ServerChangedError
from crossmesh.spec.evaluation import EvalSpec

KIND = "eval/lm-eval"
REQUIREMENT = "lm-eval[api]==0.4.13"
_VARIABLE = "CROSSMESH_PYTHON_EVAL_LM_EVAL"
_PROGRESS = re.compile(r"Requesting API:.*?(\d+)/(\d+)")
_LAST_LINES = 15
_MAX_RETRIES = 6
_LOOK_S = 2.0


def harness_python() -> tuple[str, str]:
    """Return the interpreter that has lm-evaluation-harness, and the harness's version.

    Raises:
        InputError: it does not have it.
    """
    made = made_harness()
    python = environment(KIND).python or (str(made) if made.is_file() else sys.executable)
    look = "import importlib.metadata, importlib.util, sys; importlib.util.find_spec('lm_eval') or sys.exit(1)"
    look += "; print(importlib.metadata.version('lm_eval'))"
    try:
        found = subprocess.run([python, "-c", look], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"{_VARIABLE}={python!r} cannot be started: {error.strerror}. Give the path of a Python interpreter.") from error
    if found.returncode:
        raise InputError(
            f"eval.task=lm_eval needs lm-evaluation-harness, which {python} does not have. Run `make harness`, or install "
            f"{REQUIREMENT} into an environment of its own and set {_VARIABLE} to its interpreter."
        )
    return python, found.stdout.strip()


def check_tasks(eval_spec: EvalSpec) -> None:
    """Raise `InputError` when no task is named."""
    if not eval_spec.tasks:
        raise InputError("eval.task=lm_eval needs the names of tasks: eval.tasks=[gsm8k]. `lm_eval ls tasks` lists them.")


def evaluate_harness(
    base_url: str,
    api_key: str,
    model: str,
    eval_spec: EvalSpec,
    folder: Path,
    on_progress: Progress = silent,
    *,
    origin: Origin | None = None,
) -> EvalResult:
    """Run `eval.tasks` on `model` and leave the harness's files, `judged.jsonl` and `result.json` in `folder`.

    Started again in the same folder, answers that came are not asked for again.

    Raises:
        InputError: the harness is missing, or no task is named.
        CrossmeshError: the harness failed; its last lines are in the message.
        ServerChangedError: another server has answered than `origin` (None: the one that answers now); no answer is kept.
    """
    check_tasks(eval_spec)
    (python, _), began = harness_python(), time.monotonic()
    origin = origin or Origin(base_url, api_key)
    kept = folder / "harness"
    kept.mkdir(parents=True, exist_ok=True)
    for old in kept.glob("**/*.json*"):  # Of an earlier start; the answers are in its cache.
        old.unlink()
    variables = {**os.environ, **environment(KIND).variables, "OPENAI_API_KEY": api_key}
    command = [python, "-m", "lm_eval", "run", *_arguments(base_url, model, eval_spec, kept)]
    try:
        _run(command, variables, _looking(on_progress, origin))
        origin.check()
    except ServerChangedError:
        shutil.rmtree(kept)
        raise
    result = _read(kept, model, eval_spec, folder / "judged.jsonl", time.monotonic() - began)
    write_json(folder / RESULT, result.to_json())
    return result


def _looking(on_progress: Progress, origin: Origin) -> Progress:
    """Progress that looks at the server every few seconds: the harness does not pass on what an answer says of it."""
    looked = time.monotonic()

    def heard(stage: str, done: int, total: int) -> None:
        nonlocal looked
        if time.monotonic() - looked > _LOOK_S:
            origin.check(1)
            looked = time.monotonic()
        on_progress(stage, done, total)

    return heard


def _arguments(base_url: str, model: str, spec: EvalSpec, kept: Path) -> list[str]:
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    settings = {"base_url": url, "model": model, "num_concurrent": spec.concurrency, "max_retries": _MAX_RETRIES, "seed": spec.seed}
    sampling = {"temperature": spec.temperature, "top_p": spec.top_p, "max_gen_toks": spec.max_tokens}
    arguments = ["--model", "local-chat-completions", "--model_args", *_pairs(settings), "--gen_kwargs", *_pairs(sampling)]
    arguments += ["--tasks", ",".join(spec.tasks), "--apply_chat_template", "--log_samples"]
    arguments += ["--output_path", str(kept), "--use_cache", str(kept / "answers")]
    return [*arguments, "--include_path", str(Path(spec.path).expanduser().absolute())] if spec.path else arguments


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _run(command: list[str], variables: Mapping[str, str], on_progress: Progress) -> None:
    """Run the harness to its end; on any error, Ctrl-C included, it is ended as well."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if process.stdout is None:
            raise AssertionError("the harness was started without a pipe")
        for line in _lines(process.stdout):
            if progress := _PROGRESS.search(line):
                on_progress("generate", int(progress[1]), int(progress[2]))
            elif line.strip():
                last.append(line.rstrip())
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if code:
        said = "\n".join(last)
        if "NotImplementedError" in said and "oglikelihood" in said:
            raise InputError(
                "One of eval.tasks scores given answers (multiple choice), which needs log-probabilities of prompts; chat completions do "
                "not give them. Allowed: tasks of output_type generate_until, such as gsm8k or ifeval."
            )
        raise CrossmeshError(f"lm-evaluation-harness ended with exit code {code}. Answers are kept; its last lines:\n{said}")


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines of output as they come; a progress bar ends its lines with a carriage return."""
    rest = b""
    while block := os.read(stream.fileno(), 1 << 16):
        *whole, rest = re.split(rb"[\r\n]", rest + block)
        yield from (line.decode(errors="replace") for line in whole)
    yield rest.decode(errors="replace")


def _read(kept: Path, model: str, spec: EvalSpec, judged: Path, seconds: float) -> EvalResult:
    """Turn the harness's files into a result: its own metrics as they are, and what is right or wrong for each document as a split."""
    aggregated = next(kept.glob("**/results_*.json"), None)
    if aggregated is None:
        raise CrossmeshError(f"lm-evaluation-harness left no results in {kept}.")
    with reading(aggregated, "results of lm-evaluation-harness"):
        found = json.loads(aggregated.read_text(encoding="utf-8"))
        samples = {task: _samples(kept, task) for task in found["configs"]}
        hashes = {task: found["task_hashes"].get(task, "") for task in samples}
        record = {
            "form": RECORD_FORM,
            "task": spec.task,
            "task_digest": digest_text(canonical_json([hashes, found["versions"], found["n-shot"]])),
            "tasks": sorted(samples),
            "sampling": sampling_record(spec),
            "harness": f"lm-eval {found['lm_eval_version']}",
        }
        metrics = {
            f"{task}/{name}": float(value)
            for task, values in found["results"].items()
            for name, value in values.items()
            if "," in name and isinstance(value, int | float)
        }
    write_text(judged, "".join(canonical_json({"task": task, **line}) + "\n" for task, lines in samples.items() for line in lines))
    splits = tuple(split for task, lines in samples.items() for split in _splits(task, lines, spec.seed))
    return EvalResult(model, splits, record, (), {}, 0, 0, 0, seconds, str(judged), (), metrics)


def _samples(kept: Path, task: str) -> list[dict[str, Any]]:
    file = next(kept.glob(f"**/samples_{task}_[0-9]*.jsonl"))
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _splits(task: str, lines: list[dict[str, Any]], seed: int) -> Iterator[SplitResult]:
    """One split for each metric of a task that says right or wrong of each document."""
    names = dict.fromkeys((metric, line["filter"]) for line in lines for metric in line["metrics"])
    for metric, chosen in names:
        values = {str(line["doc_id"]): line[metric] for line in lines if line["filter"] == chosen}
        if not all(value in (0, 1) for value in values.values()):  # A mean of other numbers is in `metrics` alone.
            continue
        counts = {document: (1, int(value)) for document, value in values.items()}
        right = sum(passed for _, passed in counts.values())
        reasons = {name: number for name, number in (("right", right), ("wrong", len(counts) - right)) if number}
        name = f"{task} {metric},{chosen}"
        yield SplitResult(name, len(counts), len(counts), right, (estimate(list(counts.values()), 1, seed),), reasons, counts)
