"""What an evaluation may ask for."""

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.errors import InputError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "verilog-eval"}, "Did you mean 'verilog_eval'?"),
        ({"variant": "spec"}, "code_complete, spec_to_rtl"),
        ({"only": "reference"}, "Did you mean 'references'?"),
        ({"tasks": ("gsm8k",)}, "eval.tasks=['gsm8k'] is not possible. Allowed: none, unless eval.task=lm_eval"),
        ({"task": "lm_eval", "samples": 2, "temperature": 1.0}, "eval.samples=2"),
        ({"task": "lm_eval", "only": "references"}, "its tasks have no solutions to run"),
    ],
)
def test_what_cannot_be_is_one_message(given, message):
    with pytest.raises(InputError) as error:
        EvalSpec(**given)
    assert message in str(error.value)
