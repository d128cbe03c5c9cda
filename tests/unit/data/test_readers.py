import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.data.readers import choose_files, read_records
from crossmesh.errors import InputError

SOURCE = "hf://datasets/owner/name"
SHARDS = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]


@pytest.mark.parametrize(
    ("names", "split", "path", "expected"),
    [
        (SHARDS, "train", None, SHARDS[1:]),
        (SHARDS, "test", None, SHARDS[:1]),
        (["rows.jsonl"], "train", None, ["rows.jsonl"]),
        (["train.jsonl", "training_notes.jsonl"], "train", None, ["train.jsonl"]),
        (["rows.jsonl"], "test", None, []),
        (["val.jsonl"], "train", None, []),
        (["sft/train.jsonl", "rl/train.jsonl"], "train", "sft", ["sft/train.jsonl"]),
        (["sft.jsonl", "rl_val.jsonl"], "train", "sft.jsonl", ["sft.jsonl"]),
        (["train-0.jsonl", "train-1.jsonl"], "train", None, ["train-0.jsonl", "train-1.jsonl"]),
    ],
)
def test_files_of_a_split(names: list[str], split: str, path: str | None, expected: list[str]) -> None:
    assert choose_files(SOURCE, names, split, path) == expected


@pytest.mark.parametrize("names", [["sft/train.jsonl", "rl/train.jsonl"], ["train.jsonl", "train.parquet"], ["sft.jsonl", "rl.jsonl"]])
def test_several_subsets_are_not_mixed(names: list[str]) -> None:
    with pytest.raises(InputError, match=rf"several subsets of split 'train'.*Name the one meant: {SOURCE}/{names[0]}"):
        choose_files(SOURCE, names, "train", None)


def fake_hub(home: Path) -> None:
    """Lay out huggingface_hub's cache as it is after a download."""
    repository = home / "hub" / "datasets--owner--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "train.jsonl").write_text(json.dumps({"prompt": "p", "response": "r"}) + "\n")
    (snapshot / "test.jsonl").write_text(json.dumps({"prompt": "other", "response": "r"}) + "\n")


def load_offline(source: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Load `source` in a process that may not go online: huggingface_hub reads its environment at import."""
    code = (
        "import sys; from pathlib import Path; from crossmesh.data.sources import load_conversations\n"
        "from crossmesh.spec.experiment import DataSpec\n"
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
    with pytest.raises(InputError, match="is no dataset address"):
        list(read_records(source, "train", ["prompt"], tmp_path))
