"""Servers of a TPU slice and of GPUs on one emulated cluster, a CPU engine behind each: on their chips, replaced under load, bounded."""

import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from crossmesh.serve.keys import add_key, revoke_key
from emulated_cluster import EmulatedCluster, emulated_cluster, gpu_node, tpu_nodes

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(900)]
KEY = "cm-0123456789abcdef"
OWN = {"Authorization": f"Bearer {KEY}"}
TINY = ("model=tiny_llama", "serve.port=0", "serve.max_model_len=2048", "serve.kv_cache_gib=0.25", "output=json")
GPU = ("hardware=gpu_2xh100", "serve.name=gpu", "serve.tp=2")
TPU = ("hardware=tpu_v6e_8", "serve.name=tpu", "serve.tp=8", "serve.task=embed")


class Job:
    """`jobs/serve.py` as a user starts it on the cluster."""

    def __init__(self, cluster: EmulatedCluster, checkout: Path, storage: Path, certificate: tuple[Path, Path], *arguments: str) -> None:
        tls = (f"serve.tls_cert={certificate[0]}", f"serve.tls_key={certificate[1]}")
        command = [sys.executable, str(checkout / "jobs" / "serve.py"), *TINY, *tls, f"storage.root={storage}", *arguments]
        environment = {**cluster.environment, "OMP_NUM_THREADS": "1", "CROSSMESH_API_KEY": KEY}
        self._log = storage.with_name(f"{len(list(storage.parent.glob('*.log')))}.log")
        with self._log.open("w") as progress:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=progress, text=True, env=environment, start_new_session=True
            )

    def ready(self) -> dict[str, Any]:
        """Wait until it serves, and return what it says."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            return said
        raise AssertionError(self._log.read_text())

    def starting(self) -> None:
        """Wait until its engine starts."""
        deadline = time.monotonic() + 120
        while "starting the engine" not in self._log.read_text():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serving") / "storage"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command = [*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    """Two GPU nodes: a server that is replaced runs until the new one is ready."""
    with emulated_cluster(*tpu_nodes("tpu_v6e_8", "slice-a"), gpu_node("gpu_2xh100"), gpu_node("gpu_2xh100"), head_cpus=4) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(cluster: EmulatedCluster, checkout: Path, storage: Path, certificate: tuple[Path, Path]) -> Iterator[dict[str, Job]]:
    running = {
        "gpu": Job(cluster, checkout, storage, certificate, *GPU),
        "tpu": Job(cluster, checkout, storage, certificate, *TPU),
    }
    yield running
    for job in running.values():
        if job.process.poll() is None:
            job.interrupt()


@pytest.fixture(scope="module")
def servers(jobs: dict[str, Job]) -> dict[str, dict[str, Any]]:
    """What both said once both served."""
    return {name: job.ready() for name, job in jobs.items()}


@pytest.fixture(scope="module")
def ask(certificate: tuple[Path, Path]) -> httpx.Client:
    return httpx.Client(verify=ssl.create_default_context(cafile=str(certificate[0])), timeout=120)


def client_of(said: dict[str, Any], ask: httpx.Client, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=said["base_url"], api_key=key, max_retries=0, http_client=ask)


def generate(client: openai.OpenAI, tokens: int, **more: Any) -> Any:
    extra = {"ignore_eos": True, **more.pop("extra_body", {})}
    return client.completions.create(model="base", prompt=[5, 6, 7], max_tokens=tokens, temperature=0, extra_body=extra, **more)


def fingerprint(said: dict[str, Any], ask: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = ask.get(f"{said['base_url']}/fingerprint", headers=OWN).json()
    return found


def test_a_slice_and_gpus_serve_at_the_same_time_each_on_its_own_chips(
    cluster: EmulatedCluster, servers: dict[str, dict[str, Any]], ask: httpx.Client
) -> None:
    free = cluster.state()["free"]
    assert free.get("GPU", 0) == 2, "one of two GPU nodes"
    assert free.get("TPU", 0) == 0, "the whole slice"
    assert {name: said["base_url"].split("/")[-2] for name, said in servers.items()} == {"gpu": "gpu", "tpu": "tpu"}
    assert all(said["base_url"].startswith("https://127.0.0.1:") for said in servers.values())
    chips = {name: fingerprint(said, ask)["hardware"] for name, said in servers.items()}
    assert {name: (found["chip"], found["chips"]) for name, found in chips.items()} == {"gpu": ("h100", 2), "tpu": ("v6e", 8)}
    assert generate(client_of(servers["gpu"], ask), 4).usage.completion_tokens == 4


def measured(said: dict[str, Any], ask: httpx.Client, *names: str) -> float:
    """Sum of Prometheus metrics of the engine."""
    lines = ask.get(said["base_url"].removesuffix("/v1") + "/metrics", headers=OWN).text.splitlines()
    wanted = tuple(f"vllm:{name}{{" for name in names)
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted))


def test_clients_that_leave_in_the_middle_leave_no_running_request(servers: dict[str, dict[str, Any]], ask: httpx.Client) -> None:
    said, tokens = servers["gpu"], 1900
    url, body = f"{said['base_url']}/completions", {"model": "base", "prompt": [5, 40, 77], "max_tokens": tokens, "ignore_eos": True}

    def leave(number: int) -> None:
        if number < 20:
            with ask.stream("POST", url, json={**body, "stream": True}, headers=OWN) as answer:
                assert next(answer.iter_lines()).startswith("data: ")
        else:  # A client that waits for the whole answer, and gives up.
            with pytest.raises(httpx.ReadTimeout):
                ask.post(url, json=body, headers=OWN, timeout=1)

    before = measured(said, ask, "generation_tokens_total")
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(leave, range(24)))
    deadline = time.monotonic() + 5
    left = 1.0
    while left and time.monotonic() < deadline:
        generate(client_of(said, ask), 1)  # An engine that computes nothing leaves its gauges as they were.
        left = measured(said, ask, "num_requests_running", "num_requests_waiting")
    assert left == 0
    assert measured(said, ask, "generation_tokens_total") - before < 24 * tokens / 4, "they had not just been answered to the end"


def test_a_model_that_embeds_answers_with_unit_vectors_and_one_that_generates_does_not(
    servers: dict[str, dict[str, Any]], ask: httpx.Client
) -> None:
    client = client_of(servers["tpu"], ask)
    vectors = [item.embedding for item in client.embeddings.create(model="base", input=["one", "two", "one"], encoding_format="float").data]
    assert all(sum(value * value for value in vector) == pytest.approx(1, abs=1e-3) for vector in vectors)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)
    with pytest.raises(openai.NotFoundError):
        client_of(servers["gpu"], ask).embeddings.create(model="base", input="one")


def test_keys_come_and_go_while_the_server_runs_and_the_log_names_them(
    servers: dict[str, dict[str, Any]], ask: httpx.Client, storage: Path
) -> None:
    alice = client_of(servers["gpu"], ask, add_key(storage, "alice"))

    def status() -> int:
        try:
            return alice.models.with_raw_response.list().http_response.status_code
        except openai.AuthenticationError:
            return 401

    for wanted in (200, 401):
        deadline = time.monotonic() + 20
        while status() != wanted:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        if wanted == 200:
            generate(alice, 3)
            revoke_key(storage, "alice")
    deadline = time.monotonic() + 20
    while (lines := _access(storage))[-1]["status"] != 401:  # A line is written when its client has the answer.
        assert time.monotonic() < deadline
        time.sleep(0.1)
    generated = [line for line in lines if line["key"] == "alice" and line["method"] == "POST"]
    assert [(line["route"], line["model"], line["status"], line["completion_tokens"]) for line in generated] == [
        ("/v1/completions", "base", 200, 3)
    ]
    assert lines[-1]["key"] is None


def _access(storage: Path) -> list[dict[str, Any]]:
    whole = (storage / "serve" / "gpu" / "access.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


class Load:
    """Asks from four threads, whole and streamed, until it is left; keeps how every request ended."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self.done: list[float] = []
        self.failed: list[str] = []

    def _run(self, turn: int) -> None:
        while not self._end.is_set():
            turn += 1
            try:
                if turn % 2:
                    assert generate(self._client, 24).usage.completion_tokens == 24
                else:
                    chunks = list(generate(self._client, 96, stream=True, stream_options={"include_usage": True}))
                    assert chunks[-1].usage.completion_tokens == 96
                self.done.append(time.monotonic())
            except Exception as error:  # noqa: BLE001
                self.failed.append(repr(error))
            self._end.wait(0.1)

    def __enter__(self) -> "Load":
        self._running = [self._pool.submit(self._run, turn) for turn in range(4)]
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for one in self._running:
            one.result(timeout=120)


def test_a_server_is_replaced_under_load_and_no_request_fails(
    cluster: EmulatedCluster,
    checkout: Path,
    storage: Path,
    certificate: tuple[Path, Path],
    jobs: dict[str, Job],
    servers: dict[str, dict[str, Any]],
    ask: httpx.Client,
) -> None:
    before = fingerprint(servers["gpu"], ask)
    with Load(client_of(servers["gpu"], ask)) as load:
        given_up = Job(cluster, checkout, storage, certificate, *GPU, "serve.max_num_seqs=3")
        given_up.starting()
        given_up.interrupt()
        assert fingerprint(servers["gpu"], ask) == before
        assert jobs["gpu"].process.poll() is None
        limits = ("serve.max_num_seqs=2", "serve.max_queue=2", "serve.request_timeout_s=6")
        new = Job(cluster, checkout, storage, certificate, *GPU, *limits)
        said = new.ready()
        switched = time.monotonic()
        assert jobs["gpu"].process.wait(timeout=30) == 0, "the run that was replaced ends by itself"
        jobs["gpu"] = new
        time.sleep(2)
    assert load.failed == []
    assert len(load.done) > 20
    assert len([moment for moment in load.done if moment > switched]) > 4
    assert said["base_url"] == servers["gpu"]["base_url"]
    after = fingerprint(said, ask)
    assert (before["engine"]["arguments"]["max_num_seqs"], after["engine"]["arguments"]["max_num_seqs"]) == (16, 2)
    assert said["fingerprint"] == after["sha256"] != before["sha256"]
    deadline = time.monotonic() + 20
    while cluster.state()["free"].get("GPU", 0) != 2:
        assert time.monotonic() < deadline, "the old engine is not gone"
        time.sleep(0.5)


def test_what_exceeds_queue_or_time_is_told_so(servers: dict[str, dict[str, Any]], ask: httpx.Client) -> None:
    client = client_of(servers["gpu"], ask)
    begun = [iter(generate(client, 1900, stream=True)) for _ in range(4)]
    for stream in begun[:2]:
        next(stream)
    with pytest.raises(openai.RateLimitError) as refused:
        generate(client, 1)
    assert refused.value.code == "queue_full"
    assert refused.value.response.headers["retry-after"] == "1"
    for stream in begun:
        with pytest.raises(openai.APIError, match="given up after 6 s"):
            list(stream)
    with pytest.raises(openai.InternalServerError, match="given up after 6 s") as late:
        generate(client, 1900, extra_body={"n": 8, "temperature": 1.0})
    assert late.value.status_code == 503
    assert generate(client, 2).usage.completion_tokens == 2


def test_servers_end_one_by_one_and_ray_serve_with_the_last(
    jobs: dict[str, Job], servers: dict[str, dict[str, Any]], ask: httpx.Client
) -> None:
    jobs["tpu"].interrupt()
    with pytest.raises(openai.NotFoundError):
        client_of(servers["tpu"], ask).models.list()
    assert [model.id for model in client_of(servers["gpu"], ask).models.list()] == ["base"]
    jobs["gpu"].interrupt()
    with pytest.raises(openai.APIConnectionError):
        client_of(servers["gpu"], ask).models.list()
