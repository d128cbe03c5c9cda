"""Which files of a folder are the model: asked here by all that read weights, so that every engine reads the same ones.

Engines choose for themselves when a folder holds more: transformers takes `model.safetensors` before an index, vLLM takes
`consolidated*.safetensors` before both and every `*.safetensors` where there is no index. So they are given a folder of links in which
nothing else lies.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.models.weights.checkpoints import INDEX_FILE, PICKLES, SINGLE_FILE, open_checkpoint
from crossmesh.models.weights.stores import LocalStore

_WEIGHT_ENDS = (".safetensors", ".gguf", ".index.json", *PICKLES)
_OTHER_FORMATS = ("params.json", "tekken.json")
"""Mistral's own settings and tokenizer beside those of Hugging Face: vLLM prefers them where they are."""


def tensor_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, in order of their names: those of the index, or else the one there is.

    Raises what `open_checkpoint` raises: index and headers are checked.
    """
    return [folder / shard.name for shard in open_checkpoint(LocalStore(folder)).shards]


def only_model(folder: Path) -> bool:
    """Whether every engine that is given `folder` reads `tensor_files` and nothing else."""
    links = _links(folder)
    return all(name == file.name for name, file in links.items()) and not (_of_weights(folder) - links.keys())


def link_model(folder: Path, target: Path) -> None:
    """Fill the empty folder `target` with links to what belongs to the model in `folder`."""
    for name, file in _links(folder).items():
        (target / name).symlink_to(file.absolute())


@contextmanager
def model_alone(folder: Path) -> Iterator[Path]:
    """Yield `folder`, or a temporary folder of links when an engine could read something else in it."""
    if only_model(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="crossmesh-model-") as temporary:
        link_model(folder, Path(temporary))
        yield Path(temporary)


def _links(folder: Path) -> dict[str, Path]:
    """Files of the model by the name under which every engine finds them."""
    tensors = tensor_files(folder)
    index = folder / INDEX_FILE
    if index.is_file() and len(tensors) > 1 and any(file.name == SINGLE_FILE for file in tensors):
        raise InputError(
            f"{index} names {SINGLE_FILE} beside {len(tensors) - 1} other files; transformers would read that one alone. "
            "Rename it in the folder and in the index, e.g. to model-00001.safetensors."
        )
    others = {file.name: file for file in folder.iterdir() if file.is_file()}
    found = {name: others[name] for name in others.keys() - _of_weights(folder)}
    if index.is_file():
        return found | {file.name: file for file in [*tensors, index]}
    return found | {SINGLE_FILE: tensors[0]}


def _of_weights(folder: Path) -> set[str]:
    """Files that hold weights, or that say how to read them in another format."""
    names = {file.name for file in folder.iterdir() if file.is_file()}
    return {name for name in names if name.endswith(_WEIGHT_ENDS) or name in _OTHER_FORMATS}
