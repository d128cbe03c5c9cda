"""Evaluate a model, its adapters or any OpenAI endpoint: `crossmesh evaluate eval=rtl serve.adapters=[mine:RUN]`."""

from dataclasses import dataclass

from rich.console import Console as RichConsole

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError, require_choice
from crossmesh.installation import conf_folder


@dataclass(frozen=True)
class EvaluateKeys(JobKeys):
    """The job's own keys."""

    against: str = ""
    """Run id of an earlier evaluation, or how it begins: every model is compared with it."""
    report: str = ""
    """`paper`: what the published counts of arXiv 2605.25645 allow to say; nothing is evaluated."""
    force: bool = False
    """Ask and judge again what was evaluated before."""

    def __post_init__(self) -> None:
        """Check the report."""
        super().__post_init__()
        require_choice("report", self.report, ("", "paper"))


def run(job: Job[EvaluateKeys]) -> None:
    """Evaluate, compare and show."""
    from crossmesh.paper.evaluation import evaluation_json, evaluation_table
    from crossmesh.pipeline.evaluation_job import evaluate, judge_task, values_of
    from crossmesh.pipeline.evaluation_tables import render_evaluations, render_references

    spec, keys, console, out = job.spec, job.keys, Console(), RichConsole(highlight=False)
    if keys.report:
        console.finish(lambda: out.print(evaluation_table()), evaluation_json(), keys.output)
    elif spec.eval.only == "references":
        values = judge_task(spec, console)
        console.finish(lambda: out.print(render_references(values)), values, keys.output)
        if values["failed"]:
            raise CrossmeshError(f"{values['failed']} problems pass a solution that is known to be wrong.")
    else:
        found, compared = evaluate(spec, console, keys.against, force=keys.force)
        values = values_of(spec, found, compared)
        console.finish(lambda: out.print(render_evaluations(found, compared)), values, keys.output)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("evaluate", EvaluateKeys, run, conf_folder(), slow=True)
