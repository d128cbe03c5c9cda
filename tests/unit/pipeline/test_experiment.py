"""What an experiment refuses before it does anything."""

from unittest.mock import Mock

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.pipeline.experiment import check_experiment


def test_a_whole_model_is_no_adapter_to_compare() -> None:
    spec = ExperimentSpec(lora=LoraSpec(rank=0))
    with pytest.raises(InputError, match=r"lora\.rank=0 trains all weights.*jobs/finetune\.py"):
        check_experiment(spec, ("torch",), Mock(), Mock())
