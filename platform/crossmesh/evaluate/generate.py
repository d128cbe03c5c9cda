"""Sample answers from an OpenAI-compatible endpoint: concurrent, seeded one by one, resumable.

Knows no engine and no model. Whether an answer is right is judged later.
"""

import asyncio
import hashlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crossmesh.config.evaluation import EvalSpec
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.evaluate.answers import (
    NO_ANSWER_TRIES,
    REFUSED_CALLER,
    REFUSED_PROMPT,
    REQUEST_TIMEOUT_S,
    NoAnswerError,
    Parameters,
    read_answer,
)
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.samples import Sample, SampleFile
from crossmesh.server_identity import Origin, ServerChangedError

if TYPE_CHECKING:
    from httpx import Request
    from openai import AsyncOpenAI

_MAX_RETRIES = 6
"""Of the client, on 408, 409, 429, 5xx and lost connections: half a second, doubling up to 8 s, about 20 s in all."""
_NO_ANSWER_WAIT_S = 0.5
"""Before what was no answer is asked for again; it doubles."""
_LOOK_EVERY = 8
"""Answers after which a server that does not sign them is looked at."""


class GenerationError(CrossmeshError):
    """Requests failed for good although they were repeated; the answers that came are kept."""


def sample_seed(seed: int, problem: str, index: int) -> int:
    """Return the seed of one request, 31 bits: the same whatever the order or number of the others."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}:{problem}".encode()).digest()[:4]) >> 1


async def generate(
    base_url: str,
    api_key: str,
    model: str,
    problems: Sequence[Problem],
    eval_spec: EvalSpec,
    *,
    path: Path,
    identity: Mapping[str, Any],
    on_progress: Callable[[int, int], None],
    origin: Origin | None = None,
) -> tuple[Sample, ...]:
    """Return `eval.samples` answers to each problem, in order of problem and index, asking only for those that `path` lacks.

    A prompt that the endpoint refuses (too long, say), or answers with something that is not an answer, gives a sample with `error` set.
    All that comes is kept before it is read.

    Args:
        base_url: the endpoint, with or without `/v1`.
        api_key: sent as bearer token.
        model: model id as the endpoint lists it.
        problems: what to ask.
        eval_spec: how to sample.
        path: `.jsonl` file that keeps the answers.
        identity: what the answers depend on; answers in `path` of another identity are refused.
        on_progress: called with (answers there, answers wanted).
        origin: the server behind the endpoint, of which alone answers are kept; None: the one that answers now.

    Raises:
        InputError: the endpoint does not know the key or the model, refuses every prompt, or `path` holds other answers.
        GenerationError: requests failed after all repeats.
        ServerChangedError: another server has answered. Where answers do not say which one they come from, all that came in this call
            are dropped.
    """
    wanted = [(problem, index) for problem in problems for index in range(eval_spec.samples)]
    with SampleFile(path, identity) as kept:
        missing = [(problem, index) for problem, index in wanted if (problem.id, index) not in kept.samples]
        on_progress(len(wanted) - len(missing), len(wanted))
        if missing:
            if origin is None:
                origin = await asyncio.to_thread(Origin, base_url, api_key)
            try:
                async with _client(base_url, api_key) as client:
                    run = _Run(client, model, eval_spec, kept, len(wanted), on_progress, origin)
                    await run.ask(missing)
                await asyncio.to_thread(origin.check)
            except ServerChangedError:
                if not origin.signed:
                    kept.forget_new()
                raise
        return tuple(kept.samples[(problem.id, index)] for problem, index in wanted)


def _client(base_url: str, api_key: str) -> "AsyncOpenAI":
    """Make the client. A proxy from the environment is never used for this machine's own addresses."""
    # Imported here because it takes a second and only sampling needs it.
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"The endpoint {base_url!r} is not an http:// or https:// URL.")
    url = base_url if parts.path.strip("/") else f"{base_url.rstrip('/')}/v1"
    hooks = {"request": [] if api_key else [_without_key]}
    http = DefaultAsyncHttpxClient(trust_env=not _is_local(parts.hostname), timeout=REQUEST_TIMEOUT_S, event_hooks=hooks)
    # The client refuses to be without a key, and endpoints without keys are usual.
    return AsyncOpenAI(base_url=url, api_key=api_key or "none", max_retries=_MAX_RETRIES, timeout=REQUEST_TIMEOUT_S, http_client=http)


async def _without_key(request: "Request") -> None:
    request.headers.pop("Authorization", None)


def _is_local(host: str) -> bool:
    """Tell whether a host is this machine by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Run:
    """One round of requests: `concurrency` askers draw from one list and stop early when the endpoint is gone."""

    def __init__(
        self,
        client: "AsyncOpenAI",
        model: str,
        spec: EvalSpec,
        kept: SampleFile,
        total: int,
        on_progress: Callable[[int, int], None],
        origin: Origin,
    ) -> None:
        self._client, self._model, self._spec, self._kept, self._total, self._on_progress = client, model, spec, kept, total, on_progress
        self._origin = origin
        self._asked = 0
        self._failures: Counter[str] = Counter()
        self._last_failure = ""
        self._failed_in_a_row = 0
        self._refused: Counter[str] = Counter()
        self._parameters = Parameters()
        self._stop: CrossmeshError | None = None

    async def ask(self, missing: Sequence[tuple[Problem, int]]) -> None:
        """Ask for every missing answer."""
        pending = iter(missing)
        await asyncio.gather(*(self._ask_in_turn(pending) for _ in range(min(self._spec.concurrency, len(missing)))))
        if self._stop:
            raise self._stop
        if self._failures or len(self._kept.samples) < self._total:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted((self._failures + self._refused).items()))
            raise GenerationError(
                f"{len(self._kept.samples) - self._refused.total()} of {self._total} answers came from {self._client.base_url}; requests "
                f"failed for good ({kinds}; the last said: {self._last_failure}). The answers are kept: start the evaluation again to ask "
                "for the rest."
            )
        if self._refused.total() == self._total:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted(self._refused.items()))
            raise InputError(f"The endpoint refused every prompt ({kinds}); the last time it said: {self._last_failure}")

    async def _ask_in_turn(self, pending: Iterator[tuple[Problem, int]]) -> None:
        """Ask one after the other until there is nothing left or no sense in going on."""
        for problem, index in pending:
            if self._stop or self._failed_in_a_row >= max(3, self._spec.concurrency):
                return
            await self._ask_one(problem, index)

    async def _ask_one(self, problem: Problem, index: int) -> None:
        """Get one answer and keep it, or note why there is none."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        seed = sample_seed(self._spec.seed, problem.id, index)
        try:
            sample = await self._request(problem, index, seed)
            self._asked += 1
            if not self._origin.signed and self._asked % _LOOK_EVERY == 0:
                await asyncio.to_thread(self._origin.check, 1)
        except ServerChangedError as error:
            self._stop = error
            return
        except APIStatusError as error:
            self._last_failure = str(error)[:500]
            if error.status_code in REFUSED_CALLER:
                self._stop = InputError(f"{self._client.base_url} refused to serve the model {self._model!r}: {self._last_failure}")
            elif error.status_code in REFUSED_PROMPT:
                self._refuse(problem, index, seed, f"http_{error.status_code}")
            else:
                self._fail(f"http_{error.status_code}")
        except NoAnswerError as error:
            self._last_failure = str(error)[:500]
            if error.busy:
                self._fail(error.kind)
            else:
                self._failed_in_a_row += 1
                self._refuse(problem, index, seed, error.kind)
        except (APIConnectionError, APITimeoutError) as error:
            self._last_failure = str(error.__cause__ or error)[:500]
            self._fail("timeout" if isinstance(error, APITimeoutError) else "connection")
        else:
            self._failed_in_a_row = 0
            self._kept.append(sample)
        self._on_progress(len(self._kept.samples), self._total)

    async def _request(self, problem: Problem, index: int, seed: int) -> Sample:
        """Get one chat completion; what is none is asked for again a few times."""
        wanted = {"temperature": self._spec.temperature, "top_p": self._spec.top_p, "max_tokens": self._spec.max_tokens, "seed": seed}
        for attempt in range(NO_ANSWER_TRIES):
            body, changes = await self._send(problem, wanted)
            self._kept.keep(problem.id, index, body)
            try:
                found = read_answer(body)
            except NoAnswerError:
                if attempt + 1 == NO_ANSWER_TRIES:
                    raise
                await asyncio.sleep(_NO_ANSWER_WAIT_S * 2**attempt)
            else:
                counts = (found.prompt_tokens, found.completion_tokens)
                return Sample(problem.id, index, seed, found.text, found.finish_reason, *counts, note=found.note, changes=changes)
        raise AssertionError("no attempt was made")

    async def _send(self, problem: Problem, wanted: Mapping[str, Any]) -> tuple[bytes, tuple[str, ...]]:
        """Return the body of one answer and which parameters were not sent as `wanted`: those that the endpoint refuses by name."""
        from openai import APIStatusError

        messages: Any = [dict(message) for message in problem.messages]
        while True:
            sent, changes = self._parameters.sent(wanted), self._parameters.changes(wanted)
            try:
                answer = await self._client.chat.completions.with_raw_response.create(model=self._model, messages=messages, **sent)
            except APIStatusError as error:
                if not self._parameters.refuses(error.status_code, error.response.content, sent):
                    raise
            else:
                self._origin.check_answer(answer.headers)
                return answer.http_response.content, changes

    def _refuse(self, problem: Problem, index: int, seed: int, kind: str) -> None:
        """Count a prompt that the endpoint does not answer."""
        self._refused[kind] += 1
        self._kept.samples[(problem.id, index)] = Sample(problem.id, index, seed, "", "", 0, 0, error=kind)

    def _fail(self, kind: str) -> None:
        """Count a request that failed for good."""
        self._failures[kind] += 1
        self._failed_in_a_row += 1
