"""Private parts of other libraries are touched in `compat/` alone, and every touch has a canary."""

import ast
import re

import pytest

_LIBRARIES = "ray|hydra|omegaconf|torch|qwix|jax|flax|tunix|vllm|mlflow|transformers|peft|orbax"
_PRIVATE = re.compile(rf"^(?:{_LIBRARIES})(?:\.\w+)*\._[a-z]\w*(?:\.|$)")


@pytest.fixture(scope="module")
def package(checkout):
    return checkout / "platform" / "crossmesh"


def test_no_other_file_names_a_private_module_in_a_string(package):
    named = [
        f"{file.name}: {node.value}"
        for file in package.rglob("*.py")
        if file.parent.name != "compat"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PRIVATE.match(node.value)
    ]
    assert named == []


def test_no_other_file_swaps_a_class_or_silences_the_rules(package):
    for file in package.rglob("*.py"):
        text = file.read_text()
        assert not re.search(r"noqa:.*(SLF001|TID251)", text), file
        if file.parent.name != "compat":
            assert not re.search(r"\.__class__(,[^=]*)? = ", text), file


def test_every_touch_has_a_canary(package, checkout):
    canaries = "\n".join(file.read_text() for file in (checkout / "tests" / "canary").glob("test_*.py"))
    missing = [
        f"{file.stem}.{node.name}"
        for file in (package / "compat").glob("*.py")
        if file.stem != "parts"
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not re.search(rf"(?:\b|test_){node.name}\b", canaries)
    ]
    assert missing == []
