"""Starting, exposing and stopping the vLLM engine of `ray.serve.llm`. Imported in a replica only: it imports vllm and torch."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer
from vllm.entrypoints.openai.models.protocol import LoRAModulePath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from crossmesh.serve.loading import HotLoading
from crossmesh.serve.loading_vllm import add_routes


class _Server(LLMServer):
    """`ray.serve.llm`'s server without its telemetry, which costs a process that imports vllm once more."""

    async def _start_engine(self) -> None:
        await self.engine.start()


class _Engine(VLLMEngine):
    """`ray.serve.llm`'s engine, which on a CPU puts the one worker into a process of its own; ours computes in the engine's process."""

    def _start_async_llm_engine(self, arguments: Any, config: Any, placement_group: Any) -> Any:
        if config.device_config.device_type == "cpu" and config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"
        return super()._start_async_llm_engine(arguments, config, placement_group)


class _LocalModel(CallbackBase):
    """The model is a local folder already: skip the download task, one more process that imports vllm."""

    async def on_before_node_init(self) -> None:
        """Say that there is nothing to initialise on the node."""
        self.ctx.run_init_node = False


async def start_engine(llm_config: Mapping[str, Any], adapters: Mapping[str, str]) -> LLMServer:
    """Start the engine of `llm_config` with every adapter loaded under its own name, and return its server."""
    arguments = dict(llm_config["engine_kwargs"])
    if adapters:
        arguments["lora_modules"] = [LoRAModulePath(name=name, path=folder) for name, folder in adapters.items()]
    config = LLMConfig(**{**llm_config, "engine_kwargs": arguments, "callback_config": {"callback_class": _LocalModel}})
    server = _Server.sync_init(config, engine_cls=_Engine)
    await server.start()
    return server


async def openai_app(server: LLMServer, loading: HotLoading) -> FastAPI:
    """Return vLLM's OpenAI application of the running engine, with `/ready`, `/v1/models/<name>` and the routes of `loading_vllm` added."""
    app: FastAPI = await server.engine.build_asgi_app()
    served: OpenAIServingModels = app.state.openai_serving_models
    add_routes(app, loading)

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        """Answer once the engine runs, with every model that it serves."""
        await server.check_health()
        return {"status": "ready", "models": [loading.base.name, *served.lora_requests]}

    @app.get("/v1/models/{model}")
    async def model_card(model: str) -> dict[str, Any]:
        """Answer `client.models.retrieve(...)`, which vLLM itself does not route."""
        cards = await served.show_available_models()
        for card in cards.data:
            if card.id == model:
                described: dict[str, Any] = card.model_dump()
                return described
        raise HTTPException(404, f"The model {model!r} does not exist. Known: {', '.join(card.id for card in cards.data)}.")

    return app


def stop_engine(server: LLMServer) -> None:
    """End the engine's processes."""
    engine = server.engine
    if engine is not None and engine._engine_client is not None:
        engine._engine_client.shutdown()
