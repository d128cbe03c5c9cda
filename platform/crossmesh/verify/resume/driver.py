"""A training job that can be killed: one trial, run as `crossmesh finetune` runs it, that tells its parent everything as lines of JSON.

`python -m crossmesh.verify.resume.driver SPEC`, where SPEC is a folder with `spec.pickle`, written by `resume.py`.
"""

import json
import pickle
import sys
from contextlib import redirect_stdout
from pathlib import Path

from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.track.trackers import open_tracker
from crossmesh.train.events import to_json
from crossmesh.trial.trial import fetch, prepare, run_trial

SPEC_FILE = "spec.pickle"
_METRICS = "train/"


def main(folder: Path) -> None:
    """Run the trial; say the session's folder, every event, and at the end what the run and its tracker hold."""
    channel = sys.stdout

    def say(**values: object) -> None:
        channel.write(json.dumps(values) + "\n")
        channel.flush()

    spec: ExperimentSpec = pickle.loads((folder / SPEC_FILE).read_bytes())  # noqa: S301 - our own, written a moment ago.
    with redirect_stdout(sys.stderr):
        tracker = open_tracker(spec.tracking, spec.storage)
        with ray_session(spec.storage) as session:
            say(session=str(session.folder) if session.folder else None)
            trial = run_trial(spec, prepare(spec, fetch(spec), tracker), tracker, lambda event: say(event=to_json(event)))
        keys = [key for key in tracker.run(trial.run_id).metrics if key.startswith(_METRICS)]
        history = trial.result.history
        say(
            result={
                "losses": [event.loss for event in history],
                "started_at": [event.step for event in history if event.first],
                "adapter": trial.result.adapter_digest,
                "metrics": {key: tracker.history(trial.run_id, key) for key in keys},
            }
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
