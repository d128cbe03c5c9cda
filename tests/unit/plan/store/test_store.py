import json
from pathlib import Path

import pytest

from crossmesh.errors import InputError
from crossmesh.plan.store.store import AnswerStore, Maker, Question, key, maker

NOW = Maker("sources-a", {"jax": "0.10.2", "libtpu": "0.0.42.1"})
ASKED = Question("tpu", {"mesh": {"tp": 4}, "length": 3072})


def store(folder: Path, url: str = "", now: Maker = NOW, shipped: Path | None = None) -> AnswerStore:
    return AnswerStore(folder, url, shipped or folder / "none", lambda _: now)


def test_an_answer_is_found_again_whatever_the_order_of_the_fields(tmp_path: Path) -> None:
    store(tmp_path).keep(ASKED, {"hbm_bytes": 21.1}, 71.24, NOW.versions)
    found = store(tmp_path).find(Question("tpu", {"length": 3072, "mesh": {"tp": 4}}))
    assert found is not None
    assert (found.value, found.seconds, found.stale) == ({"hbm_bytes": 21.1}, 71.2, ())
    assert store(tmp_path).find(Question("tpu", {"length": 3073, "mesh": {"tp": 4}})) is None
    assert store(tmp_path).find(Question("gpu", ASKED.fields)) is None


def test_other_versions_or_sources_make_an_answer_stale_and_a_current_one_goes_first(tmp_path: Path) -> None:
    store(tmp_path).keep(ASKED, {"hbm_bytes": 1}, 1, {"jax": "0.10.1"})
    stale = store(tmp_path).find(ASKED)
    assert stale is not None
    assert stale.stale == ("jax 0.10.1",)  # libtpu was not known there: it counts as equal.
    changed = store(tmp_path, now=Maker("sources-b", {})).find(ASKED)
    assert changed is not None
    assert changed.stale == ("the package's sources of the step",)
    store(tmp_path).keep(ASKED, {"hbm_bytes": 2}, 1, NOW.versions)
    current = store(tmp_path).find(ASKED)
    assert current is not None
    assert (current.value["hbm_bytes"], current.stale) == (2, ())


def test_shipped_and_shared_answers_are_found_and_what_is_kept_is_shared(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'shared'}"
    store(tmp_path / "a", url).keep(ASKED, {"hbm_bytes": 3}, 1, NOW.versions)
    elsewhere = store(tmp_path / "b", url).find(ASKED)
    assert elsewhere is not None
    assert elsewhere.value["hbm_bytes"] == 3
    shipped = store(tmp_path / "c", shipped=tmp_path / "a").find(ASKED)
    assert shipped is not None
    assert shipped.value["hbm_bytes"] == 3
    assert store(tmp_path / "c").find(ASKED) is None


def test_an_unwritable_place_to_share_costs_a_note_and_an_unreadable_one_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    both = store(tmp_path / "a", f"file://{tmp_path / 'file' / 'under'}")
    both.keep(ASKED, {"hbm_bytes": 3}, 1, NOW.versions)
    assert "plan.answers=" in both.notes[0]
    assert both.find(ASKED) is not None
    with pytest.raises(InputError, match=r"plan\.answers='nosuch://bucket' cannot be read"):
        store(tmp_path / "b", "nosuch://bucket").find(ASKED)


def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    store(tmp_path).keep(ASKED, {"hbm_bytes": 3}, 1, NOW.versions)
    path = tmp_path / f"{key(ASKED, NOW)}.json"
    path.write_text(path.read_text()[:-20])
    assert store(tmp_path).find(ASKED) is None
    path.write_text(json.dumps({"kind": "tpu", "fields": {"other": 1}}))
    assert store(tmp_path).find(ASKED) is None


def test_what_makes_an_answer_is_known_without_importing_it() -> None:
    made = maker("tpu")
    assert made.versions["jax"] == "0.10.2"
    assert "torch" not in made.versions
    assert made.sources != maker("gpu").sources
    with pytest.raises(InputError, match="kind='cpu' is not known"):
        Question("cpu", {})
