"""Supervised fine-tuning: the mean negative log-likelihood of the assistant's tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

from crossmesh.objectives.objective import LOSS, Array, TokenObjective


@dataclass(frozen=True)
class Sft(TokenObjective):
    """Cross-entropy, nothing added."""

    def token_losses(self, nll: Array, normalizer: Array) -> Mapping[str, Array]:
        """Each target's negative log-likelihood."""
        del normalizer
        return {LOSS: nll}
