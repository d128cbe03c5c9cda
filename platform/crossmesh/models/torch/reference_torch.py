"""`python -m crossmesh.models.torch.reference_torch MODEL FOLDER`: reference logits for a probe, in a process that may load torch.

Reads `tokens.npy` [B, T] in FOLDER and writes `logits.npy` [B, T, vocab], float32, beside it.
"""

import sys
from pathlib import Path

import numpy as np

from crossmesh.models.torch.hf_torch import reference_logits


def main(model: Path, folder: Path) -> None:
    """Compute the logits of `model` on the tokens in `folder`."""
    tokens = np.load(folder / "tokens.npy")
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    np.save(folder / "logits.npy", reference_logits(model, tokens, positions, np.ones_like(tokens)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
