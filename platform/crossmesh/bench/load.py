"""Sends loads through the process of `load_vllm.py` and gives back what every request met. Judges nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from crossmesh.bench.cells import Prompts
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError
from crossmesh.plan.serving.batching import LoadRequest

_TAIL = 2000

Progress = Callable[[int, int], None]
"""Hears how many of how many requests are answered."""


@dataclass(frozen=True)
class Target:
    """A server as a client sees it."""

    origin: str
    """URL without `/v1`."""
    model: str
    key: str = field(default="", repr=False)


class LoadGenerator:
    """`vllm bench serve`, kept running between loads. Use it as a context manager.

    Prompts are lists of token ids, so that they are exactly as long as asked, whatever their text would be split into.
    """

    def __init__(self, tokenizer: Path, folder: Path) -> None:
        """`tokenizer` is the folder whose tokens prompts are made of; `folder` takes the log and the load that is being sent."""
        self._tokenizer = tokenizer
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "LoadGenerator":
        """Nothing is started before the first load."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send(
        self, target: Target, requests: Sequence[LoadRequest], prompts: Prompts, most_in_flight: int, progress: Progress
    ) -> dict[str, Any]:
        """Send `requests` at their times to `target` and return vLLM's times of each, in their order, in seconds.

        `prompts` says which of them begin alike. Raises `CrossmeshError` when the generator fails; a request that fails is part of the
        result.
        """
        load = self._folder / "load.jsonl"
        lines = [
            json.dumps({"timestamp": one.arrival_s, "input_length": one.prompt, "output_length": one.output, "hash_ids": ids})
            for one, ids in zip(requests, prompts.ids, strict=True)
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        load.write_text("\n".join(lines) + "\n", encoding="utf-8")
        arguments = [
            *("--base-url", target.origin, "--endpoint", "/v1/completions", "--backend", "openai"),
            *("--model", target.model, "--tokenizer", str(self._tokenizer)),
            *("--dataset-name", "timed_trace", "--dataset-path", str(load), "--num-prompts", str(len(requests))),
            *("--timed-trace-chunk-hash-size", str(prompts.block), "--temperature", "0", "--save-detailed"),
            *(("--max-concurrency", str(most_in_flight)) if most_in_flight else ()),
        ]
        return self._ask({"arguments": arguments, "key": target.key}, progress)

    def _ask(self, question: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the load generator has no pipes")
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            said = json.loads(line)
            if "progress" in said:
                progress(*said["progress"])
            if "error" in said:
                raise CrossmeshError(f"The load generator failed: {said['error']}. Its log is {self._log}.")
            if "result" in said:
                result: dict[str, Any] = said["result"]
                return result
        tail = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
        raise CrossmeshError(f"The load generator ended with code {process.wait()}:\n{tail}\nAll of it is in {self._log}.")

    @property
    def _log(self) -> Path:
        return self._folder / "load.log"

    def _start(self) -> "subprocess.Popen[str]":
        # The seed of a prompt is Python's hash of its id, which is another one in each process unless told otherwise.
        worker = environment("bench/vllm").with_variables(PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
        with self._log.open("w", encoding="utf-8") as errors:
            return subprocess.Popen(
                [worker.python or sys.executable, "-m", "crossmesh.bench.load_vllm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **worker.variables},
                start_new_session=True,  # Ctrl-C reaches us alone, and we end it.
            )
