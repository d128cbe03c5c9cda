"""The tasks by name: where their problems come from."""

from crossmesh.data.rtl import RtlProblem, build_rtl
from crossmesh.errors import require_choice
from crossmesh.evaluate.problems import Problem
from crossmesh.spec.evaluation import EvalSpec
from crossmesh.spec.training import DataSpec


def load_task(eval_spec: EvalSpec, data: DataSpec) -> tuple[Problem, ...]:
    """Return the problems of `eval.task`, in a fixed order.

    `rtl` gives the held-out and the harder problems of the dataset that `data.rtl` describes, asked as training rows are.
    """
    require_choice("eval.task", eval_spec.task, ("rtl",))
    dataset = build_rtl(data.rtl)
    return tuple(_from_rtl(problem, data.system_prompt) for problem in (*dataset.heldout, *dataset.hard))


def _from_rtl(problem: RtlProblem, system_prompt: str) -> Problem:
    """Turn a generated row into a problem."""
    system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
    messages = (*system, {"role": "user", "content": problem.prompt})
    return Problem(problem.id, messages, problem.solution, problem.testbench, problem.split)
