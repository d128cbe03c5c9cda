"""Parts of other libraries: what is said when one is missing, and no class is swapped that would not be called."""

import pickle
import re
from types import SimpleNamespace

import pytest

from crossmesh.compat.parts import (
    TESTED,
    MissingPartError,
    installed_version,
    member,
    part,
    require_parameters,
    set_member,
    swap_class,
)
from crossmesh.errors import CrossmeshError


def test_a_part_that_exists_is_returned():
    assert part("hydra-core", "hydra.errors", "HydraException").__name__ == "HydraException"
    assert part("hydra-core", "hydra.errors").__name__ == "hydra.errors"


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (("hydra.gone",), "hydra.gone"),
        (("hydra.gone.deeper", "name"), "hydra.gone.deeper"),
        (("hydra.errors", "Gone"), "hydra.errors.Gone"),
        (("hydra.errors", "HydraException", "gone", "more"), "hydra.errors.HydraException.gone"),
    ],
)
def test_a_missing_part_names_itself_both_versions_and_what_to_do(where, named):
    with pytest.raises(CrossmeshError) as caught:
        part("hydra-core", *where)
    assert str(caught.value).startswith(f"hydra-core {installed_version('hydra-core')} has no {named}, which crossmesh needs")
    assert f"tested with hydra-core {TESTED['hydra-core']}" in str(caught.value)
    assert f"hydra-core=={TESTED['hydra-core']}" in str(caught.value).partition("Install")[2]
    assert "\n" not in str(caught.value)


def test_a_package_that_the_library_itself_lacks_is_not_a_missing_part(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_here"):
        part("ray", "lacking")


def test_it_travels_through_ray():
    error = pickle.loads(pickle.dumps(MissingPartError("ray", "ray._private.gone")))
    assert error.part == "ray._private.gone"
    assert str(error) == str(MissingPartError("ray", "ray._private.gone"))


def test_no_version_is_refused_for_its_number(monkeypatch):
    monkeypatch.setattr("crossmesh.compat.parts.version", lambda _: "99.0")
    assert part("hydra-core", "hydra.errors", "HydraException") is not None
    with pytest.raises(MissingPartError, match=r"hydra-core 99\.0 has no"):
        part("hydra-core", "hydra.errors", "Gone")


def test_what_is_not_there_is_not_replaced():
    owner = SimpleNamespace(there=1)
    set_member("ray", owner, "there", 2)
    assert member("ray", owner, "there") == 2
    with pytest.raises(MissingPartError, match=r"SimpleNamespace\.gone"):
        set_member("ray", owner, "gone", 2)
    assert not hasattr(owner, "gone")


def test_parameters_that_a_function_does_not_take():
    require_parameters("vllm", lambda request: request, ["request"])
    with pytest.raises(MissingPartError, match=r"\(lora_request=\.\.\.\)"):
        require_parameters("vllm", lambda request: request, ["request", "lora_request"])


class Theirs:
    def called(self):
        return "theirs"


class Ours(Theirs):
    def called(self):
        return "ours"

    def renamed(self):
        return "never called"


class Slotted(Theirs):
    __slots__ = ("more",)


def test_a_class_is_swapped():
    made = Theirs()
    swap_class("vllm", made, Ours, ("called",))
    assert made.called() == "ours"


@pytest.mark.parametrize(
    ("kind", "overrides", "said"),
    [
        (Ours, ("called", "renamed"), r"Theirs\.renamed \(overridden by Ours\)"),
        (Slotted, ("called",), "replaceable class"),
        (SimpleNamespace, (), "as a base of"),
    ],
)
def test_a_class_that_would_not_do_is_refused_and_nothing_is_changed(kind, overrides, said):
    made = Theirs()
    with pytest.raises(MissingPartError, match=said):
        swap_class("vllm", made, kind, overrides)
    assert type(made) is Theirs


def test_the_tested_versions_are_those_of_the_locks(checkout):
    locks = "\n".join((checkout / "requirements" / f"{name}.txt").read_text() for name in ("cpu", "gpu", "lm-eval", "overrides-cpu"))
    pins = set(re.findall(r"^([a-z0-9._-]+)==([0-9.]+)", locks, re.MULTILINE))
    assert set(TESTED.items()) <= pins
