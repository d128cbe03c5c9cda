"""The sweeper of crossmesh's jobs, where Hydra looks for plugins."""

from collections.abc import Mapping
from typing import Any

from hydra.plugins.sweeper import Sweeper

from crossmesh.compat.hydra_core import split_points


class PointSweeper(Sweeper):
    """Splits a command line into points as Hydra's own sweeper does, and hands them over together.

    Hydra's composes every point twice, to check it and to run it. The task has an attribute `at_points`, which is called with Hydra's
    loader, the composed config of the sweep and the overrides of each point.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        """Take `hydra.sweeper.params`."""
        self._params = params or {}
        self._loader: Any = None
        self._config: Any = None
        self._task: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Take what Hydra gives."""
        self._loader, self._task, self._config = hydra_context.config_loader, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        """Hand over the points of these arguments, behind those of `hydra.sweeper.params`."""
        given = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        self._task.at_points(self._loader, self._config, split_points(self._loader, given))
