"""The simulated schedule is the engine's: vLLM's own scheduler and ours answer the same requests in the same steps."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.config.training import ModelSpec
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.plan.serving.batching import LoadRequest, Step, StepLimits, serve
from crossmesh.plan.serving.kv import KvBytes

pytestmark = [pytest.mark.integration, pytest.mark.full]
DRIVER = Path(__file__).resolve().parents[1] / "support" / "schedule_vllm.py"
BLOCK, BLOCKS, SEQUENCES, STEP_TOKENS, LONGEST = 16, 60, 12, 64, 512


def test_the_schedule_is_vllms(tmp_path: Path) -> None:
    model = fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path)
    chosen = random.Random(3)
    # Up to 60 blocks of 16 tokens for up to 12 sequences of up to 340 tokens: prompts are cut into parts and sequences are preempted.
    requests = sorted((round(chosen.uniform(0, 900)), chosen.randint(1, 200), chosen.randint(1, 140)) for _ in range(120))
    asked = {
        "model": str(model.path),
        "requests": requests,
        "sequences": SEQUENCES,
        "step_tokens": STEP_TOKENS,
        "block": BLOCK,
        "blocks": BLOCKS,
        "max_model_len": LONGEST,
    }
    process = subprocess.run(
        [sys.executable, str(DRIVER)], input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    theirs = json.loads(process.stdout.splitlines()[-1])

    tokens = []

    def one_second(step: Step) -> float:
        tokens.append(step.tokens)
        return 1.0

    limits = StepLimits(STEP_TOKENS, SEQUENCES, BLOCKS * BLOCK, KvBytes(1.0, 0.0, 0), BLOCK)
    ours = serve([LoadRequest(*one) for one in requests], limits, one_second)
    assert sum(theirs["preemptions"]) > 10
    assert [answer.preemptions for answer in ours.answers] == theirs["preemptions"]
    assert [answer.first_s for answer in ours.answers] == theirs["first"]
    assert [answer.end_s for answer in ours.answers] == theirs["end"]
    assert tokens == theirs["tokens"]
