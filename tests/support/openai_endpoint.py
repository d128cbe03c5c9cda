"""An in-process endpoint that speaks as much of the OpenAI protocol as an evaluation needs, faults included."""

import asyncio
import threading

from aiohttp import web

KEY = "the-key"


class Endpoint:
    """Answers by a table from the last message to a text; a fault is an HTTP status that is given so many times first."""

    def __init__(self) -> None:
        self.authorization: str | None = f"Bearer {KEY}"
        """What requests must have; None: no key at all."""
        self.answers: dict[str, str] = {}
        self.faults: dict[str, list[int]] = {}
        self.bodies: dict[str, list[bytes]] = {}
        """Sent so many times first, with status 200, whatever they are."""
        self.refused: list[str] = []
        """Parameters that requests may not have."""
        self.finish: str | None = "stop"
        self.requests: list[dict] = []
        self.models = ["base"]
        self.headers: list[dict[str, str]] = [{}]
        """Of the answers in turn."""
        self.answered = 0
        self.given: dict[str, dict[str, str]] = {}
        """The headers that each text was answered with."""
        self.in_flight = self.most_in_flight = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _complete(self, request: web.Request) -> web.Response:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0.01)
            return self._answer(request.headers.get("Authorization"), await request.json())
        finally:
            self.in_flight -= 1

    async def _models(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != self.authorization:
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        cards = [{"id": name, "object": "model"} for name in self.models]
        return web.json_response({"object": "list", "data": cards}, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        self.answered += 1
        return self.headers[(self.answered - 1) % len(self.headers)]

    def _answer(self, authorization: str | None, body: dict) -> web.Response:
        self.requests.append(body)
        question = body["messages"][-1]["content"]
        if authorization != self.authorization:
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        if body["model"] != "base":
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        if self.faults.get(question):
            status = self.faults[question].pop(0)
            return web.json_response({"error": {"message": f"fault {status}"}}, status=status, headers={"retry-after-ms": "1"})
        if named := [name for name in self.refused if name in body]:
            error = {"message": f"Unsupported parameter: '{named[0]}' is not supported with this model.", "param": named[0]}
            return web.json_response({"error": error}, status=400)
        if self.bodies.get(question):
            return web.Response(body=self.bodies[question].pop(0), content_type="application/json")
        message = {"role": "assistant", "content": self.answers.get(question, f"answer to {question}")}
        headers = self.given[message["content"]] = self._headers()
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": self.finish}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
            },
            headers=headers,
        )
