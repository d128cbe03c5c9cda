"""`serve.adapters` names where each adapter comes from; what cannot be found is said before a model is fetched."""

from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.errors import InputError
from crossmesh.pipeline.serving import named_adapters

TRIAL = "0123456789abcdef"


def spec(storage: Path, *adapters: str) -> ExperimentSpec:
    return ExperimentSpec(serve=ServeSpec(adapters=adapters), storage=StorageSpec(str(storage)))


def test_a_source_is_a_folder_or_a_trial(tmp_path: Path) -> None:
    trained = tmp_path / "trials" / TRIAL
    (trained / "adapter").mkdir(parents=True)
    (trained / "run.json").write_text('{"run_id": "7"}')
    (tmp_path / "mine").mkdir()
    found = named_adapters(spec(tmp_path, f"a:{tmp_path / 'mine'}", f"b:{TRIAL}"))
    assert found == {"a": tmp_path / "mine", "b": trained / "adapter"}


def test_what_cannot_be_is_one_message_that_names_the_adapter(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"serve\.adapters: b='.*/nowhere' does not exist on this machine\. Allowed: a PEFT adapter folder, hf://"
    ):
        named_adapters(spec(tmp_path, f"a:{tmp_path}", f"b:{tmp_path / 'nowhere'}"))
    with pytest.raises(InputError, match=r"serve\.adapters: the name 'a' is used twice"):
        named_adapters(spec(tmp_path, f"a:{tmp_path}", "a:hf://owner/name"))
