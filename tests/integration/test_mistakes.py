"""Mistakes of a command line as real processes: no traceback, at most six lines of 80 columns, one fix, the right exit code."""

import json
import os
import pickle
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full]

LINES, COLUMNS = 6, 80
ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@dataclass(frozen=True)
class Mistake:
    """What was typed, and what the message says to do instead."""

    job: str
    arguments: tuple[str, ...]
    fix: str
    code: int = 2
    python: str = sys.executable

    def __str__(self) -> str:
        return f"{self.job} {' '.join(self.arguments)}"


def mistake(job: str, *arguments: str, fix: str, code: int = 2, python: str = sys.executable) -> Mistake:
    return Mistake(job, arguments, fix, code, python)


# {files}: a folder with files that went wrong. {port}: a port of 127.0.0.1 that another process holds. {free}: one that nobody answers at.
MISTAKES = (
    mistake("finetune", "--experiment", "demo", fix="experiment=VALUE"),
    mistake("finetune", "--model=x", fix="model=x"),
    mistake("finetune", "--experimental-rerun", "a.pickle", fix="unpickle"),
    mistake("finetune", "demo", fix="key=value"),
    mistake("finetune", "experiment=demo", fix=".venv/bin/python", python=sys._base_executable),
    mistake("finetune", "model=Qwen/Qwen3-0.6B", fix="model.weights=hf://Qwen/Qwen3-0.6B"),
    mistake("finetune", "hydra/launcher=rey", fix="hydra/launcher=ray"),
    mistake("finetune", "experiment=dmeo", fix="demo"),
    mistake("finetune", "lr=1e-4", fix="optim.learning_rate"),
    mistake("finetune", "optim.steps=2", "optim.steps=abc", fix="optim.steps=abc"),
    mistake("finetune", "batch.micro=1,2", fix="-m batch.micro=1,2"),
    mistake("finetune", "lora.targets=q,k", fix="lora.targets=[q,k]"),
    mistake("finetune", "backend=pytorch", fix="torch"),
    mistake("finetune", *TINY, "batch.micro=-1", fix="batch.micro"),
    mistake("finetune", *TINY, "batch.size=8", "batch.micro=3", fix="batch.micro"),
    mistake("finetune", *TINY, "optim.learning_rate=fast", fix="optim.learning_rate=fast"),
    mistake("finetune", *TINY, "data.source={files}/none.jsonl", fix="data.source"),
    mistake("finetune", *TINY, "data.source={files}/broken.jsonl", fix="broken.jsonl, line 2"),
    mistake("finetune", *TINY, "data.source={files}/empty.jsonl", fix="empty.jsonl"),
    mistake("finetune", *TINY, "data.source={files}/keys.jsonl", fix="messages"),
    mistake("finetune", *TINY, "data.source=~/rows.jsonl", fix="~ is not expanded"),
    mistake("finetune", "model.weights={files}/nowhere", "model.family=llama", fix="model.weights"),
    mistake("finetune", *TINY, "storage.root=not/absolute", fix="storage.root"),
    mistake("finetune", *TINY, "storage.root=/proc/no-folder", fix="storage.root"),
    mistake("finetune", *TINY, "mesh.fsdp=3", "batch.size=8", fix="mesh"),
    mistake("finetune", *TINY, "storage.max_gb=1", fix="storage"),
    mistake("plan", "plan.report=papers", fix="paper"),
    mistake("plan", "model=gemma4_31b", "hardware=v5p_8", fix="hardware"),
    mistake("serve", "serve.adapters=[{files}/pickled]", "model=tiny_llama", fix="name:source"),
    mistake("serve", "serve.adapters=[{files}/missing]", "model=tiny_llama", fix="missing"),
    mistake("serve", "serve.port=70000", fix="65535"),
    mistake("ui", "port={port}", fix="port="),
    mistake("status", fix="sweep", code=2),
    mistake("status", "sweep=0123abcd", fix="sweep"),
    mistake("compare", "runs=[0123abcd,4567abcd]", fix="runs"),
    mistake("evaluate", "eval.url=http://127.0.0.1:{free}/v1", fix="Start that server"),
    mistake("evaluate", "against=0123abcd", "eval.url=http://127.0.0.1:{free}/v1", fix="against"),
    mistake("benchmark", "bench.url=http://127.0.0.1:{free}/v1", fix="Start that server"),
    mistake("benchmark", "bench.concurrency=4", fix="a list, in brackets: [1,2]"),
    mistake("export", fix="folder="),
    mistake("export", "folder={files}/out", fix="adapter is not given"),
    mistake("export", "adapter={files}/pickled", "folder={files}/out", fix="safetensors"),
    mistake("tune", *TINY, fix="tune.space"),
    mistake("tune", *TINY, "tune.space={optim.learning_rte:[1e-4,1e-3]}", fix="optim.learning_rate"),
    mistake("verify", "check=exchnge", fix="exchange"),
    mistake("pipeline", "backends=[torch,mlx]", fix="jax"),
    mistake("lengths", "show=-1", fix="show"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as they go wrong: a line that is cut, no row, other keys, a pickled adapter."""
    folder = tmp_path_factory.mktemp("files")
    row = json.dumps(ROW)
    (folder / "broken.jsonl").write_text(f"{row}\n{row[:20]}\n")
    (folder / "empty.jsonl").write_text("")
    (folder / "keys.jsonl").write_text('{"question_text": "a", "reply_text": "b"}\n')
    (folder / "pickled").mkdir()
    (folder / "pickled" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}')
    (folder / "pickled" / "adapter_model.bin").write_bytes(pickle.dumps({}))
    return folder


@pytest.fixture(scope="module")
def answers(files: Path, checkout: Path, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each mistake's process wrote and returned; two run at a time."""
    root = tmp_path_factory.mktemp("storage")
    environment = clean_environment | {"CROSSMESH_STORAGE": str(root), "COLUMNS": str(COLUMNS), "HOME": str(files)}
    with socket.socket() as held, socket.socket() as free:
        held.bind(("127.0.0.1", 0))
        held.listen()
        free.bind(("127.0.0.1", 0))
        known = {"{files}": str(files), "{port}": str(held.getsockname()[1]), "{free}": str(free.getsockname()[1])}

        def run(one: Mistake) -> subprocess.CompletedProcess[str]:
            arguments = list(one.arguments)
            for name, value in known.items():
                arguments = [argument.replace(name, value) for argument in arguments]
            command = [one.python, str(checkout / "jobs" / f"{one.job}.py"), *arguments]
            return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=files, timeout=120, check=False)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(MISTAKES, pool.map(run, MISTAKES), strict=True))


@pytest.mark.parametrize("one", MISTAKES, ids=str)
def test_a_mistake_ends_with_one_short_message_that_says_what_to_do(one: Mistake, answers: Any) -> None:
    ended = answers[one]
    assert ended.returncode == one.code, ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    told = [line for line in ended.stderr.splitlines() if line.startswith("crossmesh: ")]
    message = ended.stderr[ended.stderr.rindex("crossmesh: ") :]
    shown = [part for line in message.splitlines() for part in textwrap.wrap(line, COLUMNS) or [""]]
    assert len(shown) <= LINES, shown
    assert one.fix in message
    assert "Warning" not in ended.stderr
    assert told
