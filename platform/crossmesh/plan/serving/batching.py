"""Continuous batching step by step, as vLLM 0.32 schedules it (`vllm/v1/core/sched/scheduler.py`): who waits, is computed, is preempted.

First come, first served. Every step computes one token of each sequence that is being answered; then, with what is left of the step's
tokens, the rest of the prompt begun last; then new prompts, as long as the cache has room for the whole of one. Where the cache runs out
the latest sequence is preempted: it gives its cache back and is computed again later, its answer so far included. How long a step takes is
the caller's function, so that tests can count by hand. Nothing is cached beyond a request's life (a cold prefix cache).

Not in here: speculative decoding, priorities, and the time that the engine's host needs between steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crossmesh.plan.serving.kv import KvBytes


@dataclass(frozen=True)
class LoadRequest:
    """One request of a load."""

    arrival_s: float
    prompt: int
    """Tokens."""
    output: int
    """Tokens of the answer, one at least."""
    shared: int = 0
    """Tokens that the prompt has in common with the beginning of an earlier one."""
    hashes: tuple[int, ...] = ()
    """The prompt in blocks, as a trace tells them apart: equal numbers are equal tokens."""


@dataclass(frozen=True)
class StepLimits:
    """What bounds a step."""

    step_tokens: int
    """vLLM's `max_num_batched_tokens`."""
    sequences: int
    """vLLM's `max_num_seqs`."""
    cache_bytes: float
    """Keys and values of a chip."""
    kv: KvBytes
    block: int = 16
    """Tokens that the cache is given out by."""

    def held(self, tokens: int) -> float:
        """Bytes that a sequence of `tokens` holds, in whole blocks."""
        size = self.block
        windowed = min(tokens, self.kv.window)
        return size * (-(-tokens // size) * self.kv.global_per_token + -(-windowed // size) * self.kv.sliding_per_token)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a prompt that a step computes."""

    start: int
    """Tokens of the sequence that are in the cache already."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes."""

    decodes: int
    """Sequences that get one token each."""
    context: int
    """Tokens that these see, all together, the new ones included."""
    windowed: int
    """The same in a layer with a window."""
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return self.decodes + sum(chunk.tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """How one request fared; seconds since the start of the load."""

    request: LoadRequest
    first_s: float
    """Its first token is there."""
    end_s: float
    """Its last token is there."""
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.request.arrival_s

    @property
    def e2e_s(self) -> float:
        """From arrival to the last token."""
        return self.end_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None with one token."""
        return (self.end_s - self.first_s) / (self.request.output - 1) if self.request.output > 1 else None


@dataclass(frozen=True)
class Served:
    """A load that was answered."""

    answers: tuple[SimulatedAnswer, ...]
    """In the order of the requests."""
    end_s: float
    busy_s: float
    steps: int
    sequence_s: float
    """Sequences in the batch, summed over time."""
    waiting: int
    """Most requests that waited at once."""
    queued_until_s: float
    """When the last request that had to wait was begun."""


@dataclass(eq=False, slots=True)
class _Sequence:
    request: LoadRequest
    index: int
    made: int = 0
    """Tokens of the answer before `since`."""
    cached: int = 0
    """Tokens in the cache; while it is decoded, at step `since`."""
    since: int = -1
    """The step from which it gets a token each step; -1 while its prompt is computed."""
    first_s: float = -1.0
    preemptions: int = 0

    @property
    def length(self) -> int:
        """Tokens known so far: what must be computed before the next one."""
        return self.request.prompt + self.made

    @property
    def last_step(self) -> int:
        """The step that makes its last token."""
        return self.since + self.request.output - self.made - 1


def serve(requests: Sequence[LoadRequest], limits: StepLimits, seconds: Callable[[Step], float]) -> Served:
    """Answer `requests`, ordered by arrival; `seconds` is how long a step takes.

    Raises `ValueError` for a request that the cache cannot hold by itself, and for a step that is too small for all sequences.
    """
    if limits.step_tokens < limits.sequences:
        raise ValueError(f"step_tokens={limits.step_tokens} is below sequences={limits.sequences}")
    for request in requests:
        if limits.held(request.prompt + request.output) > limits.cache_bytes:
            raise ValueError(f"{request} needs {limits.held(request.prompt + request.output):.0f} bytes of {limits.cache_bytes:.0f}")
    return _Engine(requests, limits, seconds).run()


class _Engine:
    """The state between steps. What all decoded sequences add up to is kept as sums, so a step costs the same for one as for a thousand."""

    def __init__(self, requests: Sequence[LoadRequest], limits: StepLimits, seconds: Callable[[Step], float]) -> None:
        self.requests, self.limits, self.seconds = requests, limits, seconds
        self.now, self.step, self.free = 0.0, 0, limits.cache_bytes
        self.arrived = 0
        self.waiting: deque[_Sequence] = deque()
        self.running: dict[int, _Sequence] = {}
        """In the order of admission: the last one is preempted first."""
        self.partial: _Sequence | None = None
        """The sequence whose prompt is begun and not finished; always the last of `running`."""
        self.decoding = _Decoding(limits)
        self.answers: dict[int, SimulatedAnswer] = {}
        self.busy = self.sequence_s = self.queued_until = 0.0
        self.most_waiting = self.steps = 0

    def run(self) -> Served:
        """Step until all requests are answered."""
        while len(self.answers) < len(self.requests):
            if not self.running and not self.waiting:
                self.now = max(self.now, self.requests[self.arrived].arrival_s)
            self._arrive()
            self._step()
        answers = tuple(self.answers[index] for index in range(len(self.requests)))
        return Served(answers, self.now, self.busy, self.steps, self.sequence_s, self.most_waiting, self.queued_until)

    def _arrive(self) -> None:
        while self.arrived < len(self.requests) and self.requests[self.arrived].arrival_s <= self.now:
            self.waiting.append(_Sequence(self.requests[self.arrived], self.arrived))
            self.arrived += 1

    def _step(self) -> None:
        queued = bool(self.waiting)
        self.decoding.leave_window(self.step)
        preempted = self._make_room()
        self.free -= self.decoding.growth(self.step)
        chunks: list[tuple[_Sequence, Chunk]] = []
        left = self.limits.step_tokens - self.decoding.count
        if self.partial is not None:
            left -= self._compute(self.partial, left, chunks)
        if not preempted:
            self._admit(left, chunks)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        if not self.running:
            return  # All were preempted; the next step admits again.
        context, windowed = self.decoding.advance()
        time = self.seconds(Step(self.decoding.count, context, windowed, tuple(chunk for _, chunk in chunks)))
        self.now += time
        self.busy += time
        self.sequence_s += time * len(self.running)
        self.steps += 1
        if queued:
            self.queued_until = self.now
        self._finish(chunks)
        self.step += 1

    def _make_room(self) -> bool:
        """Preempt the latest sequences until the others have room for this step; whether one was."""
        preempted = False
        while self.running:
            partial = self.partial
            needed = self.decoding.growth(self.step)
            if partial is not None:
                tokens = min(partial.length - partial.cached, self.limits.step_tokens - self.decoding.count)
                needed += self.limits.held(partial.cached + tokens) - self.limits.held(partial.cached)
            if needed <= self.free:
                break
            self._preempt()
            preempted = True
        return preempted

    def _preempt(self) -> None:
        _, sequence = self.running.popitem()
        if sequence is self.partial:
            self.partial = None
        else:
            self.decoding.remove(sequence, self.step)
            sequence.made += self.step - sequence.since
            sequence.cached += self.step - sequence.since
        self.free += self.limits.held(sequence.cached)
        sequence.cached, sequence.since = 0, -1
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _compute(self, sequence: _Sequence, left: int, chunks: list[tuple[_Sequence, Chunk]]) -> int:
        """Give `sequence` as many as `left` tokens of this step; returns how many."""
        tokens = min(sequence.length - sequence.cached, left)
        if not tokens:
            return 0
        self.free -= self.limits.held(sequence.cached + tokens) - self.limits.held(sequence.cached)
        chunks.append((sequence, Chunk(sequence.cached, tokens)))
        sequence.cached += tokens
        self.partial = sequence if sequence.cached < sequence.length else None
        return tokens

    def _admit(self, left: int, chunks: list[tuple[_Sequence, Chunk]]) -> None:
        """Begin waiting prompts, in order; one whose whole length has no room holds up all behind it."""
        while left > 0 and self.waiting and len(self.running) < self.limits.sequences:
            sequence = self.waiting[0]
            if self.limits.held(sequence.length) > self.free:
                break
            self.waiting.popleft()
            self.running[sequence.index] = sequence
            left -= self._compute(sequence, left, chunks)

    def _finish(self, chunks: list[tuple[_Sequence, Chunk]]) -> None:
        """Hand out this step's tokens."""
        for sequence in self.decoding.finished(self.step):
            sequence.cached += self.step + 1 - sequence.since
            self._answer(sequence)
        for sequence, _ in chunks:
            if sequence is self.partial:
                continue
            sequence.made += 1
            if sequence.first_s < 0:
                sequence.first_s = self.now
            if sequence.made == sequence.request.output:
                self._answer(sequence)
            else:
                sequence.since = self.step + 1
                self.decoding.add(sequence)

    def _answer(self, sequence: _Sequence) -> None:
        self.free += self.limits.held(sequence.cached)
        del self.running[sequence.index]
        self.answers[sequence.index] = SimulatedAnswer(sequence.request, sequence.first_s, self.now, sequence.preemptions)


@dataclass
class _Decoding:
    """Sums over the sequences that get one token each step.

    A sequence needs a new block in every step in which its tokens are a multiple of the block's; as each gets one token a step, that is in
    the steps of one phase, and it is enough to count sequences by phase.
    """

    limits: StepLimits
    count: int = 0
    context: int = 0
    windowed: int = 0
    growing: int = 0
    """Those that are shorter than the window."""
    phases: list[int] = field(default_factory=list)
    growing_phases: list[int] = field(default_factory=list)
    ends: dict[int, list[_Sequence]] = field(default_factory=dict)
    """By the step that makes the last token."""
    crossings: dict[int, list[int]] = field(default_factory=dict)
    """Phases, by the step from which a sequence fills the window."""

    def __post_init__(self) -> None:
        self.phases, self.growing_phases = [0] * self.limits.block, [0] * self.limits.block

    def add(self, sequence: _Sequence) -> None:
        """Take `sequence`, decoded from step `sequence.since` on."""
        self._count(sequence, sequence.cached, 1)
        self.ends.setdefault(sequence.last_step, []).append(sequence)
        if sequence.cached < self.limits.kv.window:
            self._grow(self._phase(sequence), 1)
            self.crossings.setdefault(self._crossing(sequence), []).append(self._phase(sequence))

    def remove(self, sequence: _Sequence, step: int) -> None:
        """Drop `sequence` before `step` is computed."""
        tokens = sequence.cached + step - sequence.since
        self._count(sequence, tokens, -1)
        self.ends[sequence.last_step].remove(sequence)
        if tokens < self.limits.kv.window:
            self._grow(self._phase(sequence), -1)
            self.crossings[self._crossing(sequence)].remove(self._phase(sequence))

    def leave_window(self, step: int) -> None:
        """Stop counting those that fill the window by `step`."""
        for phase in self.crossings.pop(step, ()):
            self._grow(phase, -1)

    def growth(self, step: int) -> float:
        """Bytes of new blocks that `step` needs."""
        phase, kv = step % self.limits.block, self.limits.kv
        return self.limits.block * (self.phases[phase] * kv.global_per_token + self.growing_phases[phase] * kv.sliding_per_token)

    def advance(self) -> tuple[int, int]:
        """Give each its token; returns what they see together, without and with a window."""
        self.context += self.count
        self.windowed += self.growing
        return self.context, self.windowed

    def finished(self, step: int) -> list[_Sequence]:
        """Take out those whose last token `step` made."""
        done = self.ends.pop(step, [])
        for sequence in done:
            tokens = sequence.cached + step + 1 - sequence.since
            self._count(sequence, tokens, -1)
            if tokens <= self.limits.kv.window:
                self._grow(self._phase(sequence), -1)
                self.crossings[self._crossing(sequence)].remove(self._phase(sequence))
        return done

    def _count(self, sequence: _Sequence, tokens: int, sign: int) -> None:
        self.count += sign
        self.context += sign * tokens
        self.windowed += sign * min(tokens, self.limits.kv.window)
        self.phases[self._phase(sequence)] += sign

    def _grow(self, phase: int, sign: int) -> None:
        self.growing += sign
        self.growing_phases[phase] += sign

    def _phase(self, sequence: _Sequence) -> int:
        return (sequence.since - sequence.cached) % self.limits.block

    def _crossing(self, sequence: _Sequence) -> int:
        return sequence.since + self.limits.kv.window - sequence.cached
