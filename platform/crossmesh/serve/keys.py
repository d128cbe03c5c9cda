"""API keys of a server: where they come from, and how they are kept.

Keys given to others are made here, shown once and kept as SHA-256 in `storage.root`/secrets/api_keys.json, each with the name that stands
in the access log. The server's own key (from the environment, or made on first use) is what jobs on this machine send.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossmesh.config.serving import ServeSpec
from crossmesh.errors import InputError, closest_name, reading
from crossmesh.files import locked, read_json, write_json

OWN = "own"
"""Name of the server's own key in the access log."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KEY_BYTES = 32
_SHORTEST_KEY = 16
_NAME = re.compile(r"\w[\w.-]{0,63}")


def server_key(serve: ServeSpec, storage: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the server's own key; None when `serve.allow_anonymous`.

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
    path = _folder(storage) / "api_key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        _check_private(path)
        return _checked(path.read_text(encoding="utf-8").strip(), str(path))
    key = _new_key()
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(key + "\n")
    return key


def key_source(serve: ServeSpec, storage: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Say where `server_key` takes the key from, for a person who needs it; never the key itself."""
    if serve.allow_anonymous:
        return "none is asked for"
    return f"in ${serve.api_key_env}" if serve.api_key_env in environ else f"in {storage / 'secrets' / 'api_key'}"


def admitted_keys(serve: ServeSpec, storage: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the SHA-256 of every key that a server takes, by name; empty when `serve.allow_anonymous`."""
    own = server_key(serve, storage, environ)
    return {} if own is None else {OWN: key_digest(own), **{name: entry["sha256"] for name, entry in _kept(storage).items()}}


def add_key(storage: Path, name: str) -> str:
    """Make a key called `name`, keep its SHA-256, and return it: it cannot be read again. Running servers take it within seconds."""
    if not _NAME.fullmatch(name) or name == OWN:
        raise InputError(f"add_key={name!r} is not possible. Allowed: up to 64 letters, digits, '_', '-' and '.', and not {OWN!r}.")
    key = _new_key()
    with locked(_folder(storage) / "api_keys.lock"):
        kept = _kept(storage)
        if name in kept:
            raise InputError(f"add_key={name!r}: there is a key of that name. Give another, or revoke it first: revoke_key={name}.")
        made = datetime.now(UTC).isoformat(timespec="seconds")
        _keep(storage, {**kept, name: {"sha256": key_digest(key), "made": made}})
    return key


def revoke_key(storage: Path, name: str) -> None:
    """Forget the key called `name`. Running servers refuse it within seconds."""
    with locked(_folder(storage) / "api_keys.lock"):
        kept = _kept(storage)
        if name not in kept:
            guess = closest_name(name, kept)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise InputError(f"revoke_key={name!r}: there is no key of that name. Known: {', '.join(kept) or 'none'}.{hint}")
        _keep(storage, {other: entry for other, entry in kept.items() if other != name})


def key_digest(key: str) -> str:
    """Return the SHA-256 of a key as hex: all that a server is given."""
    return hashlib.sha256(key.encode()).hexdigest()


def _new_key() -> str:
    return "cm-" + secrets.token_urlsafe(_KEY_BYTES)


def _folder(storage: Path) -> Path:
    folder = storage / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _kept(storage: Path) -> dict[str, dict[str, Any]]:
    """The keys given to others, by name."""
    path = _folder(storage) / "api_keys.json"
    if not path.exists():
        return {}
    _check_private(path)
    with reading(path, "names of keys with their sha256, as add_key writes them"):
        kept: dict[str, dict[str, Any]] = read_json(path)
        for entry in kept.values():
            bytes.fromhex(entry["sha256"])
    return kept


def _keep(storage: Path, keys: Mapping[str, Mapping[str, Any]]) -> None:
    path = _folder(storage) / "api_keys.json"
    before = os.umask(0o077)  # Whatever file is written in between, only its owner reads it.
    try:
        write_json(path, dict(keys))
    finally:
        os.umask(before)


def _check_private(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read by others. Run: chmod 600 {path}")


def _checked(key: str, source: str) -> str:
    if len(key) < _SHORTEST_KEY or not key.isascii() or any(character.isspace() for character in key):
        raise InputError(f"The API key in {source} is not usable. Allowed: {_SHORTEST_KEY} or more ASCII characters without spaces.")
    return key
