"""A model for the JAX backend: its structure, its arrays on a mesh, and what it computes.

The abstract model and its arrays are kept apart, as a jitted step wants them: nothing is materialized until `load_weights`, so the same
functions serve a planner that has no weights. Which modules a model has is `layers_jax.py`'s; where a tensor lies is `placement.py`'s.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import safe_open

from crossmesh.config.training import LoraSpec
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import AXES, BATCH_AXES, MeshShape
from crossmesh.models.architecture import Architecture, Weight
from crossmesh.models.families.registry import check_backend, family_of
from crossmesh.models.jax.layers_jax import DTYPES, ModelConfig
from crossmesh.models.jax.lora_jax import apply_lora, put_masks
from crossmesh.models.jax.nf4_jax import abstract_nf4, quantise
from crossmesh.models.jax.sharding_jax import constrain
from crossmesh.models.lora import LoraModule
from crossmesh.models.placement import Axes, lora_axes, nf4_view, weight_axes
from crossmesh.models.targets import all_weights, projections
from crossmesh.models.weights.model_files import tensor_files
from crossmesh.models.weights.spelling import locate

Path_ = tuple[str | int, ...]
"""Where an array sits in the model, from the model down."""
HostArray = npt.NDArray[Any]


def make_model(architecture: Architecture, settings: ModelConfig) -> Any:
    """The JAX model of `architecture`, giving hidden states. Call it under `nnx.eval_shape`, or it draws weights.

    Raises `InputError` for what is not computed as the Hugging Face model does.
    """
    check_backend(architecture, "jax")
    return resolve_name(family_of(architecture).jax)(architecture, settings)


@dataclass(frozen=True)
class AbstractModel:
    """A model without its arrays: what the program is compiled from."""

    architecture: Architecture
    settings: ModelConfig
    graph: Any
    """`nnx.GraphDef`."""
    trained: Any
    """`nnx.State` of abstract float32 arrays: the adapter, or with `full` all weights."""
    full: bool
    """Whether the weights themselves are trained."""
    frozen: Any
    """`nnx.State` of abstract arrays in the compute precision, the projections in 4 bits where the settings say so."""
    axes: Mapping[Path_, Axes]
    """Mesh axes of every array."""
    blocks: Mapping[Path_, tuple[tuple[int, ...], int]]
    """Shape in which 4-bit weights are cut into blocks, and the axis of the blocks."""


def device_mesh(shape: MeshShape, devices: Sequence[Any] = ()) -> Any:
    """Arrange `devices`, by default those of all processes, as `shape`; the compiler places what our shardings leave open.

    With several slices each gets a place on the `dcn` axis. A single process may have more devices than places: the first are taken.
    Raises `InputError` when there are fewer, or when a process would have none.
    """
    devices = list(devices or jax.devices())
    if jax.process_count() == 1:
        devices = devices[: shape.devices]
    if len(devices) != shape.devices:
        raise InputError(
            f"The mesh {dict(zip(AXES, _sizes(shape), strict=True))} has {shape.devices} places, but JAX sees {len(devices)} devices. "
            "Set the mesh and hardware.name to what there is."
        )
    slices = {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) == shape.dcn > 1:
        inner = (1, *_sizes(shape)[1:])
        arranged = mesh_utils.create_hybrid_device_mesh(inner, (shape.dcn, 1, 1, 1), devices)
    elif shape.dcn > 1:  # Emulated: the processes' devices one after another.
        arranged = np.array(devices).reshape(_sizes(shape))
    else:
        arranged = mesh_utils.create_device_mesh(_sizes(shape), devices)
    return jax.sharding.Mesh(arranged, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


def _sizes(shape: MeshShape) -> tuple[int, ...]:
    return tuple(getattr(shape, axis) for axis in AXES)


def build(
    architecture: Architecture,
    settings: ModelConfig,
    lora: LoraSpec | None = None,
    modules: tuple[LoraModule, ...] = (),
) -> AbstractModel:
    """Build the abstract model. No array is made.

    With `lora` an adapter on `modules` is trained, or all weights when its rank is 0; without, nothing is. Raises `InputError` for what
    Tunix does not compute as the Hugging Face model does.
    """
    model = nnx.eval_shape(lambda: make_model(architecture, settings))
    axes: dict[Path_, Axes] = {weight.tunix_path: weight_axes(weight) for weight in all_weights(architecture)}
    if lora is not None and lora.full:
        buffers = {weight.tunix_path for weight in all_weights(architecture) if weight.buffer}
        graph, trained, frozen = nnx.split(model, lambda path, _: path not in buffers, ...)
        frozen = _as_dtype(frozen, DTYPES[settings.dtype])
        return AbstractModel(architecture, settings, graph, _as_dtype(trained, jnp.float32), True, frozen, axes, {})
    if lora is not None:
        model = apply_lora(model, modules, lora.dropout)
        for weight in (module.target.weight for module in modules):
            path = weight.tunix_path
            axes[(*path[:-1], f"{path[-1]}_lora_a")], axes[(*path[:-1], f"{path[-1]}_lora_b")] = lora_axes(weight)
    graph, trained, frozen = nnx.split(model, nnx.LoRAParam, ...)
    frozen = _as_dtype(frozen, DTYPES[settings.dtype])
    blocks = _blocks(architecture) if settings.quantization == "nf4" else {}
    return AbstractModel(architecture, settings, graph, trained, False, _packed(frozen, blocks), axes, blocks)


def _blocks(architecture: Architecture) -> dict[Path_, tuple[tuple[int, ...], int]]:
    weights = [weight for index in range(len(architecture.layers)) for weight in projections(architecture, index).values()]
    return {weight.tunix_path: nf4_view(weight) for weight in weights}


def _packed(frozen: Any, blocks: Mapping[Path_, tuple[tuple[int, ...], int]]) -> Any:
    flat = dict(frozen.flat_state())
    for path, (view, axis) in blocks.items():
        whole = flat[path].get_value()
        flat[path] = flat[path].replace(abstract_nf4(whole.shape, whole.dtype, view, axis))
    return nnx.from_flat_state(flat)


def _as_dtype(state: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, dtype), state)


def shardings(structure: AbstractModel, state: Any, mesh: Any) -> Any:
    """`state` (an `nnx.State` of the structure, arrays or abstract) with a sharding in place of each array."""

    def one(axes: Axes, array: Any) -> NamedSharding:
        # Scales of 4-bit blocks are few: an axis that does not divide them leaves them whole.
        split = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, array.shape, strict=True)]
        return NamedSharding(mesh, PartitionSpec(*split))

    flat = {
        path: variable.replace(jax.tree.map(functools.partial(one, structure.axes[path]), variable.get_value()))
        for path, variable in state.flat_state()
    }
    return nnx.from_flat_state(flat)


def load_weights(structure: AbstractModel, folder: Path, mesh: Any) -> tuple[Any, Any]:
    """Read the weights of `folder`, tensor by tensor, each put on `mesh`: an `nnx.State` of those trained, and one of those frozen.

    Raises `InputError` when a tensor is missing, has another shape, or belongs to a part of the model that is not computed here.
    """
    trained = dict(structure.trained.flat_state()) if structure.full else {}
    abstract = trained | dict(structure.frozen.flat_state())
    places = dict(shardings(structure, nnx.from_flat_state(abstract), mesh).flat_state())
    found = {}
    for weight, array in _read(folder, structure.architecture):
        path = weight.tunix_path
        if path not in abstract or (path not in structure.blocks and abstract[path].get_value().shape != array.shape):
            raise AssertionError(f"models/targets.py says {path} {array.shape}, which Tunix's model does not have")
        where = places[path].get_value()
        dtype = jnp.float32 if path in trained else DTYPES[structure.settings.dtype]
        if path in structure.blocks:
            view, axis = structure.blocks[path]
            placed = put(array.astype(dtype).reshape(view), where.codes)
            placed = jax.jit(quantise, static_argnums=(1, 2), out_shardings=where)(placed, array.shape, axis)
        else:
            placed = put(array.astype(dtype), where)
        found[path] = abstract[path].replace(placed)
    if missing := set(abstract) - set(found):
        raise AssertionError(f"models/targets.py has no name for {sorted(map(str, missing))} of Tunix's model")
    return (
        nnx.from_flat_state({path: found[path] for path in trained}),
        nnx.from_flat_state({path: one for path, one in found.items() if path not in trained}),
    )


def put(array: HostArray, where: NamedSharding) -> Any:
    """Place `array`, which every process has whole, each process its own part of it. No collective, no compilation."""
    return jax.make_array_from_callback(array.shape, where, lambda index: array[index])


def put_trained(structure: AbstractModel, arrays: Mapping[Path_, npt.NDArray[np.float32]], mesh: Any) -> Any:
    """Put arrays by path (`adapters/convert.to_qwix`) on `mesh` as the model's trained `nnx.State`."""
    abstract = dict(structure.trained.flat_state())
    places = dict(shardings(structure, structure.trained, mesh).flat_state())
    shapes = {path: variable.get_value().shape for path, variable in abstract.items()}
    given = {path: array.shape for path, array in arrays.items()}
    if shapes != given:
        raise AssertionError(f"Qwix made other LoRA arrays than the table says: {sorted(map(str, shapes.items() ^ given.items()))}")
    return nnx.from_flat_state({path: abstract[path].replace(put(arrays[path], places[path].get_value())) for path in abstract})


def on_host(state: Any) -> dict[Path_, HostArray]:
    """Copy an `nnx.State` to the host of every process, whole, by path."""
    return {path: _whole(variable.get_value()) for path, variable in state.flat_state()}


def _whole(array: Any) -> HostArray:
    gathered = array if array.is_fully_addressable else multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(gathered)


def hidden_states(
    structure: AbstractModel,
    trained: Any,
    frozen: Any,
    tokens: Any,
    positions: Any,
    segment_ids: Any,
    masks: tuple[Any, Any] | None = None,
) -> Any:
    """Run the decoder. `tokens`, `positions` and `segment_ids` are [B, T]; returns [B, T, hidden] in the compute precision.

    A token sees what precedes it in its own segment. With `masks`, the keys of the tokens' rows [B, T] and of the step [2], an adapter
    that has dropout drops.
    """
    model = nnx.merge(structure.graph, in_compute_precision(structure, trained), frozen)
    if masks is not None:
        layers = range(len(structure.architecture.layers))
        put_masks(
            model,
            (weight for index in layers for weight in projections(structure.architecture, index).values()),
            masks[0],
            positions,
            masks[1],
        )
    hidden, _ = model(tokens, positions, None, segment_ids)
    return constrain(hidden, BATCH_AXES, None, None)


def in_compute_precision(structure: AbstractModel, trained: Any) -> Any:
    """`trained` as the model computes with it: an adapter as it is (float32), all weights in the compute precision."""
    if not structure.full:
        return trained
    return jax.tree.map(lambda array: array.astype(DTYPES[structure.settings.dtype]), trained)


def output_weight(structure: AbstractModel, trained: Any, frozen: Any) -> Any:
    """The output projection [vocab, hidden] in the compute precision."""
    weights = in_compute_precision(structure, trained) if structure.full else frozen
    if structure.architecture.tied:
        return weights["embedder"]["input_embedding"].get_value()
    return weights["lm_head"]["w"].get_value().T


def logits_of(cap: float, weight: Any, hidden: Any) -> Any:
    """Float32 logits [..., vocab] of `hidden` [..., D] by the output projection `weight` [vocab, D]; `cap` 0 does not cap them."""
    # The product is accumulated and kept in float32 whatever the compute precision: the loss is a float32 quantity.
    logits = jnp.einsum("...d,vd->...v", hidden.astype(weight.dtype), weight, preferred_element_type=jnp.float32)
    return cap * jnp.tanh(logits / cap) if cap else logits


def all_logits(structure: AbstractModel, trained: Any, frozen: Any, tokens: Any, positions: Any, segment_ids: Any) -> Any:
    """Float32 logits [B, T, vocab] at every position; for probes and tests, where that is small. Jit it."""
    hidden = hidden_states(structure, trained, frozen, tokens, positions, segment_ids)
    return logits_of(structure.architecture.logit_softcap, output_weight(structure, trained, frozen), hidden)


def to_hf(weight: Weight, array: HostArray) -> HostArray:
    """The tensor of a Tunix array as the checkpoint has it; the inverse of what loading does."""
    if not weight.axes:
        return array.reshape(weight.hf_shape)
    return np.ascontiguousarray(array.transpose(np.argsort(weight.axes))).reshape(weight.hf_shape)


def _read(folder: Path, architecture: Architecture) -> Iterator[tuple[Weight, HostArray]]:
    """Yield every weight of the table with its array in Tunix's layout, one at a time."""
    with ExitStack() as stack:
        where = {}
        for file in tensor_files(folder):
            handle = stack.enter_context(safe_open(file, "np"))
            where.update(dict.fromkeys(handle.keys(), handle))
        weights = list(all_weights(architecture))
        stored = [name for weight in weights for name in weight.stored_shapes]
        names = locate(stored, where)
        if missing := {*stored} - set(names):
            raise InputError(f"{folder} lacks {len(missing)} tensors of a {architecture.family} model, e.g. {min(missing)}.")
        embedding = f"{architecture.prefix}embed_tokens.weight"
        prefix = names[embedding].removesuffix(embedding.removeprefix(architecture.prefix))
        known = {*names.values(), *family_of(architecture).unused(architecture)}
        if unknown := {name for name in where if name.startswith(prefix)} - known:
            raise InputError(
                f"{folder} has {len(unknown)} tensors that the JAX backend does not compute, e.g. {min(unknown)}. Use backend=torch."
            )
        for weight in weights:
            arrays = []
            for name, shape in weight.stored_shapes.items():
                arrays.append(where[names[name]].get_tensor(names[name]))
                if arrays[-1].shape != shape:
                    raise InputError(f"{folder}: {names[name]} has shape {arrays[-1].shape}, config.json says {shape}.")
            array = np.stack(arrays) if weight.pieces else arrays[0]
            split = array.reshape(weight.out_shape + weight.in_shape)
            yield weight, np.ascontiguousarray(split.transpose(weight.axes) if weight.axes else split)
