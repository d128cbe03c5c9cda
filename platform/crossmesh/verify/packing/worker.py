"""What the check `packing` measures in a process of one backend."""

from pathlib import Path
from typing import Any

from crossmesh.verify.measure import Progress
from crossmesh.verify.packing.exact import exactness
from crossmesh.verify.packing.speed import SpeedSizes, measure_compiled, speed
from crossmesh.verify.process import Request, answer_measurement


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Exactness on each of the small models, speed on the larger one."""
    backend, cache, models = request["backend"], Path(request["cache"]), request["exact_models"]
    exact = {}
    for number, (name, folder) in enumerate(models.items(), 1):
        exact[name] = exactness(backend, Path(folder), cache)
        progress("models packed and unpacked", number, len(models))
    sizes, folder, scratch = SpeedSizes(**request["sizes"]), Path(request["speed_model"]), Path(request["scratch"])
    figures = {"exact": exact, "speed": speed(backend, folder, cache, scratch, sizes, progress)}
    return figures if backend == "jax" else {**figures, "compiled": measure_compiled(folder, scratch, sizes, progress)}


if __name__ == "__main__":
    answer_measurement(main)
