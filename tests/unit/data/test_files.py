import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from crossmesh.config.training import DataSpec
from crossmesh.data.sources import load_conversations
from crossmesh.errors import InputError

SOURCE = "hf://datasets/owner/name"


def fake_snapshot(home: Path, name: str) -> Path:
    """Lay out huggingface_hub's cache as it is after a download and return the folder of the files."""
    repository = home / "hub" / f"datasets--{name.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def fake_hub(home: Path) -> None:
    """A data set with a split to train on and one to test with."""
    snapshot = fake_snapshot(home, "owner/name")
    (snapshot / "train.jsonl").write_text(json.dumps({"prompt": "p", "response": "r"}) + "\n")
    (snapshot / "test.jsonl").write_text(json.dumps({"prompt": "other", "response": "r"}) + "\n")


def load_offline(source: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Load `source` in a process that may not go online: huggingface_hub reads its environment at import."""
    code = (
        "import sys; from pathlib import Path; from crossmesh.data.sources import load_conversations\n"
        "from crossmesh.config.experiment import DataSpec\n"
        "from crossmesh.errors import InputError\n"
        "try: print([one.messages for one in load_conversations(DataSpec(source=sys.argv[1]), Path(sys.argv[2]))])\n"
        "except InputError as error: print('InputError:', error)"
    )
    platform = Path(__file__).resolve().parents[3] / "platform"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "PYTHONPATH": str(platform)}
    for name in ("HF_HUB_CACHE", "HF_TOKEN"):
        environment.pop(name, None)
    return subprocess.run([sys.executable, "-c", code, source, str(home)], env=environment, capture_output=True, text=True, check=True)


def test_hub_dataset_from_the_cache_offline(tmp_path: Path) -> None:
    fake_hub(tmp_path)
    found = load_offline(SOURCE, tmp_path)
    assert found.stdout == "[[{'role': 'user', 'content': 'p'}, {'role': 'assistant', 'content': 'r'}]]\n"


def test_hub_dataset_that_is_not_cached_offline(tmp_path: Path) -> None:
    found = load_offline("hf://datasets/owner/absent", tmp_path)
    assert found.stdout.startswith("InputError: hf://datasets/owner/absent is not in the local cache and could not be downloaded")
    assert "HF_HUB_OFFLINE" in found.stdout


@pytest.mark.parametrize("source", ["hf://owner/name", "hf://datasets/name", "hf://datasets/"])
def test_address_that_is_none(tmp_path: Path, source: str) -> None:
    with pytest.raises(InputError, match="is not a dataset address"):
        load_conversations(DataSpec(source=source), tmp_path)


FLAGSHIP = "zhuyaoyu/CodeV-R1-dataset"


def test_each_shipped_source_on_the_hub_loads_from_a_copy_of_its_layout(tmp_path: Path) -> None:
    """Names, columns and shards as published; rows made up. A new source in conf/data needs its layout here."""
    shipped = {
        file.stem: found["source"]
        for file in (Path(__file__).resolve().parents[3] / "conf" / "data").glob("*.yaml")
        if str((found := yaml.safe_load(file.read_text()) or {}).get("source", "")).startswith("hf://")
    }
    assert set(shipped) == {"codev_r1"}
    snapshot = fake_snapshot(tmp_path, FLAGSHIP)
    (snapshot / "codev_r1_sft.jsonl").write_text(json.dumps({"prompt": "p", "response": "<think>t</think><answer>r</answer>"}) + "\n")
    for name in ("train", "val"):
        rows = {"data_source": ["codev"], "prompt": [[{"role": "user", "content": "x"}]], "reward_model": [{"ground_truth": b"x"}]}
        pq.write_table(pa.table(rows), snapshot / f"codev_r1_rl_{name}.parquet")
    assert load_offline(shipped["codev_r1"], tmp_path).stdout == (
        "[[{'role': 'user', 'content': 'p'}, {'role': 'assistant', 'content': '<think>t</think><answer>r</answer>'}]]\n"
    )
