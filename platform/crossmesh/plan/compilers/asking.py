"""Gets answers to questions: kept ones from the store, the others from a worker, each kept as soon as it is there, with progress."""

from collections.abc import Callable, Sequence

from crossmesh.console import Console
from crossmesh.plan.compilers.workers import run_compiler_worker
from crossmesh.plan.store.store import AnswerStore, Question, StoredAnswer


def ask(
    store: AnswerStore,
    console: Console,
    title: str,
    questions: Sequence[Question],
    expected_s: Callable[[Question], float],
    label: str = "seconds",
) -> list[StoredAnswer]:
    """Current answers to `questions`, all of one kind, in their order; an interrupted call goes on where it was.

    Args:
        store: where answers are found and kept.
        console: shows `title` while a worker is at work, and how long it takes.
        title: what is done, for a person.
        questions: what is asked.
        expected_s: seconds that an answer takes.
        label: what progress counts.

    Raises `InputError` for a question that has no answer, `CrossmeshError` when the worker died.
    """
    answers = [store.find(question) for question in questions]
    absent = [index for index, answer in enumerate(answers) if answer is None or answer.stale]
    if absent:
        asked = [questions[index] for index in absent]
        expected = [int(expected_s(question)) for question in asked]
        with console.stage(title) as stage:

            def tick(index: int, seconds: float) -> None:
                done = f", {index + 1} of {len(asked)}" if len(asked) > 1 else ""
                stage.progress(label + done, int(seconds), max(expected[index], int(seconds) + 5))

            log = store.folder / "logs" / f"{asked[0].digest[:16]}.log"
            for part in run_compiler_worker(asked[0].kind, [question.fields for question in asked], log, tick):
                answers[absent[part.index]] = store.keep(asked[part.index], part.answer, part.seconds, part.versions)
    return [answer for answer in answers if answer is not None]
