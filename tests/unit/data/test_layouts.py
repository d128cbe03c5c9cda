"""Which files are a split, as published data sets are laid out, and that the `datasets` library says the same."""

from contextlib import suppress
from pathlib import Path

import pytest

from crossmesh.data.layouts import choose_files
from crossmesh.errors import InputError

SOURCE = "hf://datasets/owner/name"
SHARDS = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
CHAT = [
    "data/test_sft-00000-of-00001-f7dfac4afe5b93f4.parquet",
    "data/train_gen-00000-of-00001-a6c9fb894be2e50b.parquet",
    "data/train_sft-00000-of-00003-a3ecf92756993583.parquet",
    "data/train_sft-00001-of-00003-0a1840ba55b37a8c.parquet",
    "data/train_sft-00002-of-00003-ac8f7cd51ae2ee1a.parquet",
]
HASHED = ["data/train-00000-of-00002-6f3344faa23e9b0a.parquet", "data/train-00001-of-00002-0c5b1b8a9e2d4f7b.parquet"]
SPARK = [f"part-0000{n}-3f0c8c8e-6b1d-4e0e-9a52-0d6c1c2b7a1{n}-c000.snappy.parquet" for n in range(2)]
FOLDERS = ["en/test/a.jsonl", "en/train/a.jsonl", "en/train/b.jsonl"]


@pytest.mark.parametrize(
    ("names", "split", "path", "expected"),
    [
        (SHARDS, "train", None, SHARDS[1:]),
        (SHARDS, "test", None, SHARDS[:1]),
        (CHAT, "train_sft", None, CHAT[2:]),
        (CHAT, "test_sft", None, CHAT[:1]),
        (HASHED, "train", None, HASHED),
        (SPARK, "train", None, SPARK),
        (FOLDERS, "train", None, FOLDERS[1:]),
        (FOLDERS, "train", "en", FOLDERS[1:]),
        (["rows.jsonl", "README.md", ".cache/x.json", "dataset_infos.json"], "train", None, ["rows.jsonl"]),
        (["train.jsonl", "training_notes.jsonl"], "train", None, ["train.jsonl"]),
        (["train_sft.jsonl.gz", "test_sft.jsonl.gz"], "train", None, ["train_sft.jsonl.gz"]),
        (["data/val.csv", "data/training.csv"], "validation", None, ["data/val.csv"]),
        (["data/val.csv", "data/training.csv"], "train", None, ["data/training.csv"]),
        (["restrained.jsonl"], "train", None, ["restrained.jsonl"]),
        (["rows.jsonl"], "test", None, []),
        (["train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"], "train", None, ["train/data-00000-of-00001.arrow"]),
        (["sft/train.jsonl", "rl/train.jsonl"], "train", "sft", ["sft/train.jsonl"]),
        (["sft.jsonl", "rl_val.jsonl"], "train", "sft.jsonl", ["sft.jsonl"]),
        (["train-0.jsonl", "train-1.jsonl"], "train", None, ["train-0.jsonl", "train-1.jsonl"]),
        (CHAT, "train", "data/train_gen-*", CHAT[1:2]),
    ],
)
def test_files_of_a_split(names: list[str], split: str, path: str | None, expected: list[str]) -> None:
    assert choose_files(SOURCE, names, split, path) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["sft/train.jsonl", "rl/train.jsonl"],
        ["train.jsonl", "train.parquet"],
        ["sft.jsonl", "rl.jsonl"],
        ["a/train-00000-of-00002.parquet", "a/train-00001-of-00002.parquet", "b/train-00000-of-00001.parquet"],
        ["x-1.jsonl", "x-2.jsonl", "y-1.jsonl"],
    ],
)
def test_several_subsets_are_not_mixed_and_each_advice_gives_one_whole_subset(names: list[str]) -> None:
    with pytest.raises(InputError, match="subsets of split 'train'") as caught:
        choose_files(SOURCE, names, "train")
    offers = str(caught.value).partition("data.source=")[2].rstrip(".").split(" or ")
    found = [choose_files(SOURCE, names, "train", offer.removeprefix(f"{SOURCE}/")) for offer in offers]
    assert sorted(name for group in found for name in group) == sorted(names)


def test_a_split_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no split 'train'. It has: test_sft, train_gen, train_sft. Set data.split"):
        choose_files(SOURCE, CHAT, "train")
    with pytest.raises(InputError, match=r"no split 'train'. It has: validation. Set data.split=validation"):
        choose_files(SOURCE, ["val.jsonl"], "train")
    with pytest.raises(InputError, match="2 of the 3 files of 'train_sft'"):
        choose_files(SOURCE, CHAT[:-1], "train_sft")


CARD = """---
license: mit
configs:
- config_name: sft
  default: true
  data_files:
  - split: train
    path: sft/*.parquet
  - split: test
    path: [held/a.jsonl]
- config_name: rl
  data_dir: rl
---
# A card
"""
CARDED = ["held/a.jsonl", "rl/train.jsonl", "sft/one.parquet", "sft/two.parquet"]


def test_the_card_decides() -> None:
    assert choose_files(SOURCE, CARDED, "train", card=CARD) == ["sft/one.parquet", "sft/two.parquet"]
    assert choose_files(SOURCE, CARDED, "test", card=CARD) == ["held/a.jsonl"]
    assert choose_files(SOURCE, CARDED, "train", "rl", CARD) == ["rl/train.jsonl"]
    with pytest.raises(InputError, match=r"no split 'dev'. It has: test, train"):
        choose_files(SOURCE, CARDED, "dev", card=CARD)
    with pytest.raises(InputError, match=rf"2 subsets. Name the one meant: data.source={SOURCE}/sft or {SOURCE}/rl"):
        choose_files(SOURCE, CARDED, "train", card=CARD.replace("  default: true\n", ""))
    with pytest.raises(InputError, match=r"the card names 'sft/\*\.parquet' for split 'train', and there is no such data file"):
        choose_files(SOURCE, CARDED[:2], "train", card=CARD)
    with pytest.raises(InputError, match=r"heading that cannot be read"):
        choose_files(SOURCE, CARDED, "train", card="---\nconfigs: [a\n---\n")
    assert choose_files(SOURCE, ["rows.csv"], "train", card="---\nlicense: mit\n---\n") == ["rows.csv"]


@pytest.mark.parametrize("names", [SHARDS, CHAT, HASHED, SPARK, FOLDERS, ["data/val.csv", "data/training.csv"], ["rows.jsonl"]])
def test_the_datasets_library_says_the_same(names: list[str], tmp_path: Path) -> None:
    data_files = pytest.importorskip("datasets.data_files")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for split, patterns in data_files.get_data_patterns(str(tmp_path)).items():
        theirs = set()
        for pattern in patterns:
            with suppress(FileNotFoundError):
                theirs |= set(data_files.resolve_pattern(pattern, str(tmp_path)))
        assert {str(tmp_path / name) for name in choose_files(SOURCE, names, str(split))} == theirs
