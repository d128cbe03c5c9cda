"""The streaming merge against PEFT's own `merge_and_unload`, and its memory on a checkpoint that is larger than that."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import BFLOAT16, random_array, write_checkpoint, write_peft
from crossmesh.adapters.merge import merge
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.config.training import LORA_TARGETS
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.targets import expand_targets
from crossmesh.models.weights.random_weights import write_random
from crossmesh.models.weights.stores import LocalStore

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("architecture", "dtype"), [("tiny_gemma4", "float32"), ("tiny_llama", "bfloat16")])
def test_merged_weights_are_those_of_peft(tmp_path: Path, architecture: str, dtype: str) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    base.mkdir()
    write_random(f"{architecture}@0", base)
    AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype)).save_pretrained(tmp_path / "typed", max_shard_size="1MB")
    random = np.random.default_rng(0)
    pairs: dict[str, tuple[Any, Any]] = {}
    for target in expand_targets(read_architecture(base), LORA_TARGETS):
        rank = 3 if target.name == "down" else 8
        a = random_array(random, (rank, target.in_features), scale=0.1)
        pairs[target.hf] = (a, random_array(random, (target.out_features, rank), scale=0.1))
    patterns = {"rank_pattern": {"down_proj": 3}, "alpha_pattern": {"layers.0.*k_proj": 4}}
    write_peft(tmp_path / "adapter", pairs, use_rslora=True, **patterns)
    merge(open_adapter(tmp_path / "adapter"), LocalStore(tmp_path / "typed"), tmp_path / "ours", lambda done, total: None)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "typed", dtype=getattr(torch, dtype))
    expected = PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload().state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    before, found = AutoModelForCausalLM.from_pretrained(tmp_path / "typed", dtype="auto").state_dict(), loaded.state_dict()
    assert found.keys() == expected.keys()
    assert {name.removesuffix(".weight") for name in found if not torch.equal(found[name], before[name])} == pairs.keys()
    # PEFT rounds twice in bfloat16: its change first, then the sum; so one more half step of each is allowed.
    step = 2.0**-8 if dtype == "bfloat16" else 0.0
    for module in pairs:
        ours, theirs = found[f"{module}.weight"].float(), expected[f"{module}.weight"].float()
        change = (theirs - before[f"{module}.weight"].float()).abs()
        assert ((ours - theirs).abs() <= step * (theirs.abs() * 2 + change) + 1e-6).all()


MEASURE = """
import json, re, sys
from pathlib import Path
from crossmesh.adapters.merge import merge
from crossmesh.adapters.peft_format import open_adapter
from crossmesh.models.weights.stores import LocalStore

def kib(key):
    return int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder = Path(sys.argv[1])
before = kib("VmRSS")
merged = merge(open_adapter(folder / "adapter"), LocalStore(folder / "base"), folder / "out", lambda done, total: None)
print(json.dumps({"extra": (kib("VmHWM") - before) * 1024, "size": merged.size}))
"""


def test_a_merge_holds_a_twentieth_of_the_checkpoint_at_most(tmp_path: Path, checkout: Path) -> None:
    random = np.random.default_rng(0)
    embedding, module = random_array(random, (60_000, 1024), BFLOAT16), "model.layers.0.mlp.up_proj"
    # One tensor of 120 MB that changes and one that does not: neither is ever whole in memory.
    write_checkpoint(tmp_path / "base", [{"model.embed_tokens.weight": embedding}, {f"{module}.weight": embedding}])
    write_peft(tmp_path / "adapter", {module: (random_array(random, (8, 1024)), random_array(random, (60_000, 8)))})
    environment = {"PYTHONPATH": str(checkout / "platform")}
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    measured = json.loads(done.stdout)
    assert measured["size"] > 240e6
    assert measured["extra"] <= 0.05 * measured["size"]
