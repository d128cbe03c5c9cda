"""Tasks of lm-evaluation-harness, run by its own package against an OpenAI endpoint.

The harness runs as a program in an environment of its own (`eval/lm-eval`) and asks through our client (`harness_client.py`), which keeps
every answer; ours is to start it, show its progress and read what it found. Answers are sampled as each task says, unless the spec does.
Tasks that score given answers need log-probabilities of prompts, which chat completions do not give: the harness refuses them.
"""

import glob
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from crossmesh.compat.lm_eval_output import needs_likelihoods, requests_done
from crossmesh.config.evaluation import EvalSpec
from crossmesh.environments import environment, made_harness, python_path
from crossmesh.errors import CrossmeshError, InputError, reading
from crossmesh.evaluate import harness_client
from crossmesh.evaluate.harness import Progress, changed, unended
from crossmesh.evaluate.judge import silent
from crossmesh.evaluate.passk import estimate
from crossmesh.evaluate.results import RECORD_FORM, RESULT, EvalResult, SplitResult, cut_of
from crossmesh.files import canonical_json, digest_text, parse_json, write_json, write_text
from crossmesh.server_identity import Origin, ServerChangedError

KIND = "eval/lm-eval"
REQUIREMENT = "lm-eval[api]==0.4.13"
_VARIABLE = "CROSSMESH_PYTHON_EVAL_LM_EVAL"
_LAST_LINES = 15
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
    for old in kept.glob("**/*.json*"):  # Of an earlier start.
        old.unlink()
    variables = {**os.environ, **environment(KIND).variables, "OPENAI_API_KEY": api_key}
    variables |= _for_client(base_url, model, eval_spec, folder, origin.models)
    command = [python, "-m", harness_client.__name__, "run", *_arguments(model, eval_spec, kept)]
    try:
        _run(command, variables, _looking(on_progress, origin))
        origin.check()
    except ServerChangedError:
        shutil.rmtree(kept)
        for name in (harness_client.ANSWERS, harness_client.ASKED):
            (folder / name).unlink(missing_ok=True)
        raise
    result = _read(kept, model, eval_spec, folder, time.monotonic() - began)
    write_json(folder / RESULT, result.to_json())
    return result


def _looking(on_progress: Progress, origin: Origin) -> Progress:
    """Progress that looks at the server every few seconds: the harness does not pass on what an answer says of it."""
    looked = time.monotonic()

    def on_event(stage: str, done: int, total: int) -> None:
        nonlocal looked
        if time.monotonic() - looked > _LOOK_S:
            origin.check(1)
            looked = time.monotonic()
        on_progress(stage, done, total)

    return on_event


def _for_client(base_url: str, model: str, spec: EvalSpec, folder: Path, server: str) -> dict[str, str]:
    """Environment variables that our client inside the harness reads."""
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    settings = harness_client.Settings(url, model, spec.seed, spec.concurrency, str(folder), server)
    return {harness_client.VARIABLE: json.dumps(asdict(settings)), "PYTHONPATH": python_path()}


def _arguments(model: str, spec: EvalSpec, kept: Path) -> list[str]:
    """The harness's arguments; what the spec leaves open is the task's to say."""
    said = {"temperature": spec.temperature, "top_p": spec.top_p, "max_gen_toks": spec.max_tokens}
    sampling = {name: value for name, value in said.items() if value is not None}
    arguments = ["--model", harness_client.MODEL, "--model_args", f"model={model}"]
    arguments += ["--gen_kwargs", *_pairs(sampling)] if sampling else []
    arguments += ["--tasks", ",".join(spec.tasks), "--apply_chat_template", "--log_samples", "--output_path", str(kept)]
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
            if progress := requests_done(line):
                on_progress("generate", *progress)
            elif line.strip():
                last.append(line.rstrip())
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if code:
        said = "\n".join(last)
        if needs_likelihoods(said):
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


def _read(kept: Path, model: str, spec: EvalSpec, folder: Path, seconds: float) -> EvalResult:
    """Turn the harness's files into a result: its own metrics as they are, and what is right or wrong for each document as a split."""
    aggregated = next(kept.glob("**/results_*.json"), None)
    if aggregated is None:
        raise CrossmeshError(f"lm-evaluation-harness left no results in {kept}.")
    with reading(aggregated, "results of lm-evaluation-harness"):
        found = parse_json(aggregated.read_bytes())
        asked = parse_json((folder / harness_client.ASKED).read_bytes())
        samples = {task: _samples(kept, task) for task in found["configs"]}
        hashes = {task: found["task_hashes"].get(task, "") for task in samples}
        record = {
            "form": RECORD_FORM,
            "task": spec.task,
            "task_digest": digest_text(canonical_json([hashes, found["versions"], found["n-shot"]])),
            "tasks": sorted(samples),
            # As it was sent: each task's own settings where the spec says nothing.
            "sampling": asked["sent"],
            "harness": f"lm-eval {found['lm_eval_version']}",
        }
        metrics = {
            f"{task}/{name}": float(value)
            for task, values in found["results"].items()
            for name, value in values.items()
            if "," in name and isinstance(value, int | float)
        }
    judged = folder / "judged.jsonl"
    write_text(judged, "".join(canonical_json(_finite({"task": task, **line})) + "\n" for task, lines in samples.items() for line in lines))
    reasons = Counter(asked["finish_reasons"])
    return EvalResult(
        model,
        splits=tuple(split for task, lines in samples.items() for split in _splits(task, lines, spec.seed)),
        comparable_on=record,
        excluded=(),
        errors=asked["errors"],
        prompt_tokens=asked["prompt_tokens"],
        completion_tokens=asked["completion_tokens"],
        cut_at_max_tokens=cut_of(tuple(reasons.elements())),
        seconds=seconds,
        samples_path=str(judged),
        warnings=_warnings(asked, metrics),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )


def _warnings(asked: Mapping[str, Any], metrics: Mapping[str, float]) -> tuple[str, ...]:
    """What was odd about the answers and the metrics."""
    said = [f"{count} answers: {note}" for note, count in asked["notes"].items()]
    said += unended(asked["finish_reasons"].get("", 0))
    said += [changed(change, count) for change, count in sorted(asked["changes"].items())]
    return (*said, *(f"the metric {name} is {value}: it is left out" for name, value in metrics.items() if not math.isfinite(value)))


def _finite(value: Any) -> Any:
    """`value` with the words `nan` and `inf` in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return {name: _finite(one) for name, one in value.items()} if isinstance(value, dict) else value


def _samples(kept: Path, task: str) -> list[dict[str, Any]]:
    file = next(kept.glob(f"**/samples_{glob.escape(task)}_[0-9]*.jsonl"))
    # Lines end at a line feed alone: what `str.splitlines` takes for another end stands in documents and answers.
    return [parse_json(line) for line in file.read_bytes().split(b"\n") if line.strip()]


def _splits(task: str, lines: list[dict[str, Any]], seed: int) -> Iterator[SplitResult]:
    """One split for each metric of a task that says right or wrong of each document; no value, or one that is not a number, is wrong."""
    names = dict.fromkeys((metric, line["filter"]) for line in lines for metric in line["metrics"])
    for metric, chosen in names:
        values = {str(line["doc_id"]): line.get(metric) for line in lines if line["filter"] == chosen}
        without = {document for document, value in values.items() if value is None or value != value}  # NaN
        known = {document: value for document, value in values.items() if document not in without}
        if not known or not all(value in (0, 1) for value in known.values()):  # A mean of other numbers is in `metrics` alone.
            continue
        counts = {document: (1, int(known.get(document) or 0)) for document in values}
        right = sum(passed for _, passed in counts.values())
        numbers = (("right", right), ("wrong", len(known) - right), ("no_value", len(without)))
        reasons = {name: number for name, number in numbers if number}
        name = f"{task} {metric},{chosen}"
        yield SplitResult(name, len(counts), len(counts), right, (estimate(list(counts.values()), 1, seed),), reasons, counts)
