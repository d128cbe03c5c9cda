"""The JAX loss head beside Tunix's `_default_loss_fn`: temporaries by XLA's memory analysis, times in turns, gradients."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tunix.sft.peft_trainer import _default_loss_fn

from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.jax.tunix_jax import device_mesh, logits_of
from crossmesh.objectives.objective import LOSS
from crossmesh.objectives.sft import Sft
from crossmesh.train.loss_jax import LossHead, token_sums
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.process import Request, answer_measurement

_BLOCK = 128
"""Rows of logits at once, as the backend takes them on a CPU."""

_Head = Callable[[Any, Any, Any, Any], Any]
"""Mean loss of hidden [1, N, D], weight [V, D], tokens [1, N] and mask [1, N]."""


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Measure both heads at the sizes of `request` (`loss_head.HeadSizes`)."""
    cap = request["softcap"]
    # Ours first: if it breaks, nobody has waited.
    heads = {"ours": jax.jit(jax.value_and_grad(_ours(cap))), "tunix": jax.jit(jax.value_and_grad(_tunix(cap)))}
    abstract = jax.eval_shape(lambda: _arrays(request, request["memory_rows"]))
    bytes_of = {}
    for number, (name, head) in enumerate(heads.items(), 1):
        bytes_of[name] = int(head.lower(*abstract).compile().memory_analysis().temp_size_in_bytes)
        progress("compiling for the memory analysis", number, len(heads))
    arrays = jax.block_until_ready(_arrays(request, request["time_rows"]))
    (our_loss, ours), (their_loss, theirs) = heads["ours"](*arrays), heads["tunix"](*arrays)
    contenders = {name: functools.partial(_run, head, arrays) for name, head in heads.items()}
    seconds = take_turns(contenders, request["rounds"], progress)
    return {
        "temporary_bytes": bytes_of,
        "time_ratio": ratio(seconds["ours"], seconds["tunix"]).figures(),
        "seconds": seconds,
        "gradient_difference": float(jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs)),
        "loss_difference": float(abs(our_loss - their_loss) / their_loss),
        "loss_rows": int(arrays[3].sum()),
    }


def _run(head: Any, arrays: tuple[Any, ...]) -> None:
    jax.block_until_ready(head(*arrays))


def _arrays(request: Request, rows: int) -> tuple[Any, ...]:
    """Hidden states, output projection, tokens and loss mask, float32; logits are a few units wide, as a trained model's."""
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (1, rows, request["hidden"]))
    weight = jax.random.normal(keys[1], (request["vocab"], request["hidden"])) * (4 / request["hidden"] ** 0.5)
    tokens = jax.random.randint(keys[2], (1, rows), 0, request["vocab"])
    # As in rows of prompt and answer: loss at the end of each, here of 20 tokens.
    mask = jnp.asarray(np.arange(rows) % 20 >= round(20 * (1 - request["loss_share"])))[None]
    return hidden, weight, tokens, mask


def _ours(cap: float) -> _Head:
    compiled_for = LossHead(device_mesh(MeshShape(1, 1, 1)), cap, _BLOCK, train_weight=False, token_losses=Sft().token_losses)

    def head(hidden: Any, weight: Any, tokens: Any, mask: Any) -> Any:
        # Position t predicts t + 1; the last one has nothing to predict.
        targets, carries = jnp.roll(tokens, -1, axis=1), jnp.roll(mask.at[:, 0].set(False), -1, axis=1)
        return token_sums(compiled_for, hidden, weight, targets, carries)[LOSS] / carries.sum()

    return head


def _tunix(cap: float) -> _Head:
    def head(hidden: Any, weight: Any, tokens: Any, mask: Any) -> Any:
        def model(*_: Any) -> tuple[Any, None]:
            return logits_of(cap, weight, hidden), None

        return _default_loss_fn(model, tokens, mask, tokens, mask)

    return head


if __name__ == "__main__":
    answer_measurement(main)
