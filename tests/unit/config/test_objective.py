"""What is minimized: by name, with options that it has; the default leaves every record as it was before there was a choice."""

from dataclasses import replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import ScienceFacts, science_record
from crossmesh.config.objective import ObjectiveSpec
from crossmesh.errors import InputError
from crossmesh.objectives.objective import make_objective, objective_record
from crossmesh.objectives.sft import Sft

FACTS = ScienceFacts("w", "d", {"modules": ["model.layers.0.self_attn.q_proj"], "rank": 16}, (("a", "b"), ("c", "d")))
RECORDED = "366c2ec8d5feb1efd9ad429b8a2a2e15ce472fa29c35b23e7ee6ba98ca89c3c2"
"""Science of the default spec with `FACTS`, as it was recorded before objectives could be chosen."""


def test_the_default_adds_nothing_to_the_science() -> None:
    spec = ExperimentSpec()
    assert science_record(spec, replace(FACTS, objective=objective_record(spec.objective))).digest == RECORDED
    assert science_record(spec, replace(FACTS, objective={"name": "other"})).digest != RECORDED


def test_an_objective_is_made_of_its_options() -> None:
    assert make_objective(ObjectiveSpec()) == Sft()
    with pytest.raises(InputError, match=r"objective.options=\{'beta': 0.1\} does not fit objective.name='sft': .* Allowed options: none"):
        make_objective(ObjectiveSpec(options={"beta": 0.1}))
    with pytest.raises(InputError, match=r"objective\.name"):
        ObjectiveSpec("stf")
