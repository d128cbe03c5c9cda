"""Requests to an adapter with what it is served with: the tokens that end its answers, and what the chat template was told in training.

It is put where every route of the engine passes: the renderer of prompts and the processor of requests. What a request says itself goes
first, and `ignore_eos` holds for these tokens too. Imported in a replica only.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from vllm.lora.request import LoRARequest
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.v1.engine.input_processor import InputProcessor

from crossmesh.adapters.peft_format import open_adapter
from crossmesh.compat.vllm_server import become_processor, become_renderer
from crossmesh.models.serving_defaults import ServingDefaults, common_defaults


class _Renderer(OnlineRenderer):
    """vLLM's renderer, which tells the chat template what it was told in training."""

    told: Callable[[str | None], dict[str, Any]]
    """By the model that is asked."""

    async def preprocess_chat(self, request: Any, *given: Any, default_template_kwargs: dict[str, Any] | None = None, **named: Any) -> Any:
        """As the parent, whose callers all name the argument."""
        told = {**self.told(getattr(request, "model", None)), **(default_template_kwargs or {})}
        return await super().preprocess_chat(request, *given, default_template_kwargs=told, **named)


class _Processor(InputProcessor):
    """vLLM's processor of requests, which also stops an adapter's answers at the tokens that they end with."""

    def process_inputs(self, *given: Any, lora_request: LoRARequest | None = None, **named: Any) -> Any:
        """As the parent."""
        request = super().process_inputs(*given, lora_request=lora_request, **named)
        stops = _defaults(lora_request.lora_path).stop_ids if lora_request else ()
        if stops and request.sampling_params is not None:
            request.sampling_params.update_from_generation_config({"eos_token_id": [*stops]}, self.renderer.get_eos_token_id())
        return request


@lru_cache(maxsize=1024)
def _defaults(folder: str) -> ServingDefaults:
    """Of the adapter in `folder`, a serving form, which never changes."""
    return open_adapter(Path(folder)).serving


def serve_as_trained(app: FastAPI, adapters: dict[str, str]) -> None:
    """Have the engine of `app` ask every adapter as it was trained, and the base as the `adapters` it started with where they agree."""
    models, renderer, processor = app.state.openai_serving_models, app.state.online_renderer, app.state.engine_client.input_processor
    base = common_defaults([_defaults(folder) for folder in adapters.values()])

    def told(model: str | None) -> dict[str, Any]:
        request = models.lora_requests.get(model)
        return (_defaults(request.lora_path) if request else base).asks

    become_renderer(renderer, _Renderer)
    renderer.told = told
    become_processor(processor, _Processor)
