"""Starting, exposing and stopping the vLLM engine of `ray.serve.llm`. Imported in a replica only: it imports vllm and torch."""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import ray
from fastapi import FastAPI, HTTPException
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer
from vllm import __version__ as vllm_version
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.openai.models.protocol import LoRAModulePath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.dev.cache.api_router import router as cache_routes
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from crossmesh.compat.ray_llm_vllm import engine_client, make_server
from crossmesh.errors import InputError
from crossmesh.serve.asgi import App
from crossmesh.serve.fingerprint import EngineFacts, fingerprint
from crossmesh.serve.loading import HotLoading
from crossmesh.serve.openai_errors import OpenAIErrors
from crossmesh.serve.signing import Signing
from crossmesh.serve.vllm.defaults_vllm import serve_as_trained
from crossmesh.serve.vllm.loading_vllm import add_routes, by_names_of_clients
from crossmesh.serve.vllm.options import SPEC_KEYS
from crossmesh.serve.vllm.settings import EngineSettings


async def start_engine(settings: EngineSettings) -> LLMServer:
    """Start the engine of `settings` with every adapter loaded under its own name, and return its server.

    Raises `InputError` for an argument that this version of the engine does not take.
    """
    arguments = dict(settings.engine_kwargs)
    _check_arguments(arguments)
    _check_parsers(arguments)
    reserved = None
    if settings.stand_in is not None:
        reserved = await asyncio.to_thread(_reserve, settings.llm_config)
    if settings.adapters:
        arguments["lora_modules"] = [LoRAModulePath(name=name, path=folder) for name, folder in settings.adapters.items()]
    server = make_server(settings.stand_in or settings.llm_config, arguments)
    server.reserved = reserved
    await server.start()
    return server


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    accepted = {field.name for field in fields(AsyncEngineArgs)} | {field.name for field in fields(FrontendArgs)}
    for name in arguments:
        if name not in accepted:
            key = SPEC_KEYS.get(name, name)
            raise InputError(
                f"{key}: vLLM {vllm_version} has no engine argument {name!r} for it. Leave it out, or install another version."
            )


def _check_parsers(arguments: Mapping[str, Any]) -> None:
    known = {"tool_call_parser": ToolParserManager.list_registered, "reasoning_parser": ReasoningParserManager.list_registered}
    for name, registered in known.items():
        if name in arguments and arguments[name] not in registered():
            raise InputError(
                f"{SPEC_KEYS[name]}={arguments[name]!r}: vLLM {vllm_version} has no such parser. "
                f"Allowed: none, {', '.join(sorted(registered()))}."
            )


def _reserve(llm_config: Mapping[str, Any]) -> Any:
    """Reserve the chips of `llm_config` as `ray.serve.llm` does for its engine, and return what holds them."""
    engine = LLMConfig(**llm_config).get_engine_config()
    ray.get(engine.get_or_create_pg().ready())
    return engine


def engine_facts(server: LLMServer) -> EngineFacts:
    """Return what the running engine decided where its arguments left it open."""
    config = engine_client(server).vllm_config
    cache, scheduler, parallel = config.cache_config, config.scheduler_config, config.parallel_config
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    return EngineFacts(
        dtype=dtype,
        kv_cache_dtype=dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        tensor_parallel=parallel.tensor_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        prefix_caching=bool(cache.enable_prefix_caching),
        kv_block_tokens=cache.block_size,
        device=current_platform.get_device_name(),
    )


async def openai_app(server: LLMServer, settings: EngineSettings, loading: HotLoading) -> App:
    """Return vLLM's OpenAI application of the running engine with our routes added, and every answer signed with what the engine is.

    Errors have OpenAI's form (`openai_errors.py`). The routes are `/ready`, `/v1/fingerprint`, `/v1/models/<name>`, those of
    `loading_vllm`, and vLLM's own to empty its caches (`POST /reset_prefix_cache`), which it mounts in its development mode only. With
    several engines nothing can be changed.
    """
    app: FastAPI = await server.engine.build_asgi_app()
    served: OpenAIServingModels = by_names_of_clients(app.state.openai_serving_models)
    serve_as_trained(app, dict(settings.adapters))
    facts = engine_facts(server)
    known: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}

    def described() -> dict[str, Any]:
        """What this server is, with the adapters that it serves now."""
        adapters = tuple(sorted((name, request.lora_path) for name, request in served.lora_requests.items()))
        if adapters not in known:
            known.clear()
            known[adapters] = fingerprint(settings, loading.base, dict(adapters), facts)
        return known[adapters]

    if loading.engines == 1:
        add_routes(app, loading)
        app.include_router(cache_routes)
    else:
        _refuse_changes(app)

    @app.get("/v1/fingerprint")
    async def describe() -> dict[str, Any]:
        """Say what this server is, with the adapters that it serves now."""
        return described()

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

    described()  # Once before the first request, which would wait for it.
    answering = OpenAIErrors(app, lambda: [loading.base.name, *served.lora_requests])
    return Signing(answering, lambda: str(described()["sha256"]))


def _refuse_changes(app: FastAPI) -> None:
    """Answer what would change one of several engines with what to do instead."""

    @app.post("/v1/load_lora_adapter")
    @app.post("/v1/unload_lora_adapter")
    @app.post("/reset_prefix_cache")
    async def refuse() -> None:
        """Say that a request reaches one engine only."""
        raise HTTPException(
            409,
            "This server has several engines, and a request reaches one of them. Give adapters when it starts (serve.adapters), and "
            "serve.prefix_caching=false for measurements without a cache.",
        )


def stop_engine(server: LLMServer) -> None:
    """End the engine's processes."""
    if server.reserved is not None:
        server.reserved.accelerator.shutdown()
    client = None if server.engine is None else engine_client(server)
    if client is not None:
        client.shutdown()
