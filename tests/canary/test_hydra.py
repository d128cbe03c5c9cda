"""Private parts of Hydra and OmegaConf, and what their errors say."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crossmesh.compat import hydra_core, omegaconf_nodes

pytestmark = pytest.mark.canary


@pytest.fixture
def refused(tmp_path: Path):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "first.yaml").write_text("x: 1\n")
    (tmp_path / "group" / "second.yaml").write_text("x: 2\n")
    (tmp_path / "config.yaml").write_text("defaults: [group: first, _self_]\nkey: 1\n")

    def compose(override: str) -> Exception:
        with pytest.raises(Exception, match=r".") as caught, hydra.initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
            hydra.compose("config", overrides=[override])
        return caught.value

    return compose


def text_of(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def test_flags():
    flags = hydra_core.flags()
    assert flags["--multirun"] is False
    assert flags["--config-dir"] is True


def test_launcher_config():
    assert OmegaConf.structured(hydra_core.launcher_config())._target_.endswith("BasicLauncher")


def test_split_points():
    assert hydra_core.split_points(None, ["a=1,2", "b=[1,2]", "c='x,y',z"]) == [
        ["a=1", "b=[1,2]", "c='x,y'"],
        ["a=1", "b=[1,2]", "c=z"],
        ["a=2", "b=[1,2]", "c='x,y'"],
        ["a=2", "b=[1,2]", "c=z"],
    ]


def test_share_store():
    store = copy.copy(ConfigStore.instance())
    hydra_core.share_store(store)
    assert copy.deepcopy(store) is store


def test_is_group_value_error(refused):
    error = refused("group=5")
    assert isinstance(error, ValueError)
    assert hydra_core.is_group_value_error(error)


def test_ambiguous_argument(refused):
    assert hydra_core.ambiguous_argument("\n".join(text_of(refused("key=1,2")))) == "key=1,2"


@pytest.mark.parametrize(("override", "key"), [("other=1", "other"), ("key.deeper=1", "key.deeper")])
def test_unknown_override(refused, override, key):
    assert hydra_core.unknown_override("\n".join(text_of(refused(override)))) == key


def test_missing_file(refused):
    text = "\n".join(text_of(refused("group=third")))
    assert hydra_core.missing_file(text) == ("group", "third")
    assert hydra_core.listed_options(text) == ["first", "second"]


@dataclass
class Inner:
    number: int = 1


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    missing: str = MISSING


def test_node_of():
    config = OmegaConf.structured(Outer)
    assert OmegaConf.get_type(omegaconf_nodes.node_of(config, "inner")) is Inner
    assert OmegaConf.is_missing(config, "missing")
    assert omegaconf_nodes.node_of(config, "missing") is not None


@pytest.mark.parametrize(("key", "value", "reason"), [("number", None, "null is not a value here"), ("inner", 3, "wrong type")])
def test_plain_reason(key, value, reason):
    config = OmegaConf.structured(Outer)
    with pytest.raises(OmegaConfBaseException) as caught:
        (config if key == "inner" else config.inner)[key] = value
    assert omegaconf_nodes.plain_reason(caught.value) == reason


def test_plain_reason_of_a_deletion():
    config = OmegaConf.structured(Outer)
    with pytest.raises(OmegaConfBaseException) as caught:
        del config.inner["number"]
    assert omegaconf_nodes.plain_reason(caught.value) == "a key can be set but not taken away"
