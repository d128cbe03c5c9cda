"""How checkpoints call the tensors of a text decoder: the same ones have had three names over the years.

`config.json` does not say which; the names in the checkpoint do.
"""

from collections.abc import Container, Iterable, Iterator

_GROUPS = (
    # The text decoder: in a multimodal model, in an older one (Gemma 3 as transformers 4 wrote it), and alone.
    ("model.language_model.", "language_model.model.", "model."),
    # The output projection.
    ("lm_head.", "language_model.lm_head."),
)


def spellings(name: str) -> Iterator[str]:
    """Names that the tensor `name` may have in a checkpoint, its own first."""
    yield name
    for group in _GROUPS:
        prefix = next((prefix for prefix in group if name.startswith(prefix)), None)
        if prefix:
            yield from (f"{other}{name.removeprefix(prefix)}" for other in group if other != prefix)


def module_spellings(module: str) -> Iterator[str]:
    """Names that `module` may have in an adapter, its own first."""
    return (name.removesuffix(".") for name in spellings(f"{module}."))


def locate(names: Iterable[str], stored: Container[str]) -> dict[str, str]:
    """The name under which each of `names` is `stored`; those that are not are left out."""
    found = ((name, next((one for one in spellings(name) if one in stored), None)) for name in names)
    return {name: spelled for name, spelled in found if spelled is not None}
