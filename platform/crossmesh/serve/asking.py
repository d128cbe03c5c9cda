"""Asking a server of ours over HTTP from the driver: its address, and one answer at a time."""

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message

from crossmesh.serve.admission import Place

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Answer:
    """What came back, whatever its status."""

    status: int
    headers: "Message[str, str]"
    """Looked up whatever their case."""
    body: bytes


def origin_of(place: Place, host: str) -> str:
    """The URL of the servers at `place` for clients that reach it as `host`."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"{'https' if place.tls_cert else 'http'}://{bracketed}:{place.port}"


def get(url: str, key: str | None, tls_cert: str = "") -> Answer:
    """Ask `url` on a new connection. Raises `OSError` when nothing answers."""
    request = urllib.request.Request(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})  # noqa: S310  # our own URL
    context = None
    if tls_cert:
        context = ssl.create_default_context(cafile=tls_cert)
        context.check_hostname = False  # It is ours; the certificate names the host that clients use.
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())
