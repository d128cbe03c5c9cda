"""Ray Serve: the version of a deployment, its controller, how its proxy listens, and what its errors say."""

import socket
from typing import Any

from crossmesh.compat.parts import member, part, set_member

_HTTP = "ray.serve._private.http_util"


def set_version(deployment: Any, version: str) -> None:
    """Give `deployment` a version: one that runs with the same is left running. Serve's own are random, and its API takes none."""
    set_member("ray", deployment, "_version", version)


def controller() -> Any:
    """Return the actor that controls Ray Serve on this cluster. Raises `ValueError` when there is none."""
    import ray

    constants = "ray.serve._private.constants"
    return ray.get_actor(part("ray", constants, "SERVE_CONTROLLER_NAME"), part("ray", constants, "SERVE_NAMESPACE"))


def ask_controller_to_stop() -> Any:
    """Have the controller end all applications and itself; return what can be waited for. Raises `ValueError` when there is none."""
    return member("ray", controller(), "graceful_shutdown").remote(wait=False)


def listen_alone() -> None:
    """Have the proxy that starts in this process bind its port for itself.

    Ray Serve 2.60 lets any process of the same user listen beside its proxy, and connections meet either. Its own switch
    (SERVE_SOCKET_REUSE_PORT_ENABLED=0) also refuses a port whose last connections are only being forgotten.
    """
    set_member("ray", part("ray", _HTTP), "set_socket_reuse_port", _reuse_address)


def _reuse_address(listener: socket.socket) -> bool:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True


def is_bind_failure(error: BaseException) -> bool:
    """Whether the proxy could not listen at its address."""
    return "Failed to bind" in str(error)
