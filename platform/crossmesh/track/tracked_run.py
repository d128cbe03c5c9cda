"""A run as it stands in the store, and the tags that say what it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TAG_PARENT = "mlflow.parentRunId"
"""Id of the run above it; under this name MLflow's UI shows a run below another."""
TAG_COMMIT = "mlflow.source.git.commit"
TAG_MIRROR = "crossmesh.mirror."
"""With the name of another tracker behind it: the run's id there."""
TAG_VERSION = "crossmesh.model_version"
"""On the run that trained a registered model: `models:/name/number`."""
TAG_KIND = "crossmesh.kind"
TAG_IDENTITY = "crossmesh.identity"
TAG_SCIENCE = "crossmesh.science"
TAG_SYSTEM = "crossmesh.system"
TAG_PROVENANCE = "crossmesh.provenance"
TAG_STEP_SOURCE, TAG_HBM_SOURCE = "crossmesh.plan_step_source", "crossmesh.plan_hbm_source"
"""Whether time and memory of the run's plan are modelled or compiled."""
TAG_ADAPTER = "crossmesh.adapter"
"""Digest of an adapter: on the run that trained it, its registered version, and the runs that served or evaluated it."""
TAG_BASE = "crossmesh.base"
"""Digest of the base's weights, on the same."""
TAG_DATA = "crossmesh.data"
"""Digest of the rows that were trained on."""
TAG_CONTINUES = "crossmesh.continues"
"""Digest of the adapter that training continued from."""
TAG_TRAINED = "crossmesh.trained"
"""Digest of the record that lies beside what was trained (`config/fingerprint.py`): a run with this tag has one."""
TAG_SERVER = "crossmesh.server"
"""Fingerprint of the server that was evaluated or measured."""
TAG_EMULATED = "crossmesh.emulated"
"""`true` on a run that computed on CPU devices under the name of other hardware."""
TAG_BACKEND = "crossmesh.backend"
"""The framework that trained."""
TAG_SUBJECT = "crossmesh.subject"
"""What an evaluated model is called: `base`, or the name of an adapter."""
TAG_EVALUATION = "crossmesh.evaluation"
"""Fingerprint of how a model was evaluated."""


def registered_name(weights: str) -> str:
    """Name of the registered model for adapters of the base `weights`: registries take neither slashes nor colons."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', weights).strip('-')}-lora"


@dataclass(frozen=True)
class TrackedRun:
    """A run as it stands in the store."""

    run_id: str
    name: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Without versions, which the provenance record has."""
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The value at the last step of each metric."""

    @property
    def emulated(self) -> bool:
        """Whether its tag or its parameter says that it computed on CPU devices under the name of other hardware."""
        return "true" in (self.tags.get(TAG_EMULATED), self.params.get("emulated"))

    @property
    def backend(self) -> str:
        """The framework that trained; of runs from before the tag, their name, which people may change."""
        return self.tags.get(TAG_BACKEND, self.name)

    @property
    def subject(self) -> str:
        """What the evaluated model is called; of runs from before the tag, as their name says."""
        return self.tags.get(TAG_SUBJECT, self.name.removeprefix("evaluate "))
