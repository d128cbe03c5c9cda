"""Search for the best settings: `crossmesh tune experiment=demo tune=asha`; the space is `tune.space`, in conf/tune."""

import sys
from typing import NoReturn

from crossmesh.config.command_line import command
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job
from crossmesh.config.points import SweptJobs
from crossmesh.config.schema import known_keys
from crossmesh.config.sweep import compose_point, given_overrides
from crossmesh.config.tune import TuneKeys
from crossmesh.errors import InputError, closest_name
from crossmesh.installation import conf_folder, job_command

CONF = conf_folder()


def run(job: Job[TuneKeys]) -> None:
    """Train at the points that the search asks for, as a sweep does, and show them together."""
    from crossmesh.sweep.driver import run_sweep
    from crossmesh.sweep.population import Population
    from crossmesh.sweep.request import Adaptive, search_request
    from crossmesh.sweep.search import TuneSearch
    from crossmesh.sweep.training import Training

    spec, keys = job.spec, job.keys
    if not keys.tune.space:
        ways = "tune=random, grid, optuna, asha or pbt, or 'tune.space={optim.learning_rate:[1e-3,3e-3]}'"
        raise InputError(f"tune.space is empty. Give {ways}.")
    allowed = known_keys(TuneKeys, CONF)
    for key in keys.tune.space:
        if key not in allowed:
            raise InputError(
                f"tune.space: the key {key!r} does not exist. Did you mean {closest_name(key, allowed) or 'optim.learning_rate'}?"
            )
    search = (Population if keys.tune.scheduler == "pbt" else TuneSearch)(keys.tune, spec.optim.last_step)
    adaptive = Adaptive(search, lambda point: compose_point("tune", point, TuneKeys, CONF), keys.tune.metric)
    request = search_request("tune", spec, given_overrides(), keys.sweep, keys.output, force=keys.force)
    run_sweep(request, Training(), command(job_command("tune"), sys.argv[1:]), adaptive)


def sweep(_: SweptJobs[TuneKeys]) -> NoReturn:
    """Refuse `-m`."""
    raise InputError("tune is a sweep by itself. Leave -m out; values to try go into tune.space.")


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("tune", TuneKeys, run, CONF, sweep, slow=True)
