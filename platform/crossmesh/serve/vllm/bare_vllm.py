"""vLLM's own OpenAI server on a CPU with its one worker in the engine's process, as in ours. Takes the server's command line.

vLLM turns `--distributed-executor-backend uni` into a worker process of its own on a CPU; here the choice is made once more behind it.
"""

from typing import Any

from vllm.platforms.cpu import CpuPlatform


def main() -> None:
    """Serve until interrupted."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    check = CpuPlatform.check_and_update_config.__func__

    def in_process(platform: Any, config: Any) -> None:
        check(platform, config)
        if config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"

    CpuPlatform.check_and_update_config = classmethod(in_process)
    serve()


if __name__ == "__main__":
    main()
