"""Takes secrets out of text before it is shown or stored. Knows nothing of where the text goes."""

import os
import re
from collections.abc import Mapping

MASK = "***"
_CREDENTIALS = re.compile(r"(?<=://)[^\s/:@'\"]*:[^\s/'\"]*@")
_WEB_TOKEN = re.compile(r"(?i)(https?://)[^\s/@'\"]+@")
"""A user part alone is a secret on the web only: `pypi://package@1.0/file` names a version."""
_QUERY_SECRET = re.compile(r"(?i)([?&](?:password|token|api_?key|secret|sig|signature)=)[^&\s'\"]+")
_SECRET_NAME = re.compile(r"(?i)(TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)$")
_SHORTEST = 8
"""Shorter values are not masked: they would hit ordinary words."""


def mask_secrets(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `text` without credentials of URIs and without the values of secret-looking variables of `environ` (default: ours)."""
    variables = os.environ if environ is None else environ
    secrets = {value for name, value in variables.items() if len(value) >= _SHORTEST and _SECRET_NAME.search(name)}
    for secret in sorted(secrets, key=lambda value: (-len(value), value)):
        text = text.replace(secret, MASK)
    text = _CREDENTIALS.sub(f"{MASK}@", text)
    text = _WEB_TOKEN.sub(rf"\g<1>{MASK}@", text)
    return _QUERY_SECRET.sub(rf"\g<1>{MASK}", text)
