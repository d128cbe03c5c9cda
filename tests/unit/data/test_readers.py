"""Which dataset reader a source asks for, and the reader of `docs/extending.md`, added by a package."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.data.readers import READERS, reader_name
from crossmesh.data.sources import load_conversations
from crossmesh.errors import InputError

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose module is the code of the documentation."""
    section = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A dataset reader")[2].partition("\n## ")[0]
    toml, module = (re.findall(f"```{kind}\n(.*?)```", section, re.DOTALL)[0] for kind in ("toml", "python"))
    metadata = tmp_path / "installed" / "tables-1.0.dist-info"
    metadata.mkdir(parents=True)
    (tmp_path / "installed" / "tables_reader.py").write_text(module)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tables\nVersion: 1.0\n")
    assert toml == '[project.entry-points."crossmesh.readers"]\nsqlite = "my_package.tables:read_sqlite"\n'
    (metadata / "entry_points.txt").write_text("[crossmesh.readers]\nsqlite = tables_reader:read_sqlite\n")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    READERS.__dict__.pop("_found", None)
    yield
    READERS.__dict__.pop("_found", None)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rtl", "rtl"),
        ("rtl/rows.jsonl", "file"),
        ("hf://datasets/owner/name", "hf"),
        ("hf", "file"),
        ("file", "file"),
        ("file:///rows.jsonl", "file"),
        ("rows/*.jsonl", "file"),
        ("s3://bucket/rows.jsonl", "file"),
        ("sqlite:///rows.db", "file"),
    ],
)
def test_who_reads_a_source(source: str, name: str) -> None:
    assert reader_name(source) == name


def test_a_package_reads_a_source_as_files_are_read(package: None, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("CREATE TABLE train (question TEXT, answer TEXT, weight INTEGER)")
        database.executemany("INSERT INTO train VALUES (?, ?, ?)", [("b", "2", 1), ("a", "1", 0), ("c", "3", 1)])
    data = DataSpec(source=f"sqlite://{tmp_path}/rows.db", max_rows=2, system_prompt="s")
    first, second = load_conversations(data, tmp_path)
    assert [turn["content"] for turn in first.messages] == ["s", "b", "2"]
    assert first.form == "prompts from column 'question', answers from column 'answer'"
    assert (first.learned, second.learned) == ([2], [])
    assert second.place == f"{tmp_path}/rows.db, row 2"
    with pytest.raises(InputError, match="has no column 'wrong'"):
        load_conversations(DataSpec(source=data.source, prompt_column="wrong"), tmp_path)


def test_a_source_that_nothing_reads_names_the_way_to_add_one(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"data\.source='sqlite:///rows\.db' does not exist.*or NAME:// of a dataset reader that an installed"
    ):
        load_conversations(DataSpec(source="sqlite:///rows.db"), tmp_path)


def test_generated_rows_have_no_address(tmp_path: Path) -> None:
    data = DataSpec(source="rtl", rtl=RtlSpec(train_rows=2, heldout_rows=1, hard_rows=0))
    assert [row.place for row in load_conversations(data, tmp_path)] == ["rtl, row 1", "rtl, row 2"]
    with pytest.raises(InputError, match="'rtl://more' has an address, and generated rows have none"):
        load_conversations(DataSpec(source="rtl://more"), tmp_path)


def test_a_file_may_be_given_as_an_address(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    (row,) = load_conversations(DataSpec(source=f"file://{tmp_path}/rows.jsonl"), tmp_path)
    assert [turn["content"] for turn in row.messages] == ["p", "r"]
