"""What a model is shown: the tokens of a task's prompts as the server itself makes them of its template and tokenizer, by digest."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

from crossmesh.errors import CrossmeshError
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.samples import Sample
from crossmesh.files import canonical_json, digest_text, parse_json

_TIMEOUT_S = 60.0


def prompts_record(base_url: str, api_key: str, model: str, problems: Sequence[Problem], samples: Sequence[Sample]) -> dict[str, str]:
    """The prompts of `problems` as `model` saw them.

    `tokens` is a digest of the token ids (`POST /tokenize`, which vLLM has); of a server that does not give them `token_counts`, a digest
    of how many there were.
    """
    found: list[object] = []
    for problem in problems:
        tokens = _tokens(base_url, api_key, model, problem)
        if tokens is None and not found:
            counts = {one.problem: one.prompt_tokens for one in samples}
            return {"token_counts": digest_text(canonical_json(counts))}
        found.append([problem.id, tokens])
    return {"tokens": digest_text(canonical_json(found))}


def _tokens(base_url: str, api_key: str, model: str, problem: Problem) -> list[int] | None:
    """Token ids of a prompt; None where the server does not say."""
    asked = {"model": model, "messages": [dict(one) for one in problem.messages], "add_generation_prompt": True}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/tokenize"
    request = urllib.request.Request(url, data=json.dumps(asked).encode(), headers=headers)  # noqa: S310  # checked: http(s)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return [int(token) for token in parse_json(answer.read())["tokens"]]
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (ValueError, KeyError, TypeError):
        return None
    except (OSError, HTTPException) as error:
        raise CrossmeshError(f"No answer from {url}: {error}. The answers are kept; run the same command again.") from error
