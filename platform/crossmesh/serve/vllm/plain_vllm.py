"""Builds and deploys the stock application of `ray.serve.llm`, to be measured against. Runs in a Ray task: it imports vllm."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def deploy(llm_config: Mapping[str, Any], name: str) -> None:
    """Deploy `build_openai_app` of `llm_config` as application `name` of the Ray Serve that runs; return before it is ready."""
    # The ingress asks for no core: it would wait for one on a machine with two.
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}}
    config = LLMConfig(**llm_config, deployment_config={"num_replicas": 1})
    application = build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})
    target = serve.RunTarget(application, name=name, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
