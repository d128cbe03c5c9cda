"""The models of a check, made local in a process of its own: some sources need torch once."""

from pathlib import Path
from typing import Any

from crossmesh.config.training import ModelSpec
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.verify.measure import Progress
from crossmesh.verify.process import Request, answer_measurement


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Fetch each of `models` (family and weights by name) into `cache`; folder and digest of the weights by the same name."""
    found = {}
    for done, (name, (family, weights)) in enumerate(request["models"].items()):
        progress("models", done, len(request["models"]))
        model = fetch_model(ModelSpec(family, weights), Path(request["cache"]))
        found[name] = {"path": str(model.path), "weights_digest": model.weights_digest}
    return found


if __name__ == "__main__":
    answer_measurement(main)
