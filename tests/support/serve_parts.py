"""Starting the driver `serve_tiny.py`, asking its server, and what transformers and PEFT answer to the same prompts."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai


def start(storage: Path, model: Path, adapters: dict[str, Path], max_loras: int = 0) -> subprocess.Popen[str]:
    """Start the driver in a process group of its own, as a terminal would, and in no Ray but its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2] / "platform")
    script = str(Path(__file__).resolve().parents[1] / "integration" / "serve_tiny.py")
    command = [sys.executable, script, str(storage), str(model), str(max_loras), *[f"{name}={folder}" for name, folder in adapters.items()]]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)


def until(process: subprocess.Popen[str], *keys: str) -> dict[str, Any]:
    """The first line of the driver that has one of `keys`."""
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("{"):  # Ray's own: processes that it ended while they started.
            continue
        said: dict[str, Any] = json.loads(line)
        if any(key in said for key in keys):
            return said
    raise AssertionError(f"the driver ended without saying any of {keys}")


def greedy(client: openai.OpenAI, model: str, prompt: Sequence[int], tokens: int) -> list[int]:
    """Token ids of the greedy answer to a prompt of token ids."""
    extra = {"return_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(model=model, prompt=list(prompt), max_tokens=tokens, temperature=0, extra_body=extra)
    return list((answer.choices[0].model_extra or {})["token_ids"])


class Begun:
    """A greedy request whose first token has been received and whose others are still coming."""

    def __init__(self, client: openai.OpenAI, model: str, prompt: Sequence[int], tokens: int) -> None:
        extra = {"return_token_ids": True, "ignore_eos": True}
        self._chunks = iter(
            client.completions.create(model=model, prompt=list(prompt), max_tokens=tokens, temperature=0, stream=True, extra_body=extra)
        )
        self._ids: list[int] = []
        self._take(next(self._chunks))

    def _take(self, chunk: Any) -> None:
        for choice in chunk.choices:
            self._ids += choice.model_extra.get("token_ids") or []

    def rest(self) -> list[int]:
        """Wait for the end and return all token ids."""
        for chunk in self._chunks:
            self._take(chunk)
        return self._ids


def tokens_of_peft(model: Path, adapters: dict[str, Path], prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, list[list[int]]]:
    """Greedy tokens of transformers and PEFT for `base` and each adapter, by model name and prompt."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    found = {}
    for name in ("base", *adapters):
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        loaded.generation_config.eos_token_id = loaded.config.eos_token_id = None  # A token like any other, as with `ignore_eos`.
        if name in adapters:
            loaded = PeftModel.from_pretrained(loaded, adapters[name])
        answers = []
        for prompt in prompts:
            ids = torch.tensor([list(prompt)])
            made = loaded.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
            answers.append(made[0, len(prompt) :].tolist())
        found[name] = answers
    return found
