"""`ray.serve.llm`: its server of a vLLM engine as crossmesh runs it. Imported in a replica only: it imports vllm and torch."""

from collections.abc import Mapping
from typing import Any

from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from crossmesh.compat.parts import member, part, require_overridden

_CALLBACKS: Any = part("ray", "ray.llm._internal.common.callbacks.base", "CallbackBase")
_ENGINE: Any = part("ray", "ray.llm._internal.serve.engines.vllm.vllm_engine", "VLLMEngine")


class Server(LLMServer):
    """`ray.serve.llm`'s server without its telemetry, which costs a process that imports vllm once more."""

    reserved: Any = None
    """What holds the chips of an emulated accelerator."""

    async def _start_engine(self) -> None:
        await self.engine.start()


class _Engine(_ENGINE):
    """`ray.serve.llm`'s engine, which on a CPU puts the one worker into a process of its own; ours computes in the engine's process."""

    def _start_async_llm_engine(self, arguments: Any, config: Any, placement_group: Any) -> Any:
        if config.device_config.device_type == "cpu" and config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"
        return super()._start_async_llm_engine(arguments, config, placement_group)


class _LocalModel(_CALLBACKS):
    """The model is a local folder already: skip the download task, one more process that imports vllm."""

    async def on_before_node_init(self) -> None:
        """Say that there is nothing to initialise on the node."""
        self.ctx.run_init_node = False


def make_server(llm_config: Mapping[str, Any], engine_arguments: Mapping[str, Any]) -> Server:
    """Return a server, not started yet, of an engine with `engine_arguments`."""
    require_overridden("ray", Server, LLMServer, ("_start_engine",))
    require_overridden("ray", _Engine, _ENGINE, ("_start_async_llm_engine",))
    require_overridden("ray", _LocalModel, _CALLBACKS, ("on_before_node_init",))
    config = LLMConfig(**{**llm_config, "engine_kwargs": dict(engine_arguments), "callback_config": {"callback_class": _LocalModel}})
    server: Server = Server.sync_init(config, engine_cls=_Engine)
    return server


def engine_client(server: Any) -> Any:
    """Return vLLM's client of the engine that `server` runs; None before it has started."""
    return member("ray", server.engine, "_engine_client")
