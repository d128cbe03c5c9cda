"""What lm-evaluation-harness asks an endpoint with: run by its interpreter, as its command line with one more model, `crossmesh-chat`.

Its own client throws away how answers ended, keeps no answer of a task that samples, takes an error inside status 200 for an empty answer
and gives up on parameters that an endpoint refuses. This one keeps every body before it is read (`ANSWERS`), asks again only for what is
missing there, and says in `ASKED` what was sent and what came. It imports nothing of crossmesh but what needs the standard library alone.
"""

import asyncio
import hashlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from crossmesh.evaluate.answers import (
    NO_ANSWER_TRIES,
    REFUSED_CALLER,
    REFUSED_PROMPT,
    REQUEST_TIMEOUT_S,
    Answer,
    NoAnswerError,
    Parameters,
    read_answer,
)
from crossmesh.files import parse_json, write_json

MODEL = "crossmesh-chat"
VARIABLE = "CROSSMESH_HARNESS"
"""Environment variable with the `Settings` as JSON."""
ANSWERS, ASKED = "answers.jsonl", "asked.json"
_TRIES = 7
_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0


@dataclass(frozen=True)
class Settings:
    """How to ask."""

    url: str
    """Of chat completions."""
    model: str
    seed: int
    concurrency: int
    folder: str
    """Where answers are kept."""
    server: str = ""
    """Whose answers count: those that another one gave are asked for again; empty where each answer says it."""


@dataclass(frozen=True)
class Request:
    """One chat completion that a task wants."""

    task: str
    payload: Mapping[str, Any]
    key: str
    """Tells it from all others, also from the same one asked for the second time."""
    again: int
    """How many equal ones were before it: each has a seed of its own."""


class Failed(Exception):  # noqa: N818  # The harness is ended with its message.
    """Requests failed for good."""


class Asker:
    """Gets the answers to requests, and keeps what came for them.

    Args:
        settings: how to ask.
        key: bearer token.
    """

    def __init__(self, settings: Settings, key: str) -> None:
        self._settings, self._key = settings, key
        self._parameters = Parameters()
        self._seen: Counter[str] = Counter()
        self._file = Path(settings.folder) / ANSWERS
        self._kept = _read_kept(self._file)
        self._settled = 0
        self._done: list[tuple[Request, Answer, dict[str, Any], tuple[str, ...]]] = []
        self._errors: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._failed_in_a_row = 0
        self._last = ""

    def request(self, task: str, payload: Mapping[str, Any]) -> Request:
        """A request of a task; equal ones are told apart."""
        digest = hashlib.sha256(json.dumps([self._settings.server, payload], sort_keys=True).encode()).hexdigest()
        again = self._seen[digest]
        self._seen[digest] += 1
        return Request(task, payload, f"{digest}-{again}", again)

    async def ask(self, requests: Sequence[Request]) -> list[str]:
        """Return the text of each answer in order; the endpoint's refusal of a prompt, and what is not an answer, is an empty one."""
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        self._settled = 0
        texts: dict[str, str] = {}
        pending = iter(requests)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        connector = TCPConnector(limit=self._settings.concurrency)
        with self._file.open("ab") as stream:
            async with ClientSession(connector=connector, timeout=ClientTimeout(total=REQUEST_TIMEOUT_S)) as session:

                async def in_turn() -> None:
                    for request in pending:
                        if self._failed_in_a_row >= max(3, self._settings.concurrency):
                            return
                        texts[request.key] = await self._text(request, session, stream)
                        self._settled += 1
                        sys.stderr.write(f"Requesting API: {self._settled}/{len(requests)}\n")

                await asyncio.gather(*(in_turn() for _ in range(self._settings.concurrency)))
        self._say()
        if self._failures or len(texts) < len(requests):
            kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted((self._failures + self._errors).items()))
            raise Failed(f"{len(self._done)} answers came; requests failed for good ({kinds}; the last said: {self._last})")
        if self._errors and not self._done:
            raise Failed(f"The endpoint refused every prompt ({dict(self._errors)}); the last time it said: {self._last}")
        return [texts[request.key] for request in requests]

    async def _text(self, request: Request, session: Any, stream: BinaryIO) -> str:
        found = self._kept.get(request.key)
        if found is None:
            try:
                found = await self._answer(request, session, stream)
            except NoAnswerError as error:
                self._last = str(error)[:500]
                (self._failures if error.busy else self._errors)[error.kind] += 1
                self._failed_in_a_row += error.busy or not error.kind.startswith("http_")
                return ""
        self._failed_in_a_row = 0
        answer, sent, changes = found
        self._done.append((request, answer, sent, changes))
        return _cut(answer.text, request.payload.get("stop")) if "stop" in changes else answer.text

    async def _answer(self, request: Request, session: Any, stream: BinaryIO) -> tuple[Answer, dict[str, Any], tuple[str, ...]]:
        """Ask until there is an answer; `NoAnswerError` when there is none for good."""
        empty, wait_s = 0, _WAIT_S
        for attempt in range(_TRIES):
            status, body, sent, changes = await self._send(request, session)
            try:
                if status != 200:
                    raise _refusal(status, body)
                line = {"key": request.key, "sent": sent, "changes": changes, "body": body.decode(errors="backslashreplace")}
                stream.write(json.dumps(line).encode() + b"\n")
                stream.flush()
                return read_answer(body), sent, changes
            except NoAnswerError as error:
                empty += status == 200
                refused = status != 200 and not error.busy
                if refused or attempt + 1 == _TRIES or empty == NO_ANSWER_TRIES:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError("no attempt was made")

    async def _send(self, request: Request, session: Any) -> tuple[int, bytes, dict[str, Any], tuple[str, ...]]:
        """Status, body, what was sent beside messages and model, and what of it otherwise than the task wants."""
        from aiohttp import ClientError

        whole = dict(request.payload)
        fixed = {name: whole.pop(name) for name in ("messages", "model")}
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        while True:
            sent, changes = self._parameters.sent(whole), self._parameters.changes(whole)
            seeded = {**sent, "seed": sent["seed"] + request.again} if "seed" in sent else sent
            try:
                async with session.post(self._settings.url, json={**fixed, **seeded}, headers=headers) as response:
                    status, body = response.status, await response.read()
            except (ClientError, TimeoutError, OSError) as error:
                return 0, (str(error) or type(error).__name__).encode(), sent, changes
            if not self._parameters.refuses(status, body, sent):
                return status, body, sent, changes

    def _say(self) -> None:
        """Write down what was asked and what came."""
        sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for request, _, parameters, _ in self._done:
            if parameters not in sent[request.task]:
                sent[request.task].append(parameters)
        answers = [answer for _, answer, _, _ in self._done]
        write_json(
            Path(self._settings.folder) / ASKED,
            {
                "finish_reasons": dict(Counter(answer.finish_reason for answer in answers)),
                "errors": dict(self._errors),
                "notes": dict(Counter(answer.note for answer in answers if answer.note)),
                "changes": dict(Counter(change for _, _, _, changes in self._done for change in changes)),
                "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
                "completion_tokens": sum(answer.completion_tokens for answer in answers),
                "sent": {task: sorted(found, key=lambda one: json.dumps(one, sort_keys=True)) for task, found in sent.items()},
            },
        )


def _refusal(status: int, body: bytes) -> NoAnswerError:
    said = " ".join(body[:500].decode(errors="replace").split())
    if not status:
        return NoAnswerError("connection", said, busy=True)
    if status in REFUSED_CALLER:
        raise Failed(f"The endpoint refused to serve the model (status {status}): {said}")
    return NoAnswerError(f"http_{status}", said, busy=status not in REFUSED_PROMPT)


def _cut(text: str, stops: object) -> str:
    """The text up to the first of `stops`, for an endpoint that does not take them."""
    for stop in stops if isinstance(stops, list) else [stops]:
        if isinstance(stop, str) and stop:
            text = text.partition(stop)[0]
    return text


def _read_kept(file: Path) -> dict[str, tuple[Answer, dict[str, Any], tuple[str, ...]]]:
    """The answers that an earlier start kept, by key; a torn line and what is not an answer are passed over."""
    found = {}
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.endswith(b"\n"):
        with file.open("ab") as stream:
            stream.write(b"\n")
    for line in content.split(b"\n"):
        try:
            values = parse_json(line)
            # What is no UTF-8 was kept with escapes and is not JSON any more, then as now.
            found[values["key"]] = (read_answer(values["body"].encode(errors="surrogatepass")), values["sent"], tuple(values["changes"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def main() -> None:
    """Run the harness's command line."""
    import copy

    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import register_model
    from lm_eval.models.openai_completions import LocalChatCompletion

    settings = Settings(**json.loads(os.environ[VARIABLE]))
    asker = Asker(settings, os.environ.get("OPENAI_API_KEY", ""))

    @register_model(MODEL)
    class Chat(LocalChatCompletion):
        """The harness's chat model, which makes the requests; they are asked by us."""

        def __init__(self, **_: Any) -> None:
            super().__init__(base_url=settings.url, model=settings.model, num_concurrent=settings.concurrency, seed=settings.seed)

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002  # the harness's form
            """Return the text of each answer."""
            if any(len(one.args) > 2 for one in requests):
                raise Failed("A task shows images or other media, which is not supported. Allowed: tasks that ask in text.")
            asked = [
                asker.request(
                    one.task_name,
                    self._create_payload(
                        self.create_message([one.args[0]]), generate=True, gen_kwargs=copy.deepcopy(one.args[1]), seed=settings.seed
                    ),
                )
                for one in requests
            ]
            return asyncio.run(asker.ask(asked))

    try:
        cli_evaluate()
    except Failed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
