"""The stand-in as clients reach it: TLS as any of Google's hosts, and the metadata server of machines.

A request that the discovery documents do not know is answered with an error and kept in `Server.violations`, as is an answer of the
stand-in's own that their schemas do not allow.
"""

import json
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.auth import jwt

from google_cloud.certificates import TOKEN_URI, Keys
from google_cloud.cloud import Cloud
from google_cloud.discovery import FILES, document, read, wrong_answer
from google_cloud.machines import TPU, ApiError, Machine

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
Answer = tuple[int, Any]


@dataclass
class Server:
    """What all connections share."""

    cloud: Cloud
    keys: Keys
    calls: list[str] = field(default_factory=list)
    """Ids of the methods that were called, in order."""
    violations: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, host: str, verb: str, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Answer a request to one of Google's hosts."""
        parts = urlsplit(target)
        if host == "oauth2.googleapis.com":
            return self._token(parse_qs(body.decode()))
        if host not in FILES:
            return self._refuse(f"{verb} https://{host}{target}: no such API here")
        if parts.path == "/$discovery/rest":
            return 200, document(host)
        if headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _error(ApiError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."))
        try:
            told = json.loads(body) if body else None
        except ValueError:
            return self._refuse(f"{verb} {target}: the body is not JSON")
        call = read(host, verb, parts.path, parse_qs(parts.query, keep_blank_values=True), told)
        if call is None:
            return self._refuse(f"{verb} https://{host}{target}: the document has no such method")
        self.calls.append(call.method)
        if call.wrong:
            return self._refuse(f"{call.method}: {'; '.join(call.wrong)}")
        try:
            answer = self.cloud.answer(call)
        except ApiError as error:
            if error.code == 501:
                self.violations.append(str(error))
            return _error(error)
        self.violations += [f"answer of {call.method}: {one}" for one in wrong_answer(host, call.method, answer)]
        return 200, answer

    def _refuse(self, why: str) -> Answer:
        self.violations.append(why)
        return _error(ApiError(400, "INVALID_ARGUMENT", why))

    def _token(self, form: Mapping[str, list[str]]) -> Answer:
        """A token for a service account that signs for itself."""
        claims = jwt.decode(form["assertion"][0], certs=self.keys.account_public, audience=TOKEN_URI)
        if _SCOPE not in claims["scope"].split():
            return 400, {"error": "invalid_scope"}
        return 200, self.new_token()

    def new_token(self) -> dict[str, Any]:
        """A token that lets in for an hour."""
        token = secrets.token_hex(16)
        self.tokens.add(token)
        return {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}

    def metadata(self, target: str, client: str) -> Answer:
        """What the metadata server tells the machine at `client`."""
        path = urlsplit(target).path.rstrip("/").removeprefix("/computeMetadata/v1")
        account = f"ray-autoscaler-sa-v1@{self.cloud.project}.iam.gserviceaccount.com"
        machine = next((one for one in self.cloud.machines.values() if one.internal_ip == client), None)
        if path.endswith("/token"):
            return 200, self.new_token()
        known: dict[str, Any] = {
            "": "instance/",
            "/project/project-id": self.cloud.project,
            "/universe/universe-domain": "googleapis.com",
            "/instance/service-accounts/default": {"aliases": ["default"], "email": account, "scopes": [_SCOPE]},
            "/instance/service-accounts/default/email": account,
        } | ({} if machine is None else _attributes(machine))
        return (200, known[path]) if path in known else (404, "")


def _attributes(machine: Machine) -> dict[str, str]:
    """What a TPU VM finds about itself."""
    if machine.kind != TPU:
        return {}
    attributes = {"accelerator-type": machine.sort, "instance-id": machine.name, "agent-worker-number": "0"}
    return {f"/instance/attributes/{name}": value for name, value in attributes.items()}


def _error(error: ApiError) -> Answer:
    reasons = [{"message": str(error), "domain": "global", "reason": error.reason}]
    return error.code, {"error": {"code": error.code, "message": str(error), "status": error.reason, "errors": reasons}}


class _Handler(BaseHTTPRequestHandler):
    """One connection: to the metadata server, or by TLS to a host of Google's."""

    protocol_version = "HTTP/1.1"
    server: "_Listener"

    def setup(self) -> None:
        if self.server.tls:
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        host = self.headers.get("host", "").partition(":")[0]
        if isinstance(self.connection, ssl.SSLSocket):
            headers = {name.lower(): value for name, value in self.headers.items()}
            code, answer = self.server.shared.answer(host, self.command, self.path, body, headers)
        elif self.headers.get("metadata-flavor") == "Google":
            code, answer = self.server.shared.metadata(self.path, self.client_address[0])
        else:
            code, answer = 403, "the header Metadata-Flavor is missing"
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self.send_response(code)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/text" if isinstance(answer, str) else "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - The names that http.server looks for.

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - As in http.server.
        """Nothing: calls and violations are kept."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, shared: Server, address: tuple[str, int], *, tls: bool) -> None:
        self.shared, self.tls = shared, tls
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(shared.keys.server)
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong here; a client that went away is none of it."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.shared.violations.append(f"the stand-in failed: {error!r}")

    def server_bind(self) -> None:
        """Without the look-up of the host's name in http.server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def listen(shared: Server, address: tuple[str, int], *, tls: bool) -> int:
    """Answer at `address` until the process ends and return the port: TLS, or the metadata server."""
    listener = _Listener(shared, address, tls=tls)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    return listener.server_port
