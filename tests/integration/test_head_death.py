"""The GCS of a cluster's head dies, with real processes: a training and a server go on, and no request fails."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from crossmesh.cluster import head_keeper
from head_by_hand import ByHand, cluster_by_hand
from tiny_job import TINY

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(900)]
KEY = "cm-0123456789abcdef"
SERVE = ("model=tiny_llama", "serve.port=0", "serve.max_model_len=2048", "serve.kv_cache_gib=0.25", "output=json", "hardware=gpu_1xh100")
_PATIENCE_S = 400


def start(cluster: ByHand, checkout: Path, log: Path, job: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(checkout / "jobs" / f"{job}.py"), *arguments]
    environment = {**cluster.environment, "CROSSMESH_API_KEY": KEY}
    with log.open("a") as progress:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=progress, text=True, env=environment, start_new_session=True)


class Client(threading.Thread):
    """Asks a server again and again and counts what it answers."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.stop = threading.Event()
        self.answers: Counter[str] = Counter()

    def run(self) -> None:
        body = {"model": "tiny_llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as client:
            body["model"] = client.get(f"{self._url}/models").json()["data"][0]["id"]
            while not self.stop.is_set():
                try:
                    self.answers[str(client.post(f"{self._url}/chat/completions", json=body).status_code)] += 1
                except httpx.HTTPError as error:
                    self.answers[type(error).__name__] += 1
                time.sleep(0.1)


def test_the_gcs_is_killed_while_a_run_trains_and_a_server_answers(checkout: Path, tmp_path: Path) -> None:
    train, serve = tmp_path / "train.log", tmp_path / "serve.log"
    with cluster_by_hand(2) as cluster:
        keeper = cluster.keeper()
        try:
            server = start(cluster, checkout, serve, "serve", *SERVE, f"storage.root={tmp_path / 'served'}")
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, serve.read_text()
            client = Client(json.loads(line)["base_url"])
            client.start()
            steps = ("optim.steps=300", "checkpoint.every_steps=20", "retry.failures=0", "hardware=gpu_1xh100", "backend=torch")
            job = start(cluster, checkout, train, "finetune", *TINY, *steps, f"storage.root={tmp_path / 'trained'}")
            wait_for_checkpoint(tmp_path / "trained", job, train)
            before = sum(client.answers.values())
            killed = cluster.kill_gcs()
            wait_for_another(cluster, killed)
            out, _ = job.communicate(timeout=_PATIENCE_S)
            assert job.returncode == 0, train.read_text()
            result: dict[str, Any] = json.loads(out.splitlines()[-1])
            assert result["already_done"] is False
            assert "It is started again" not in train.read_text()  # It never stopped.
            client.stop.set()
            client.join(timeout=120)
            assert sum(client.answers.values()) > before + 20
            assert set(client.answers) == {"200"}, client.answers
            again = start(cluster, checkout, train, "finetune", *TINY, *steps, f"storage.root={tmp_path / 'trained'}")
            out, _ = again.communicate(timeout=_PATIENCE_S)  # What is started after it finds the same cluster.
            assert json.loads(out.splitlines()[-1])["already_done"] is True
            server.terminate()
            assert server.wait(timeout=120) in (0, 130, 143)
        finally:
            keeper.kill()
            keeper.wait()


def wait_for_another(cluster: ByHand, killed: int) -> None:
    """Until a GCS runs that is not the one that was killed."""
    deadline = time.monotonic() + 60
    while (found := head_keeper.gcs_of(cluster.port)) is None or found.pid == killed:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_for_checkpoint(storage: Path, job: "subprocess.Popen[str]", log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not list(storage.glob("trials/*/checkpoints/step-*")):
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def test_a_head_that_stays_away_ends_a_job_with_one_message_and_the_same_command_goes_on(checkout: Path, tmp_path: Path) -> None:
    log, storage = tmp_path / "train.log", tmp_path / "trained"
    steps = ("optim.steps=1000", "checkpoint.every_steps=20", "hardware=gpu_1xh100", "backend=torch", f"storage.root={storage}")
    with cluster_by_hand(1) as cluster:
        job = start(cluster, checkout, log, "finetune", *TINY, *steps)
        wait_for_checkpoint(storage, job, log)
        killed_at = time.monotonic()
        cluster.kill_gcs()
        job.wait(timeout=120)
        assert time.monotonic() - killed_at < 60
        assert job.returncode == 1, log.read_text()
        last = log.read_text().strip().splitlines()[-1]
        assert last.startswith(f"crossmesh: The head of the Ray cluster at 127.0.0.1:{cluster.port} has not answered for 45 s")
        assert "Check failed" not in log.read_text()
        assert "*** SIGABRT" not in log.read_text()

        cluster.end()  # What is left of it: on a machine, `ray stop`.
        cluster.start_head()
        cluster.add_gpu()
        again = start(cluster, checkout, log, "finetune", *TINY, *steps)
        stopped = int(wait_for_text(log, r"continuing after step (\d+) of 1000", again)[1])
        assert stopped >= 20
        deadline = time.monotonic() + _PATIENCE_S
        while last_step(log) <= stopped:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        again.send_signal(signal.SIGINT)
        assert again.wait(timeout=120) == 130


def last_step(log: Path) -> int:
    """The last step that was told since the run went on."""
    return max((int(step) for step in re.findall(r"steps (\d+)/1000", log.read_text().partition("continuing after step")[2])), default=0)


def wait_for_text(log: Path, pattern: str, job: "subprocess.Popen[str]") -> re.Match[str]:
    """The first place in `log` that matches."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert job.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return found
