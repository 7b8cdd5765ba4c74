"""What somebody may send to be taken for somebody else, to be counted wrongly, or to leave a connection stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors._core.lifecycle import State
from actors._faust.access.guard import GUARD
from actors._faust.access.limits import Rates
from actors._faust.queries import quick
from tests.core.query_server import KEY, KEYS, Connection, Served, get, is_here, served, until

QUESTION = get(KEY)
ELSEWHERE = get("/actors/words/" + next(key for key in KEYS if key.isalnum() and not is_here(key)))
MANY = [
    b"POST /actors/words/_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
    b"Content-Length: 16\r\n\r\n",
]


@pytest.fixture
async def there() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


async def answered(connection: Connection, *requests: bytes) -> list[int]:
    """Give the statuses of answers to requests, each sent after the answer before."""
    statuses = []
    for request in requests:
        connection.send(request)
        statuses.append((await connection.answer())[0])
    return statuses


async def goes_past(there: Served, connection: Connection) -> bool:
    """Tell whether the second of two questions goes past aiohttp."""
    assert await answered(connection, QUESTION) == [200]
    before = there.quick
    assert await answered(connection, QUESTION) == [200]
    return there.quick > before


async def test_the_body_of_a_known_question_is_no_request(there: Served) -> None:
    hidden = get("/actors/words/k1")
    head, connection = get(KEY, f"Content-Length: {len(hidden)}"), await there.connect()
    assert await answered(connection, head + hidden, head + hidden) == [200, 200]
    connection.send(head)
    (protocol,) = there.server._runner.server.connections
    await until(lambda: protocol._taken or there.quick)
    connection.send(hidden, get("/nowhere"))
    assert [(await connection.answer())[0] for _ in range(2)] == [200, 404]
    await connection.close()


@pytest.mark.parametrize("request_", [QUESTION, ELSEWHERE, get(f"{KEY}?read=standby")])
async def test_a_question_is_counted_once(there: Served, monkeypatch: pytest.MonkeyPatch, request_: bytes) -> None:
    """Whichever way it is answered in the end: at once, after a commit, without a lease, or by another worker."""
    connection = await there.connect(is_known=True)
    rates = Rates(1e-9, 100)
    guard = there.server.web_app[GUARD]
    monkeypatch.setattr(guard, "_rates", rates)
    (protocol,) = there.server._runner.server.connections
    monkeypatch.setattr(protocol, "_pass", protocol._pass._replace(client="a"))
    monkeypatch.setattr(guard.callers, "_is_local", False)
    monkeypatch.setattr(guard.callers, "_is_unprotected", True)

    def counted() -> int:
        return sum(round(100 - left) for left, _ in rates._left.values())

    await answered(connection, request_)
    assert counted() == 1
    protocol._pass = protocol._pass._replace(client="a")
    there.commits(State.COMMITTING)
    connection.send(request_)
    if request_ == QUESTION:
        await until(lambda: there.waiting)
        # The lease is over when the commit ends: the group has to be asked.
        there.lease._asked_s = 0.0
    await until(lambda: counted() == 2)
    there.commits(State.RUNNING)
    await connection.answer()
    assert counted() == 2
    await connection.close()


def test_what_is_given_back_is_no_more_than_was_taken() -> None:
    rates = Rates(1, 2)
    rates.give_back("a")
    assert [rates.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    rates.give_back("a")
    assert [rates.take("a", 0.0) for _ in range(2)] == [0.0, 1.0]


async def test_a_lease_is_renewed_also_while_one_commit_follows_the_other(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.queries.WAIT_S", 0.5)
    connection = await there.connect(is_known=True)
    there.commits(State.COMMITTING)
    connection.send(QUESTION)
    await until(lambda: there.waiting)
    there.lease._asked_s = 0.0
    asked = asyncio.create_task(connection.answer())
    while not asked.done():
        there.commits(State.RUNNING)
        there.commits(State.COMMITTING)
        await asyncio.sleep(0)
    assert (await asked)[0] == 200
    await connection.close()


async def test_a_server_that_stops_answers_who_waits_also_where_it_cant_say() -> None:
    async with served() as there:
        connection = await there.connect(is_known=True)
        there.commits(State.COMMITTING)
        connection.send(QUESTION)
        await until(lambda: there.waiting)
        server = there.server._runner.server
        server.pre_shutdown()
        there.commits(State.FENCING)
        status, _, body = await connection.answer()
        assert status == 503
        assert b"transactions are being settled" in body
        await connection.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [get("/nowhere")],
        [get("/dashboard-of-nobody", "Content-Length: 4") + b"body"],
        [QUESTION[:9], QUESTION[9:-1], QUESTION[-1:]],
        [*MANY, b'{"keys":', b'["ada"]}'],
        [get(KEY, "Content-Length: 16"), QUESTION[:16]],
        [get(KEY, "Authorization: Bearer wrong")],
    ],
)
async def test_what_was_answered_is_over(there: Served, pieces: list[bytes]) -> None:
    """A client whose requests came in pieces, or led to errors, is known again from its next question on."""
    connection = await there.connect()
    (protocol,) = await until(lambda: there.server._runner.server.connections)
    sent = 0
    for piece in pieces[:-1]:
        connection.send(piece)
        sent += len(piece)
        await until(lambda expected=sent: protocol._taken == expected)
    await answered(connection, pieces[-1])
    assert await goes_past(there, connection)
    await connection.close()


LATE = get("/nowhere", "Content-Length: 099")


@pytest.mark.parametrize(
    "begun",
    [
        [get("/nowhere", "Transfer-Encoding: chunked")],
        [b"\r\n\r\n", LATE, b"x" * (99 - len(LATE))],
        [get("/nowhere", "Content-Length: 0"), LATE, b"x" * (99 - len(LATE))],
    ],
)
async def test_what_is_answered_before_its_body_came_isnt_over(there: Served, begun: list[bytes]) -> None:
    """The lengths are chosen so that what came seems to be the whole request."""
    connection = await there.connect()
    connection.send(*begun)
    for _ in range(sum(piece.startswith(b"GET") for piece in begun)):
        assert (await connection.answer())[0] == 404
    (protocol,) = there.server._runner.server.connections
    assert protocol._taken == sum(map(len, begun))
    rest = b"0\r\n\r\n" if len(begun) == 1 else b"x" * len(LATE)
    connection.send(rest, QUESTION, get("/actors/words/nobody"))
    assert [(await connection.answer())[0] for _ in range(2)] == [200, 404]
    await connection.close()


async def test_an_empty_line_before_a_request_is_no_line_of_it(there: Served) -> None:
    connection = await there.connect()
    assert await answered(connection, b"\r\n" + QUESTION) == [200]
    # As a header the line of a request means nothing.
    assert await answered(connection, get("/actors/words/k1").splitlines(keepends=True)[0] + QUESTION) == [400]
    await connection.close()


async def test_what_a_connection_holds_has_a_limit(there: Served) -> None:
    connection = await there.connect()
    connection.send(QUESTION * 4000)
    (protocol,) = await until(lambda: there.server._runner.server.connections)
    await until(lambda: protocol._taken > 2 * quick._MAX_HEAD_BYTES)
    assert 0 < len(protocol._first) <= quick._MAX_HEAD_BYTES
    for _ in range(4000):
        assert (await connection.answer())[0] == 200
    await connection.close()
