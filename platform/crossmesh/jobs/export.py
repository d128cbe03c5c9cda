"""Export an adapter, alone or merged into its base: `crossmesh export mode=merged adapter=/path/to/adapter folder=/path/to/new`."""

from dataclasses import dataclass
from functools import partial

from crossmesh.adapters.export import MODES, export
from crossmesh.adapters.hub import prepare_publication
from crossmesh.adapters.outputs import output_folder
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.adapters.proof import proof_of_run
from crossmesh.adapters.sources import find_adapter
from crossmesh.cluster.session import ray_session
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.console import Console
from crossmesh.errors import require_choice
from crossmesh.installation import conf_folder
from crossmesh.models.weights.stores import is_made, open_store
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.trial import fetch


@dataclass(frozen=True)
class ExportKeys(JobKeys):
    """The job's own keys."""

    mode: str = "adapter"
    """`adapter` checks and copies it; `serving` writes the form that vLLM serves right; `merged` adds it to its base, `model.weights`."""
    adapter: str = ""
    """A PEFT folder, `hf://owner/name[@revision]`, the id of a run, or the identity of a trial."""
    folder: str = ""
    """Where the result goes: empty, or not there yet."""
    publish: str = ""
    """Also publish it as `owner/name` on the Hugging Face hub, privately; needs a proof and the licence of the base."""
    proof: str = ""
    """JSON of `crossmesh verify check=exchange` for this adapter; empty: the one on its run."""
    licence: str = ""
    """Licence of the base, when its own model card does not say it."""
    force: bool = False
    """Merge onto other weights than the adapter's, and publish without a passing proof; both are recorded."""

    def __post_init__(self) -> None:
        """Check the mode."""
        super().__post_init__()
        require_choice("mode", self.mode, MODES)


def run(job: Job[ExportKeys]) -> None:
    """Find adapter and base, write the result, and publish it when that is asked for."""
    spec, keys, console = job.spec, job.keys, Console()
    folder = output_folder(keys.folder)
    tracker = partial(open_tracker, spec.tracking, spec.storage)
    found = find_adapter(keys.adapter, spec.storage, tracker)
    adapter, weights = open_adapter(found.folder), spec.model.weights
    if is_made(weights):
        with ray_session(spec.storage), console.stage(f"model: {weights}"):
            weights = str(fetch(spec).path)
    base = open_store(weights)
    publication = None
    if keys.publish:
        trained = tracker().run(found.run_id) if found.run_id else None
        proof = keys.proof or proof_of_run(trained, tracker, spec.storage.path / "cache")
        publication = prepare_publication(keys.publish, adapter, base, trained, proof=proof, licence=keys.licence, force=keys.force)
    with console.stage(f"export: {keys.mode}") as stage:
        exported = export(keys.mode, adapter, base, folder, stage.megabytes, any_base=keys.force)
    published = {}
    if publication:
        with console.stage(f"publish: {keys.publish}"):
            published = {"published": publication.publish(exported), "proof": publication.proof.words}
    console.result(f"exported: {keys.mode}", exported.record() | published, keys.output)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("export", ExportKeys, run, conf_folder())
