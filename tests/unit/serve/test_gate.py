import asyncio
import hashlib
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from crossmesh.errors import InputError
from crossmesh.serve.gate import Gate, RoutesThroughGate, key_digest, key_source, server_key
from crossmesh.spec.serving import ServeSpec

KEY = "cm-0123456789abcdef"


async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "reached", "path": scope.get("path")})


def ask(*headers: tuple[bytes, bytes], kind: str = "http", path: str = "/v1/models") -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(Gate(application, key_digest(KEY))({"type": kind, "path": path, "headers": list(headers)}, receive, send))
    return sent


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


@pytest.mark.parametrize("path", ["/v1/models", "/docs", "/openapi.json", "/health", "/metrics", "/", "/-/routes/"])
def test_no_route_is_reached_without_a_key(path: str) -> None:
    start, body = ask(path=path)
    assert start["status"] == 401
    error = json.loads(body["body"])["error"]
    assert error["code"] == "invalid_api_key"
    assert set(error) == {"message", "type", "param", "code"}


def test_the_key_opens() -> None:
    assert ask(bearer(KEY)) == [{"type": "reached", "path": "/v1/models"}]
    assert ask((b"Authorization", b"bearer " + KEY.encode())) == [{"type": "reached", "path": "/v1/models"}]


@pytest.mark.parametrize(
    "headers",
    [
        [bearer("cm-0123456789abcdeF")],
        [bearer(KEY[:-1])],
        [bearer("")],
        [bearer(hashlib.sha256(KEY.encode()).hexdigest())],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"x-api-key", KEY.encode())],
        [bearer(KEY), bearer("another")],
        [(b"authorization", b"\xff\xfe \x80")],
    ],
)
def test_anything_else_does_not(headers: list[tuple[bytes, bytes]]) -> None:
    assert ask(*headers)[0]["status"] == 401


def test_web_sockets_are_closed_and_start_up_is_let_through() -> None:
    assert ask(kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert ask(kind="lifespan")[0]["type"] == "reached"


def test_the_proxy_hands_its_route_table_to_the_application() -> None:
    def seen(path: str) -> str:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(RoutesThroughGate(application)({"type": "http", "path": path, "headers": []}, None, send))  # type: ignore[arg-type]
        return str(sent[0]["path"])

    assert seen("/-/routes") != "/-/routes"
    assert seen("/-/healthz") == "/-/healthz"
    assert seen("/v1/models") == "/v1/models"


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    key = server_key(ServeSpec(), tmp_path, {})
    file = tmp_path / "secrets" / "api_key"
    assert key is not None
    assert len(key) > 40
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert server_key(ServeSpec(), tmp_path, {}) == key
    assert key_source(ServeSpec(), tmp_path, {}) == f"in {file}"
    file.chmod(0o644)
    with pytest.raises(InputError, match="can be read by others"):
        server_key(ServeSpec(), tmp_path, {})


def test_the_environment_comes_first_and_leaves_no_file(tmp_path: Path) -> None:
    serve = ServeSpec(api_key_env="MY_KEY")
    assert server_key(serve, tmp_path, {"MY_KEY": KEY, "CROSSMESH_API_KEY": "x" * 20}) == KEY
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", "short", "with space in the middle", "schlüssel-0123456789"])
def test_an_unusable_key_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="not usable") as caught:
        server_key(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": key})
    assert not key or key not in str(caught.value)


def test_anonymous_serving_has_no_key_and_stays_on_this_machine(tmp_path: Path) -> None:
    assert server_key(ServeSpec(allow_anonymous=True), tmp_path, {"CROSSMESH_API_KEY": KEY}) is None
    with pytest.raises(InputError, match=r"serve\.host='0\.0\.0\.0' would serve anyone"):
        server_key(ServeSpec(allow_anonymous=True, host="0.0.0.0"), tmp_path, {})
