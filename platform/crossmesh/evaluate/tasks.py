"""The tasks that the judge decides, by name: where their problems come from."""

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.training import DataSpec
from crossmesh.data.rtl import RtlProblem, build_rtl
from crossmesh.evaluate.own_problems import load_problems
from crossmesh.evaluate.problems import Problem, module_under_test
from crossmesh.evaluate.verilog_eval import load_verilog_eval


def load_task(eval_spec: EvalSpec, data: DataSpec) -> tuple[Problem, ...]:
    """Return the problems of `eval.task`, in a fixed order, asked as training rows are.

    `rtl` gives the held-out and the harder problems of the dataset that `data.rtl` describes, `verilog_eval` and
    `problems` those in `eval.path`.
    """
    if eval_spec.task == "verilog_eval":
        return load_verilog_eval(eval_spec.path, eval_spec.variant, data.system_prompt)
    if eval_spec.task == "problems":
        return load_problems(eval_spec.path, eval_spec.success_text, data.system_prompt)
    dataset = build_rtl(data.rtl)
    return tuple(_from_rtl(problem, data.system_prompt) for problem in (*dataset.heldout, *dataset.hard))


def _from_rtl(problem: RtlProblem, system_prompt: str) -> Problem:
    """Turn a generated row into a problem."""
    system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
    messages = (*system, {"role": "user", "content": problem.prompt})
    module = module_under_test(problem.solution, problem.testbench, problem.id)
    return Problem(problem.id, messages, problem.solution, problem.testbench, problem.split, module)
