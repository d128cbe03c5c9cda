"""Implementations by name: crossmesh's own, those of an installed package, and what is wrong with either."""

import sys
from pathlib import Path

import pytest

from crossmesh.errors import InputError
from crossmesh.plugins import Registry

GROUP = "crossmesh.tests"
REGISTRY = Registry[object](GROUP, "codec", {"json": "json:dumps", "broken": "json:nothing"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of an installed package, without entry points yet."""
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def fresh() -> Registry[object]:
    return Registry[object](GROUP, REGISTRY.kind, REGISTRY.builtin)


def test_ones_own_is_imported_by_name_and_not_before() -> None:
    assert REGISTRY.names == ("json", "broken")
    assert REGISTRY.load("json") is sys.modules["json"].dumps
    with pytest.raises(AttributeError):  # A bug of ours, not a mistake of the user.
        REGISTRY.load("broken")


def test_an_installed_package_adds_one(package: Path) -> None:
    (package / "entry_points.txt").write_text(f"[{GROUP}]\npickle = pickle:dumps\nabsent = no_such_module:codec\n")
    registry = fresh()
    assert registry.names == ("json", "broken", "pickle", "absent")
    assert registry.load("pickle") is __import__("pickle").dumps
    with pytest.raises(InputError, match=r"The codec 'absent' of an installed package cannot be imported \(no_such_module:codec\)"):
        registry.load("absent")


def test_an_unknown_name_says_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"There is no codec 'jsn'\. Did you mean 'json'\? Allowed: json, broken, or one of a package"):
        REGISTRY.load("jsn")


def test_a_name_of_ours_cannot_be_taken(package: Path) -> None:
    (package / "entry_points.txt").write_text(f"[{GROUP}]\njson = pickle:dumps\n")
    with pytest.raises(InputError, match=r"An installed package calls a codec 'json' \(pickle:dumps\), as crossmesh does"):
        fresh().load("json")
