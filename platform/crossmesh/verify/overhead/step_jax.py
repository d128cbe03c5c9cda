"""The JAX backend's step beside a bare jitted Tunix and Qwix step on the same packed batches."""

from pathlib import Path
from typing import Any

from crossmesh.verify.differences import loss_differences
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.peers.stock_jax import adamw, bare_step
from crossmesh.verify.peers.work import DECAY, RATE, packed_work, ready_backend
from crossmesh.verify.process import Request, answer_measurement


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Take turns for `rounds` steps of `limit` tokens on the model in `folder`."""
    folder, warm_up, rounds = Path(request["folder"]), request["warm_up"], request["rounds"]
    spec, batches = packed_work("jax", folder, request["limit"], warm_up + rounds)
    backend = ready_backend(spec, folder, Path(request["cache"]))
    bare = bare_step(folder, spec.lora, adamw(RATE, DECAY))
    losses: dict[str, list[float]] = {"ours": [], "tunix_qwix": []}
    contenders = {
        "ours": lambda: losses["ours"].append(backend.step(batches[len(losses["ours"])]).loss),
        "tunix_qwix": lambda: losses["tunix_qwix"].append(bare(batches[len(losses["tunix_qwix"])])),
    }
    seconds = take_turns(contenders, rounds, progress, warm_up)
    return {
        "ratios": {"tunix_qwix": ratio(seconds["tunix_qwix"], seconds["ours"]).figures()},
        "loss_difference": {"tunix_qwix": max(loss_differences(losses["tunix_qwix"], losses["ours"]))},
        "seconds": seconds,
    }


if __name__ == "__main__":
    answer_measurement(main)
