"""Publishing, fetching and reading in place with huggingface_hub's own client, against a hub on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_folders import BFLOAT16, random_array, write_checkpoint, write_peft
from fake_hub import FakeHub, running_hub

pytestmark = pytest.mark.integration

UP = "model.layers.0.mlp.up_proj"

# huggingface_hub takes its endpoint from the environment when it is imported: in a process of its own. Each line is one job.
SCRIPT = """
import json, runpy, sys
from hydra.core.global_hydra import GlobalHydra

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["jobs/export.py", *arguments, "output=json"]
    GlobalHydra.instance().clear()
    try:
        runpy.run_path("jobs/export.py", run_name="__main__")
    except SystemExit as ended:
        print(json.dumps({"code": ended.code}))
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({"loaded": sorted(loaded & {"jax", "torch", "vllm", "transformers", "peft"})}))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Any:
    random = np.random.default_rng(0)
    base = {f"{UP}.weight": random_array(random, (64, 32), BFLOAT16), "model.norm.weight": random_array(random, (32,), BFLOAT16)}
    write_checkpoint(tmp_path / "base", [base])
    (tmp_path / "base" / "README.md").write_text("---\nlicense: gemma\nlicense_link: https://example.org/terms\n---\n# A base\n")
    write_peft(tmp_path / "adapter", {UP: (random_array(random, (8, 32)), random_array(random, (64, 8)))})
    with running_hub() as hub:
        hub.repositories["them/base"] = {file.name: file.read_bytes() for file in (tmp_path / "base").iterdir()}
        hub.repositories["them/other"] = {"something.txt": b"theirs"}
        yield hub


def jobs(hub: FakeHub, tmp_path: Path, checkout: Path, calls: list[list[str]]) -> tuple[list[dict[str, Any]], str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", SCRIPT, json.dumps(calls)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


def test_an_adapter_is_published_fetched_and_merged_onto_a_base_that_stays_on_the_hub(hub: FakeHub, tmp_path: Path, checkout: Path) -> None:
    mine = [f"adapter={tmp_path / 'adapter'}", "model.weights=hf://them/base"]
    proof = tmp_path / "proof.json"
    proof.write_text(json.dumps({"check": "exchange", "passed": True, "figures": {"digests": {"adapter": "0" * 64}}}))
    answers, errors = jobs(
        hub,
        tmp_path,
        checkout,
        [
            [*mine, "mode=adapter", f"folder={tmp_path / 'refused'}", "publish=me/adapter"],
            [*mine, "mode=adapter", f"folder={tmp_path / 'refused'}", "publish=me/adapter", f"proof={proof}"],
            [*mine, "mode=adapter", f"folder={tmp_path / 'refused'}", "publish=them/other", "force=true"],
            [*mine, "mode=adapter", f"folder={tmp_path / 'published'}", "publish=me/adapter", "force=true"],
            ["adapter=hf://me/adapter", "model.weights=hf://them/base", "mode=merged", f"folder={tmp_path / 'merged'}"],
            [*mine[:1], f"model.weights={tmp_path / 'base'}", "mode=merged", f"folder={tmp_path / 'local'}"],
            ["adapter=hf://me/none", "model.weights=hf://them/base", "mode=merged", f"folder={tmp_path / 'none'}"],
        ],
    )
    assert answers.pop() == {"loaded": []}
    assert [answer.get("code") for answer in answers] == [2, 2, 2, None, None, None, 2]
    assert "there is no proof" in errors
    assert "proves the adapter 0000000000000000, this one is" in errors
    assert "publish='them/other' holds other files, e.g. something.txt" in errors
    assert "adapter='hf://me/none' could not be fetched" in errors
    assert "hf_secret" not in errors
    assert hub.repositories["them/other"] == {"something.txt": b"theirs"}

    published = hub.repositories["me/adapter"]
    assert published.keys() == {".gitattributes", "README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert published["adapter_model.safetensors"] == (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    assert hub.private["me/adapter"]
    assert len(hub.commits) == 1
    card = published["README.md"].decode()
    for line in ("base_model: them/base", "base_model_relation: adapter", "library_name: peft", "license: gemma"):
        assert f"\n{line}\n" in card
    assert "none that passed, published with force=true" in card
    assert answers[3]["adapter"] in card
    assert str(tmp_path) not in card

    # The base was read by ranges and is the same as the local one; nothing of its weights is in the cache.
    assert (answers[4]["weights"], answers[4]["base_weights"]) == (answers[5]["weights"], answers[5]["base_weights"])
    assert any(asked.startswith("bytes=0-") for asked in hub.ranges)
    assert not list((tmp_path / "hf").rglob("model.safetensors"))
    assert list((tmp_path / "hf").rglob("adapter_model.safetensors"))
