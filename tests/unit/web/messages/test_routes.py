"""Messages at a worker's web server: who may send them, and what becomes of them when brokers don't take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.errors import AskClosedError, BrokerRefusedError, BrokerUnavailableError, RecordTooLargeError
from actors.ports import ActorReply, ActorRequest
from actors.runtime.requests.requests import ASK
from tests.unit.web.query_server import Served, get, served

WRITE, READ = "writer-0123456789-abcd", "reader-0123456789-abcd"
TOKENS: dict[str, Any] = {"write_tokens": [WRITE], "query_tokens": [READ]}
WORD = "/actors/talk/ada/str"


class Asks:
    """The brokers: they take all, or raise an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent: list[ActorRequest] = []

    async def partitions_of(self, topic: str) -> int:
        return 4

    async def tell(self, question: ActorRequest, timeout_s: float) -> int:
        if self.error is not None:
            raise self.error
        self.sent.append(question)
        return 7

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        raise AssertionError("the actor gives no answers")

    async def close(self) -> None:
        """Do nothing."""


async def post(there: Served, path: str, body: bytes, *headers: str, token: str | None = WRITE) -> tuple[int, Any]:
    connection = await there.connect()
    lines = ["Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    connection.send(get(path, *lines, method="POST") + body)
    status, _, content = await connection.answer()
    await connection.close()
    return status, json.loads(content)


@pytest.mark.parametrize(("token", "status"), [(None, 401), (READ, 403), ("wrong-0123456789-abcd", 401), (WRITE, 202)])
async def test_a_message_needs_a_token_that_allows_to_write(token: str | None, status: int) -> None:
    async with served(**TOKENS) as there:
        there.app._asks = asks = Asks()
        found, answer = await post(there, WORD, b'"hello"', token=token)
        assert found == status, answer
        assert [(question.key, question.value) for question in asks.sent] == (
            [(b"ada", b"hello")] if status == 202 else []
        )


async def test_a_writer_reads_and_nobody_writes_without_the_setting() -> None:
    async with served(**TOKENS) as there:
        connection = await there.connect()
        connection.send(get("/actors/words/ada", f"Authorization: Bearer {WRITE}"))
        assert (await connection.answer())[0] == 200
        await connection.close()
    async with served() as there:
        status, problem = await post(there, WORD, b'"hello"', token=None)
        assert (status, problem["type"].rpartition(":")[2]) == (403, "writing-is-off")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BrokerUnavailableError("no broker"), 503, "not-sent"),
        (BrokerRefusedError("no access"), 503, "not-sent"),
        (AskClosedError("closed"), 503, "not-sent"),
        (TimeoutError(), 503, "not-sent"),
        (RecordTooLargeError("too large"), 413, "large-message"),
    ],
)
async def test_what_brokers_dont_take_is_no_answer(error: Exception, status: int, kind: str) -> None:
    async with served(**TOKENS) as there:
        there.app._asks = Asks(error)
        found, problem = await post(there, WORD, b'"hello"')
        assert (found, problem["type"].rpartition(":")[2]) == (status, kind)


@pytest.mark.parametrize("header", ["Idempotency-Key: a", "Prefer: wait=1"])
async def test_a_header_that_is_there_twice_is_refused(header: str) -> None:
    async with served(**TOKENS) as there:
        there.app._asks = asks = Asks()
        assert (await post(there, WORD, b'"hello"', header, header))[0] == 400
        assert asks.sent == []


async def test_a_message_is_a_question_without_a_deadline() -> None:
    async with served(**TOKENS) as there:
        there.app._asks = asks = Asks()
        await post(there, WORD, b'"hello"')
        (question,) = asks.sent
        assert ASK not in dict(question.headers)
        assert len(question.id) == 32
