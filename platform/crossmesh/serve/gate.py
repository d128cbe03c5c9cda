"""The API-key gate in front of every route of a server, and where its key comes from.

The gate is plain ASGI around the whole application, so no route (documentation, metrics, health) can be mounted outside it. It
knows the SHA-256 of the key only. Without a key there is one answer, 401 in OpenAI's error form; what `/-/healthz` says (alive, one
word) is Ray Serve's proxy and stays open for liveness checks.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError
from crossmesh.spec.serving import ServeSpec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROXY_HOOK = "crossmesh.serve.gate:proxy_middleware"
"""Import path for `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEY_BYTES = 32
_SHORTEST_KEY = 16


def server_key(serve: ServeSpec, storage: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key that clients must send; None when `serve.allow_anonymous`.

    It is the value of the environment variable `serve.api_key_env`, or else the content of `<storage>/secrets/api_key`, made on first
    use with mode 0600. `InputError` for an empty or short key, for a key file that others can read, and for a server without a key on an
    address that others can reach.
    """
    if serve.allow_anonymous:
        if serve.host not in _LOOPBACK:
            raise InputError(
                f"serve.allow_anonymous=true with serve.host={serve.host!r} would serve anyone. Allowed: {', '.join(_LOOPBACK)}."
            )
        return None
    if serve.api_key_env in environ:
        return _checked(environ[serve.api_key_env].strip(), f"environment variable {serve.api_key_env}")
    path = storage / "secrets" / "api_key"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise InputError(f"{path} can be read by others. Run: chmod 600 {path}") from None
        return _checked(path.read_text(encoding="utf-8").strip(), str(path))
    key = "cm-" + secrets.token_urlsafe(_KEY_BYTES)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(key + "\n")
    return key


def key_source(serve: ServeSpec, storage: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Say where `server_key` takes the key from, for a person who needs it; never the key itself."""
    if serve.allow_anonymous:
        return "none is asked for"
    return f"in ${serve.api_key_env}" if serve.api_key_env in environ else f"in {storage / 'secrets' / 'api_key'}"


def _checked(key: str, source: str) -> str:
    if len(key) < _SHORTEST_KEY or not key.isascii() or any(character.isspace() for character in key):
        raise InputError(f"The API key in {source} is not usable. Allowed: {_SHORTEST_KEY} or more ASCII characters without spaces.")
    return key


def key_digest(key: str) -> str:
    """Return the SHA-256 of a key as hex: all that a server is given."""
    return hashlib.sha256(key.encode()).hexdigest()


class Gate:
    """ASGI application that lets a request through to `app` only with `Authorization: Bearer <key>`."""

    def __init__(self, app: App, digest: str) -> None:
        self._app = app
        self._digest = digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass lifespan events and admitted requests on; answer everything else with 401 (a web socket is closed)."""
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _admits(self, scope: Scope) -> bool:
        offered = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(offered) != 1:
            return False
        scheme, _, key = offered[0].partition(b" ")
        # Digests have one length and are compared in constant time, so timing tells nothing about the key.
        right = hmac.compare_digest(hashlib.sha256(key.strip()).hexdigest(), self._digest)
        return right and scheme.lower() == b"bearer"


async def _refuse(send: Send) -> None:
    message = "Incorrect or missing API key. Send it as: Authorization: Bearer <key>."
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RoutesThroughGate:
    """ASGI middleware of Ray Serve's proxy: its own `/-/routes` table is not answered but handed to the application, behind the gate."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give `/-/routes` a name that the proxy does not answer itself."""
        if scope["type"] == "http" and scope["path"] == "/-/routes":
            scope = {**scope, "path": "/-/routes/", "raw_path": b"/-/routes/"}
        await self._app(scope, receive, send)


def proxy_middleware() -> list[Any]:
    """Return what Ray Serve's proxy wraps itself in (see `PROXY_HOOK`)."""
    from starlette.middleware import Middleware

    return [Middleware(RoutesThroughGate)]
