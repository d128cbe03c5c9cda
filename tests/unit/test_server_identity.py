"""Answers of two servers are told apart: by their signature one by one, or else by the models that a server lists."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from crossmesh import server_identity as module
from crossmesh.errors import InputError
from crossmesh.server_identity import HEADER, Origin, ServerChangedError


class Answers:
    """What a server says next."""

    def __init__(self) -> None:
        self.cards: list[list[dict[str, Any]]] = [[{"id": "base", "created": 1}]]
        self.digests: list[str] = []
        self.asked: str | None = None
        self.statuses: list[int] = []
        self.count = 0


@contextmanager
def server(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.statuses.pop(0) if answers.statuses else 200
            if self.path.endswith("/fingerprint"):
                body = {"sha256": answers.asked}
                status = 200 if answers.asked else 404
            else:
                answers.count += 1
                body = {"data": answers.cards[answers.count % len(answers.cards)]}
            self.send_response(status)
            if answers.digests:
                self.send_header("X-Crossmesh-Fingerprint", answers.digests[answers.count % len(answers.digests)])
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr(module, "_BETWEEN_S", 0.0)
    return Answers()


def test_one_server_stays_itself_though_its_cards_are_dated_anew(answers: Answers) -> None:
    answers.cards = [[{"id": "base", "created": 1}], [{"id": "base", "created": 2, "permission": [{"id": 7}]}]]
    with server(answers) as url:
        origin = Origin(url, "")
        origin.check()
        assert not origin.signed
        origin.check_answer({})


def test_two_unsigned_servers_on_one_port_are_noticed_before_anything_is_asked(answers: Answers) -> None:
    answers.cards = [[{"id": "base", "root": "/one"}], [{"id": "base", "root": "/other"}]]
    with server(answers) as url, pytest.raises(ServerChangedError, match=r"its models are .*/o"):
        Origin(url, "")


def test_a_server_that_is_replaced_by_one_with_other_models_is_noticed(answers: Answers) -> None:
    with server(answers) as url:
        origin = Origin(url, "")
        answers.cards = [[{"id": "base"}, {"id": "mine"}]]
        with pytest.raises(ServerChangedError, match="are not kept"):
            origin.check(1)


def test_signed_answers_are_held_against_the_signature_one_by_one(answers: Answers) -> None:
    answers.digests = ["a" * 64]
    with server(answers) as url:
        origin = Origin(f"{url}/v1", "", "a" * 64)
        assert origin.signed
        origin.check_answer({HEADER: "a" * 64})
        for other in ({HEADER: "b" * 64}, {}):
            with pytest.raises(ServerChangedError):
                origin.check_answer(other)
        answers.digests = ["b" * 64]
        with pytest.raises(ServerChangedError, match="its fingerprint is bbbbbbbbbbbb, not aaaaaaaaaaaa"):
            origin.check()
        with pytest.raises(ServerChangedError, match="its fingerprint is bbbbbbbbbbbb, not aaaaaaaaaaaa"):
            Origin(url, "", "a" * 64)


def test_a_signature_that_a_proxy_took_away_is_asked_for(answers: Answers) -> None:
    answers.asked = "a" * 64
    with server(answers) as url:
        origin = Origin(url, "", "a" * 64)
        assert not origin.signed
        origin.check_answer({})
        answers.asked = "b" * 64
        with pytest.raises(ServerChangedError):
            origin.check()


def test_a_busy_server_is_asked_again_and_one_that_does_not_answer_is_an_input_error(answers: Answers) -> None:
    answers.statuses = [503, 429]
    with server(answers) as url:
        Origin(url, "")
        answers.statuses = [401]
        with pytest.raises(InputError, match="status 401"):
            Origin(url, "")
    with pytest.raises(InputError, match="does not list the models"):
        Origin(url, "")
