"""Private parts of vLLM and of `ray.serve.llm`. Importing both takes half a minute."""

import inspect

import pytest

pytestmark = [pytest.mark.canary, pytest.mark.full]


class Plain:
    """Stands in for an object that vLLM makes deep inside a running engine."""


def made(kind: type) -> object:
    return kind.__new__(kind)


def test_become_models():
    from crossmesh.compat import vllm_server
    from crossmesh.serve.vllm.loading_vllm import OpenAIServingModels, _Models

    served = made(OpenAIServingModels)
    vllm_server.become_models(served, _Models)
    assert type(served) is _Models


def test_become_renderer():
    from crossmesh.compat import vllm_server
    from crossmesh.serve.vllm.defaults_vllm import OnlineRenderer, _Renderer

    renderer = made(OnlineRenderer)
    vllm_server.become_renderer(renderer, _Renderer)
    assert type(renderer) is _Renderer


def test_become_processor(says):
    from crossmesh.compat import vllm_server
    from crossmesh.serve.vllm.defaults_vllm import InputProcessor, _Processor

    says("vllm.v1.engine.input_processor", "self.process_inputs_async = make_async(")
    says("vllm.v1.engine.input_processor", "executor=self.renderer._executor")
    processor, renderer = made(InputProcessor), Plain()
    renderer._executor = None
    processor.renderer, processor.process_inputs_async = renderer, None
    vllm_server.become_processor(processor, _Processor)
    assert type(processor) is _Processor
    assert inspect.iscoroutinefunction(processor.process_inputs_async) or callable(processor.process_inputs_async)


def test_use_lora_kernels(says, monkeypatch):
    from vllm.platforms import current_platform

    from crossmesh.compat import vllm_server

    says("vllm.lora.punica_wrapper.punica_selector", "current_platform.get_punica_wrapper()")
    monkeypatch.setattr(current_platform, "get_punica_wrapper", current_platform.get_punica_wrapper)  # Put back after the test.
    vllm_server.use_lora_kernels(Plain)
    assert current_platform.get_punica_wrapper().endswith(".Plain")


def test_make_server(monkeypatch):
    from crossmesh.compat import ray_llm_vllm

    given = {}
    monkeypatch.setattr(ray_llm_vllm.Server, "sync_init", lambda config, engine_cls: given.update(config=config, engine=engine_cls))
    ray_llm_vllm.make_server({"model_loading_config": {"model_id": "base"}, "accelerator_type": None}, {"max_model_len": 16})
    assert given["config"].engine_kwargs == {"max_model_len": 16}
    assert given["config"].callback_config.callback_class.__name__ == "_LocalModel"
    assert issubclass(given["engine"], ray_llm_vllm._ENGINE)


def test_engine_client(says):
    says("ray.llm._internal.serve.engines.vllm.vllm_engine", "self._engine_client = self._start_async_llm_engine(")
    says("ray.llm._internal.serve.core.server.llm_server", "self._start_engine()")
    says("ray.llm._internal.serve.core.server.llm_server", "self.engine")
