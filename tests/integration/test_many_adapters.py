"""Twenty adapters on one engine with room for eight: each answers as it does alone, also while others come and go under load."""

import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from crossmesh.config.training import ModelSpec
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.verify.random_adapters import write_random_adapter
from serve_parts import Begun, greedy, start, tokens_of_peft, until

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(900)]
TOKENS, RANK, SLOTS = 16, 4, 8
LONG = 96
"""Tokens of a request that is still running when its adapter goes."""
PROMPT = [17, 18, 19, 20, 21, 22, 23, 480]
NAMES = [f"a{number}" for number in range(20)]
AT_START, LATER = NAMES[:12], NAMES[12:]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path_factory.mktemp("cache")).path


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def adapters(model: Path, storage: Path) -> dict[str, Path]:
    return {name: write_random_adapter(model, storage / "mine" / name, seed, RANK, 0.5) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def alone(model: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    """The greedy answer of each model by itself, computed by transformers and PEFT."""
    return {name: answers[0] for name, answers in tokens_of_peft(model, adapters, [PROMPT], TOKENS).items()}


@pytest.fixture(scope="module")
def server(model: Path, storage: Path, adapters: dict[str, Path], alone: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
    process: subprocess.Popen[str] = start(storage, model, {name: adapters[name] for name in AT_START}, SLOTS)
    said = until(process, "base_url", "error")
    assert "error" not in said, said["error"]
    yield said
    process.send_signal(signal.SIGINT)
    assert until(process, "loaded")["loaded"] == []
    process.wait(timeout=60)


@pytest.fixture(scope="module")
def client(server: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(base_url=server["base_url"], api_key=server["api_key"], max_retries=0)


def post(server: dict[str, Any], route: str, body: dict[str, Any], key: str | None = None) -> tuple[int, str]:
    """Status and text of the answer of `/v1/<route>`."""
    headers = {"Authorization": f"Bearer {key or server['api_key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server['base_url']}/{route}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"]


class Traffic:
    """Asks the same models again and again from several threads until it is left, and keeps every answer."""

    def __init__(self, client: openai.OpenAI, names: list[str], threads: int = 8) -> None:
        self._client = client
        self._names = names
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads
        self.answers: list[tuple[str, list[int]]] = []

    def _ask(self, offset: int) -> None:
        turn = offset
        while not self._end.is_set():
            name = self._names[turn % len(self._names)]
            self.answers.append((name, greedy(self._client, name, PROMPT, TOKENS)))
            turn += 1

    def __enter__(self) -> "Traffic":
        self._running = [self._pool.submit(self._ask, offset * len(self._names) // self._threads) for offset in range(self._threads)]
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for one in self._running:
            one.result(timeout=120)


def test_mixed_requests_are_answered_as_each_adapter_answers_alone(client: openai.OpenAI, alone: dict[str, list[int]]) -> None:
    asked = ["base", *AT_START] * 2
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda name: greedy(client, name, PROMPT, TOKENS), asked))
    assert dict(zip(asked, answers, strict=True)) == {name: alone[name] for name in asked}
    assert len({tuple(answer) for answer in answers}) == 1 + len(AT_START)


def test_adapters_come_under_load_and_no_answer_changes(
    server: dict[str, Any], client: openai.OpenAI, adapters: dict[str, Path], alone: dict[str, list[int]]
) -> None:
    with pytest.raises(openai.NotFoundError):
        greedy(client, LATER[0], PROMPT, TOKENS)
    with Traffic(client, ["base", *AT_START]) as traffic:
        for name in LATER:
            status, said = post(server, "load_lora_adapter", {"lora_name": name, "lora_path": str(adapters[name])})
            assert (status, said) == (200, f"Success: LoRA adapter '{name}' added successfully.")
            assert greedy(client, name, PROMPT, TOKENS) == alone[name]
    assert len(traffic.answers) > len(LATER)
    assert [name for name, answer in traffic.answers if answer != alone[name]] == []
    assert [card.id for card in client.models.list()] == ["base", *NAMES]


def test_all_twenty_at_once(client: openai.OpenAI, alone: dict[str, list[int]]) -> None:
    with ThreadPoolExecutor(2 * len(NAMES)) as pool:
        answers = list(pool.map(lambda name: greedy(client, name, PROMPT, TOKENS), NAMES * 2))
    assert [name for name, answer in zip(NAMES * 2, answers, strict=True) if answer != alone[name]] == []


def test_an_adapter_goes_and_its_name_gets_another_under_load(
    server: dict[str, Any], client: openai.OpenAI, model: Path, adapters: dict[str, Path], alone: dict[str, list[int]]
) -> None:
    long = tokens_of_peft(model, {name: adapters[name] for name in ("a0", "a1")}, [PROMPT], LONG)
    with Traffic(client, NAMES[2:]) as traffic:
        begun = {name: [Begun(client, name, PROMPT, LONG) for _ in range(2)] for name in ("a0", "a1")}
        replaced = {"lora_name": "a1", "lora_path": str(adapters["a0"])}
        assert post(server, "load_lora_adapter", replaced)[0] == 400, "the name is taken"
        assert post(server, "load_lora_adapter", {**replaced, "load_inplace": True})[0] == 200
        assert greedy(client, "a1", PROMPT, TOKENS) == alone["a0"]
        assert post(server, "unload_lora_adapter", {"lora_name": "a0"})[0] == 200
        for name, streams in begun.items():
            for stream in streams:
                assert stream.rest() == long[name][0], "what has begun ends with the adapter that it began with"
        with pytest.raises(openai.NotFoundError, match="a0"):
            greedy(client, "a0", PROMPT, TOKENS)
    assert [name for name, answer in traffic.answers if answer != alone[name]] == []
    assert post(server, "unload_lora_adapter", {"lora_name": "a0"})[0] == 404
    assert "a0" not in [card.id for card in client.models.list()]
    assert post(server, "load_lora_adapter", {"lora_name": "a0", "lora_path": str(adapters["a0"])})[0] == 200
    assert greedy(client, "a0", PROMPT, TOKENS) == alone["a0"]


def test_what_may_not_be_loaded_is_refused_and_the_server_goes_on(
    server: dict[str, Any], client: openai.OpenAI, model: Path, alone: dict[str, list[int]], tmp_path: Path, storage: Path
) -> None:
    outside = write_random_adapter(model, tmp_path / "outside", 99, RANK)
    other = fetch_model(ModelSpec(family="gemma4", weights="random://tiny_gemma4@0"), tmp_path / "cache").path
    of_another_base = write_random_adapter(other, storage / "mine" / "gemma", 0, RANK)
    for path, said in (
        (outside, "is not allowed"),
        (of_another_base, "adapter of another base"),
        (storage / "nothing", "adapter_config.json"),
    ):
        status, message = post(server, "load_lora_adapter", {"lora_name": "new", "lora_path": str(path)})
        assert (status, said in message) == (400, True), message
    assert post(server, "load_lora_adapter", {"lora_name": "base", "lora_path": str(storage / "mine" / "a2")})[0] == 400
    assert post(server, "load_lora_adapter", {"lora_name": "new", "lora_path": str(storage / "mine" / "a2")}, key="x" * 20)[0] == 401
    assert greedy(client, "a2", PROMPT, TOKENS) == alone["a2"]
