"""Loading and unloading adapters while the engine answers: vLLM's own routes and bodies, with our checks in front.

vLLM's routes (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`) take any path and replace weights under running requests. Here every load is an
adapter of its own to the engine: requests in flight keep the one they began with, whatever its name means meanwhile, and an unloaded
one is only no longer found. Imported in a replica only.
"""

import asyncio
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest
from vllm.lora.request import LoRARequest

from crossmesh.compat.vllm_server import become_models
from crossmesh.errors import CrossmeshError
from crossmesh.serve.loading import HotLoading


class _Models(OpenAIServingModels):
    """vLLM's models, without the folders of this machine, where the engine calls an adapter that was loaded later ` #id` besides its name.

    The engine takes adapters of one name for the same one, also when requests of both are running, and dies of it.
    """

    def model_name(self, lora_request: LoRARequest | None = None) -> str:
        """The name that clients know."""
        name: str = super().model_name(lora_request)
        return name if lora_request is None else name.removesuffix(_suffix(lora_request.lora_int_id))

    async def show_available_models(self) -> Any:
        """The base and every adapter, by the names that clients know."""
        models = await super().show_available_models()
        for card, name in zip(reversed(models.data), reversed(self.lora_requests), strict=False):
            card.id = name
        for card in models.data:
            card.root = card.id
        return models


def by_names_of_clients(served: OpenAIServingModels) -> OpenAIServingModels:
    """Make `served` list and name models as clients know them."""
    become_models(served, _Models)
    return served


def _suffix(number: int) -> str:
    return f" #{number}"


def add_routes(app: FastAPI, loading: HotLoading) -> None:
    """Add `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter` to vLLM's application."""
    served: OpenAIServingModels = app.state.openai_serving_models
    one_at_a_time = asyncio.Lock()

    @app.post("/v1/load_lora_adapter")
    async def load(request: LoadLoRAAdapterRequest) -> PlainTextResponse:
        """Serve the adapter in the folder `lora_path` as `lora_name`; with `load_inplace` also when the name is taken by another one."""
        name = request.lora_name
        async with one_at_a_time:
            if name in served.lora_requests and not request.load_inplace:
                raise HTTPException(400, f"An adapter called {name!r} is loaded. Unload it first, or send load_inplace=true.")
            try:
                # Other requests go on while it is read and written.
                adapter = await asyncio.to_thread(loading.adapter, name, request.lora_path)
            except CrossmeshError as error:
                raise HTTPException(400, str(error)) from error
            number = served.lora_id_counter.inc(1)
            loaded = LoRARequest(name + _suffix(number), number, str(adapter.folder))
            await served.engine_client.add_lora(loaded)
            served.lora_requests[name] = loaded
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: UnloadLoRAAdapterRequest) -> PlainTextResponse:
        """Serve `lora_name` no longer; requests that have begun are answered, and the engine drops its arrays when it needs the room."""
        name = request.lora_name
        async with one_at_a_time:
            if name not in served.lora_requests:
                known = ", ".join(served.lora_requests) or "none"
                raise HTTPException(404, f"No adapter is called {name!r}. Loaded: {known}.")
            del served.lora_requests[name]
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")
