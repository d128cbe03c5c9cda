"""How long rows are, and what packing gains: `crossmesh lengths data=codev_r1 model=gemma4_31b`."""

from dataclasses import dataclass

from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.errors import require
from crossmesh.installation import conf_folder


@dataclass(frozen=True)
class LengthsKeys(JobKeys):
    """The job's own keys."""

    show: int = 0
    """Show the first so many rows as the model will see them, and write them as a page."""

    def __post_init__(self) -> None:
        """Check the number."""
        super().__post_init__()
        require(self.show >= 0, "show", self.show, "0 for none, or a number of rows")


def run(job: Job[LengthsKeys]) -> None:
    """Tokenize the rows and print mean, percentiles, the share that each limit keeps, and packing efficiency over the spec's steps."""
    from crossmesh.data.packing import efficiencies
    from crossmesh.data.served import dropped_text
    from crossmesh.data.shown import page, segments, terminal
    from crossmesh.files import write_text
    from crossmesh.trial.trial import fetch, own_tokenizer, read_data

    spec, console = job.spec, Console()
    with console.stage(f"data: {spec.data.source}"):
        model = fetch(spec)
        data = read_data(spec, model)
        tokenizer = own_tokenizer(spec, model)
    for found in data.forms:
        console.say(found)
    lengths = data.lengths
    shown = [(row.id, segments(row, tokenizer)) for row in data.rows[: job.keys.show]]
    file = spec.storage.path / "rows" / f"{data.digest[:16]}.html"
    if shown:
        write_text(file, page(spec.data.source, shown))
        console.show(terminal(shown))
    result = {
        "rows": lengths.count,
        "mean": lengths.mean,
        "shortest": lengths.shortest,
        "longest": lengths.longest,
        **{f"p{percentile:g}": length for percentile, length in lengths.percentiles},
        **{f"kept_at_{limit}": share for limit, share in lengths.kept},
        "max_length": spec.data.max_length,
        "dropped_long": data.dropped_long,
        "dropped_empty": data.dropped_empty,
        **({"dropped": dropped_text(data)} if data.dropped else {}),
        **({"forms": "; ".join(data.forms)} if data.forms else {}),
        **({"page": str(file)} if shown else {}),
        "packing": spec.packing.mode,
        "sequence_length": spec.sequence_length,
        **{f"efficiency_{mode}": share for mode, share in efficiencies([len(row.tokens) for row in data.rows], spec).items()},
    }
    console.result(f"lengths in tokens: {spec.data.source}", result, job.keys.output)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("lengths", LengthsKeys, run, conf_folder(), slow=True)
