"""The kept schema is what the dataclasses say, and every YAML under `conf/` names its part of it and is valid by it."""

import json

import jsonschema
import pytest
from omegaconf import OmegaConf

from crossmesh.command.schema import config_schema, schema_text


@pytest.fixture(scope="module")
def kept(conf):
    return json.loads((conf / "schema.json").read_text(encoding="utf-8"))


def part(kept, pointer):
    return {"$ref": pointer, "$defs": kept["$defs"]} if pointer else kept


def faults(kept, pointer, values):
    return [error.message for error in jsonschema.Draft202012Validator(part(kept, pointer)).iter_errors(values)]


def test_the_kept_schema_is_up_to_date(conf):
    assert (conf / "schema.json").read_text(encoding="utf-8") == schema_text(), "run: crossmesh schema > new.json, and move it there"


def test_every_file_names_its_schema_and_is_valid(conf, kept):
    files = sorted(conf.rglob("*.yaml"))
    assert len(files) > 80
    for file in files:
        text = file.read_text(encoding="utf-8")
        head = text.splitlines()
        named = head[1] if head[0].startswith("# @package") else head[0]  # Hydra reads its own line where it is the first.
        address, _, pointer = named.removeprefix("# yaml-language-server: $schema=").partition("#")
        assert (file.parent / address).resolve() == (conf / "schema.json").resolve(), file
        whole = file.parent == conf or "@package _global_" in text
        assert pointer == ("" if whole else f"/$defs/{file.parent.name}"), file
        assert faults(kept, f"#{pointer}" if pointer else "", OmegaConf.to_container(OmegaConf.load(file)) or {}) == [], file


@pytest.mark.parametrize(
    ("pointer", "values"),
    [
        ("", {"batch": {"micr": 3}}),
        ("", {"optim": {"steps": "many"}}),
        ("", {"experiment_name": "x"}),
        ("#/$defs/backend", {"remat": "all"}),
        ("#/$defs/lora", {"targets": "q"}),
        ("#/$defs/lora", {"targets": ["q", "everything"]}),
        ("#/$defs/model", {"defaults": "x"}),
    ],
)
def test_a_mistake_is_one(kept, pointer, values):
    assert faults(kept, pointer, values)


def test_it_says_what_the_dataclasses_say():
    schema = config_schema()
    backend = schema["$defs"]["backend"]["properties"]
    assert backend["name"]["anyOf"][0] == {"enum": ["auto", "jax", "torch"]}
    assert schema["$defs"]["optim"]["properties"]["steps"]["anyOf"][0] == {"type": "integer"}
    assert "rank" in schema["$defs"]["lora"]["properties"]
    assert schema["$defs"]["job finetune"]["properties"]["repeats"]["description"].startswith("Repeats of the first steps")
    assert schema["$defs"]["job plan"]["properties"]["output"]["default"] == "table"
    assert "tpu_v5p_8" in schema["$defs"]["hardware"]["properties"]["name"]["examples"]
