"""vLLM's OpenAI server: classes of its parts, the threads that prepare requests, the kernels of LoRA. Imported in a replica only."""

from typing import Any

from vllm.platforms import current_platform
from vllm.utils.async_utils import make_async

from crossmesh.compat.parts import member, require_parameters, set_member, swap_class


def become_models(served: Any, kind: type) -> None:
    """Make the list of models that vLLM's application serves a `kind`, which overrides how models are named and listed."""
    swap_class("vllm", served, kind, ("model_name", "show_available_models"))


def become_renderer(renderer: Any, kind: type) -> None:
    """Make the renderer of prompts a `kind`, which overrides what a chat template is told."""
    require_parameters("vllm", renderer.preprocess_chat, ("request", "default_template_kwargs"))
    swap_class("vllm", renderer, kind, ("preprocess_chat",))


def become_processor(processor: Any, kind: type) -> None:
    """Make the processor of requests a `kind`, which overrides how a request to an adapter is read.

    vLLM binds the method to a pool of threads when it makes the processor: it is bound again.
    """
    require_parameters("vllm", processor.process_inputs, ("lora_request",))
    swap_class("vllm", processor, kind, ("process_inputs",))
    threads = member("vllm", member("vllm", processor, "renderer"), "_executor")
    set_member("vllm", processor, "process_inputs_async", make_async(processor.process_inputs, executor=threads))


def use_lora_kernels(kind: type) -> None:
    """Have the LoRA layers that are made in this process from now on compute with `kind`."""
    set_member("vllm", current_platform, "get_punica_wrapper", lambda: f"{kind.__module__}.{kind.__qualname__}")
