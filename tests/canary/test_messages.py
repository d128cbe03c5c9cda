"""Words of programs that are no library here: XLA's TPU compiler and lm-evaluation-harness. Their own tests hear them where they run."""

import pytest

from crossmesh.compat import lm_eval_output, xla_messages
from crossmesh.compat.xla_messages import NeededMemory

pytestmark = pytest.mark.canary


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.", NeededMemory(20.5 * 2**30, False)),
        (
            "the total memory required for HLO temporaries (101.25M) exceeds available HBM",
            NeededMemory(101.25 * 2**20, True),
        ),
        ("INVALID_ARGUMENT: something else", None),
    ],
)
def test_needed_memory(message, needed):
    assert xla_messages.needed_memory(message) == needed


def test_is_taken():
    assert xla_messages.is_taken("The TPU is already in use by process with pid 7")
    assert xla_messages.is_taken("CUDA error: out of memory")
    assert not xla_messages.is_taken("no such device")


def test_unknown_flag():
    assert xla_messages.unknown_flag("E0000\n  Unknown command line flag 'xla_tpu_new'\nmore") == "Unknown command line flag 'xla_tpu_new'"
    assert xla_messages.unknown_flag("fine") is None


def test_lm_eval_output():
    assert lm_eval_output.requests_done("Requesting API:  40%|####      | 4/10 [00:01<00:02]") == (4, 10)
    assert lm_eval_output.requests_done("done") is None
    assert lm_eval_output.needs_likelihoods("NotImplementedError: Loglikelihood is not supported for chat completions.")
