"""What the check `adapters` measures on vLLM: answers mixed and alone, then throughput of three kinds of traffic in turns."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from crossmesh.models.families.registry import read_architecture
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.process import Request, answer_measurement

_SERVER_ONLY = ("disable_uvicorn_access_log",)
"""Arguments of vLLM's server, which has no part in this."""

Lora: TypeAlias = LoRARequest | None


class _Engine:
    """vLLM's engine, asked for greedy answers of one length."""

    def __init__(self, model: str, arguments: dict[str, Any], tokens: int) -> None:
        wanted = {key: value for key, value in arguments.items() if key not in _SERVER_ONLY}
        self._engine = LLM(model, **wanted)
        self._sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    def ask(self, prompts: Sequence[Sequence[int]], loras: Sequence[Lora]) -> list[tuple[int, ...]]:
        """Token ids of the answer to each prompt by the adapter beside it, all asked at once."""
        given: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        answers = self._engine.generate(given, self._sampling, lora_request=list(loras), use_tqdm=False)
        return [tuple(one.outputs[0].token_ids) for one in answers]


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Start the engine with all `adapters` (folders by name) and measure; see `adapters.AdapterSizes` for the rest."""
    engine = _Engine(request["model"], request["engine"], request["tokens"])
    loras = [LoRARequest(name, number, folder) for number, (name, folder) in enumerate(request["adapters"].items(), 1)]
    draw = _prompts(request)
    return {**_answers(engine, loras, draw(1)[0], progress), **_speed(engine, loras, draw, request, progress)}


def _prompts(request: Request) -> Callable[[int], list[list[int]]]:
    """Draws prompts of random tokens."""
    random = np.random.default_rng(0)
    vocab = read_architecture(Path(request["model"])).vocab
    return lambda number: random.integers(0, vocab, (number, request["prompt"])).tolist()


def _answers(engine: _Engine, loras: Sequence[LoRARequest], prompt: Sequence[int], progress: Progress) -> dict[str, Any]:
    """One prompt to every adapter and the base: each by itself, then all at once, in both orders."""
    models: list[Lora] = [None, *loras]
    alone = []
    for done, lora in enumerate(models, 1):
        alone += engine.ask([prompt], [lora])
        progress("models asked alone", done, len(models))
    mixed = engine.ask([prompt] * len(models), models)
    turned = engine.ask([prompt] * len(models), models[::-1])[::-1]
    unlike = sum(one != other for together in (mixed, turned) for one, other in zip(together, alone, strict=True))
    return {"unlike_alone": unlike, "like_another": len(alone) - len(set(alone)), "answers": len(mixed) + len(turned)}


def _speed(
    engine: _Engine, loras: Sequence[LoRARequest], draw: Callable[[int], list[list[int]]], request: Request, progress: Progress
) -> dict[str, Any]:
    """Generated tokens per second of traffic over all adapters, on one of them (another in each round), and on the base."""
    number, turn = request["requests"], count()
    every = [loras[index % len(loras)] for index in range(number)]
    contenders = {
        "mixed": lambda: engine.ask(draw(number), every),
        "one_adapter": lambda: engine.ask(draw(number), [loras[next(turn) % len(loras)]] * number),
        "base": lambda: engine.ask(draw(number), [None] * number),
    }
    seconds = take_turns(contenders, request["rounds"], progress)
    rates = {name: [number * request["tokens"] / taken for taken in values] for name, values in seconds.items()}
    pairs = (("mixed", "one_adapter"), ("mixed", "base"), ("one_adapter", "base"))
    return {
        "ratios": {f"{above}_over_{below}": ratio(rates[above], rates[below]).figures() for above, below in pairs},
        "generated_tokens_per_s": {name: median(values) for name, values in rates.items()},
        "seconds": seconds,
    }


if __name__ == "__main__":
    answer_measurement(main)
