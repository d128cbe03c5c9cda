"""A process that serves the stock application of `ray.serve.llm` on a Ray of its own until its standard input closes.

A Ray cluster has one Ray Serve, and ours has our gate in front of every application; so what is to be measured without it has a Ray for
itself. `servers.py` starts this process and reads the one line of JSON that it says: a port, or an error.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from crossmesh.cluster.calls import call_worker
from crossmesh.cluster.session import ray_session
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import HardwareSpec
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError
from crossmesh.ports import free_port

_NAME = "plain"
_POLL_S = 0.5


def main() -> None:
    """Serve what the first line of standard input describes."""
    asked = json.loads(sys.stdin.readline())
    try:
        with ray_session(StorageSpec(asked["storage"])):
            port = _serve(asked)
            _say(port=port)
            sys.stdin.read()
            from ray import serve

            serve.shutdown()
    except CrossmeshError as error:
        _say(error=str(error))


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _serve(asked: Mapping[str, Any]) -> int:
    from ray import serve

    port = free_port()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    device = HardwareSpec(name=asked["hardware"], catalogue=asked["catalogue"]).slice.device
    runtime_env = environment(asked["kind"], device).with_variables(**asked["variables"]).runtime_env
    call_worker(asked["kind"], device, _deploy, {**asked["llm_config"], "runtime_env": runtime_env})
    deadline = time.monotonic() + asked["timeout_s"]
    while time.monotonic() < deadline:
        application = serve.status().applications.get(_NAME)
        if application and application.status == "RUNNING":
            return port
        if application and application.status in {"DEPLOY_FAILED", "UNHEALTHY"}:
            reasons = [one.message for one in application.deployments.values() if one.message] or [application.message]
            raise CrossmeshError("The plain application of ray.serve.llm did not start.\n" + "\n".join(reasons))
        time.sleep(_POLL_S)
    raise CrossmeshError("The plain application of ray.serve.llm was not ready in time (serve.start_timeout_s).")


def _deploy(llm_config: Mapping[str, Any]) -> None:
    """In a worker: the driver must not import what this imports."""
    from crossmesh.serve.vllm.plain_vllm import deploy

    deploy(llm_config, _NAME)


if __name__ == "__main__":
    # Ray pickles what this module calls by its name, which must not be `__main__`.
    from crossmesh.bench.plain import main as run

    run()
