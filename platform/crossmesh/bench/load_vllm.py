"""Load by `vllm bench serve`, in a process of its own that sends one load after another: importing vllm costs more than a small cell.

Each line on stdin is one load (`load.py` writes them); the answer is progress and then the times of every request, as lines of JSON.
Answers' texts are not passed on.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from vllm.benchmarks import serve

_KEPT = (
    "duration", "completed", "failed", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors",
    "request_throughput", "output_throughput", "max_concurrent_requests", "client_core_share",
)  # fmt: skip


def main() -> None:
    """Answer every line of stdin until it closes."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What libraries print belongs into the log.

    def say(**values: object) -> None:
        channel.write(json.dumps(values) + "\n")
        channel.flush()

    class Progress:
        """Takes the place of vLLM's progress bar."""

        def __init__(self, *_: object, total: int = 0, **__: object) -> None:
            self._done, self._total = 0, total

        def update(self, count: int = 1) -> None:
            self._done += count
            say(progress=[self._done, self._total])

        def close(self) -> None:
            pass

    serve.tqdm = Progress
    serve.benchmark = _timed(serve.benchmark)
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    say(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["key"]:
            os.environ["OPENAI_API_KEY"] = asked["key"]  # Read by vLLM at each request; it never enters a command line.
        else:
            os.environ.pop("OPENAI_API_KEY", None)
        try:
            result = serve.main(parser.parse_args(asked["arguments"]))
            say(result={key: result[key] for key in _KEPT})
        except Exception as error:  # noqa: BLE001  # whatever it is, the driver says it
            say(error=f"{type(error).__name__}: {error}")


def _timed(benchmark: Callable[..., Awaitable[dict[str, Any]]]) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The benchmark of vLLM, saying also how much of one core this process used while requests were out."""

    async def timed(**arguments: Any) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        result = await benchmark(**arguments)
        used = (time.process_time() - cpu) / (time.perf_counter() - wall)
        return {**result, "client_core_share": used}

    return timed


if __name__ == "__main__":
    main()
