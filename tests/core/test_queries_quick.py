"""Questions for a key that are answered while they are read: as aiohttp's own way would answer them, and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from actors._core.lifecycle import State
from actors._core.partitioner import partition_for
from actors._faust.access.guard import GUARD
from actors._faust.queries import quick
from actors._faust.queries.rounds import BUSY_S
from actors._faust.queries.server import answer_quickly
from actors.errors import NotReadyError
from actors.ports import TopicPartition
from actors.runtime.queries import MAX_COUNTS, Bounds
from stores._core.record import encode_stamp
from tests.core.query_server import (
    KEY,
    KEYS,
    PARTITIONS,
    POSITION,
    Served,
    get,
    is_here,
    served,
    until,
)


@pytest.fixture
async def there() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


QUICK = [
    get(KEY),
    get("/actors/words/k1"),
    get("/actors/words/nobody"),
    get("/actors/words/a%2Fb"),
    get("/actors/words/key%201"),
    get("/actors/words/%D0%BA%D0%BB%D1%8E%D1%87"),
    get("/actors/words/%25"),
    get("/actors/words/%"),
    get("/actors/words/%zz"),
    get("/actors/words/-"),
    get("/actors/words/;a=b"),
    get("/actors/words/ada?"),
    get("/actors/words/ada?raw=true"),
    get("/actors/words/%22ada%22?encoding=json"),
    get("/actors/words/YWRh?encoding=base64"),
    get(f"/actors/words/ada?partition={partition_for(b'ada', PARTITIONS)}"),
    get("/actors/words/ada?read=standby"),
    get(KEY, "Actors-Hop: 1"),
    get(KEY, "Content-Length: 0"),
    get(KEY, "Cookie: actors-session=wrong"),
    get(f"/actors/words/{'y' * 5000}"),
    get(KEY, "Accept-Encoding: gzip", "Cookie: a=b", "If-None-Match: *"),
]
REFUSED = [
    get("/actors/words/_x"),
    get("/actors/words/!?encoding=base64"),
    get("/actors/words/ada?encoding=rot13"),
    get("/actors/words/ada?partition=9"),
    get("/actors/words/ada?raw=true&raw=true"),
    get("/actors/words/ada?x=1"),
    get("/actors/nowhere/ada"),
    get("/actors/_many/ada"),
    get(KEY, "Authorization: Bearer wrong"),
    get(KEY, "X-Forwarded-For: 10.0.0.1"),
    b"GET /actors/words/ada HTTP/1.1\r\nHost: example.org\r\n\r\n",
]
"""What aiohttp says, each time."""
ORDINARY = [
    get("/actors/words/_count"),
    get("/actors/words/_count?exact=true"),
    get("/actors/words/_many"),
    get("/actors/words/%5Fcount"),
    get("/actors/words/%5fmany"),
    get("/actors/words/_count%0A"),
    get("/actors/words/_ask/x/ada"),
    get("/actors/words/_ask%2Fx"),
    get("/actors/words/"),
    get("/actors/words"),
    get("/actors/words/."),
    get("/actors/words/.."),
    get("/actors/words/%2E%2E"),
    get("/actors//ada"),
    get("/actors/{/ada"),
    get("/actors/wo}rds/ada"),
    get("/actors/words//ada"),
    get("/actors/words/ada/"),
    get("/actors/w%6Frds/ada"),
    get("/actors/words/ada#x"),
    get("/actors/words/\xc3\xa4"),
    get("/actors/words/\xff"),
    get("//actors/words/ada"),
    get("/Actors/words/ada"),
    get("/actorsx/words/ada"),
    get("http://localhost/actors/words/ada"),
    get(KEY, "Expect: 100-continue"),
    get(KEY, "Expect: other"),
    get(KEY, "Connection: Upgrade", "Upgrade: websocket"),
    get(KEY, method="DELETE"),
    get(KEY, method="POST") + b"",
    get(KEY, "Connection: close"),
    get(KEY, version="1.0"),
    get(KEY, "Connection: keep-alive", version="1.0"),
    get("/nowhere"),
    b"nonsense\r\n\r\n",
    b"GET /actors/words/ada HTTP/1.1\r\nHost: localhost:1\r\nHost: example.org\r\n\r\n",
]


async def test_an_answer_is_the_one_that_aiohttp_would_give(there: Served) -> None:
    async with served(is_quick=False) as plain:
        assert type(plain.server._runner.server) is web.Server
        for is_quick, requests in ((True, QUICK), (False, REFUSED), (False, ORDINARY)):
            for request in requests:
                before = there.quick
                answers = [await _asked_often(one, request) for one in (there, plain)]
                assert answers[0] == answers[1], request[:200]
                # The first of a connection is aiohttp's.
                assert there.quick - before == (2 if is_quick else 0), request[:200]


async def _asked_often(one: Served, request: bytes) -> list[Any]:
    """Give what comes of a request that is sent three times over one connection."""
    answers: list[Any] = []
    connection = await one.connect()
    try:
        for _ in range(3):
            connection.send(request)
            answers.append(await connection.answer())
    except (asyncio.IncompleteReadError, ConnectionError):
        answers.append("closed")
    await connection.close()
    return answers


async def test_all_keys_over_one_connection(there: Served) -> None:
    connection = await there.connect()
    for key in KEYS:
        # A key that is too long for a line ends the connection.
        if len(key) > 1_000 or not is_here(key):
            continue
        connection.send(get("/actors/words/" + "".join(f"%{octet:02X}" for octet in key.encode())))
        status, _, body = await connection.answer()
        assert status == 200
        assert key == "_count" or msgspec.json.decode(body)["value"] == key[:9]
    await connection.close()


async def test_what_was_learned_of_one_request_holds_for_no_other_headers(there: Served) -> None:
    """On one connection, in turn: each is answered as on a connection of its own."""
    several = [
        get(KEY, "X-Forwarded-For: 10.0.0.1"),
        get(KEY, "Accept: */*"),
        b"POST /actors/words/_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 16\r\n\r\n{"keys":["ada"]}',
        get("/actors/words?prefix=k1"),
        get(KEY, "Authorization: Bearer wrong"),
    ]
    connection = await there.connect()
    for request in several:
        alone = await there.connect()
        alone.send(request)
        expected = await alone.answer()
        await alone.close()
        for asked, wanted in ((QUICK[0], None), (QUICK[0], None), (request, expected), (request, expected)):
            connection.send(asked)
            got = await connection.answer()
            assert got[0] == 200 if wanted is None else got == wanted
    # The same headers were known already where another route had been asked with them.
    assert there.quick == len(several) + 2
    await connection.close()


@pytest.mark.parametrize(
    "first",
    [
        b"POST /actors/words/_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90",
        b"GET /actors/words/ada HTTP/1.1\r\nX-Header: ",
        b"GET /nowhere",
        QUICK[1] + b"GET /nowhere",
    ],
)
async def test_a_piece_of_a_request_may_look_like_a_question(there: Served, first: bytes) -> None:
    """What stands behind the beginning of another request belongs to that one."""
    answers = []
    for is_known in (False, True):
        connection = await there.connect()
        if is_known:
            for _ in range(2):
                connection.send(QUICK[0])
                assert (await connection.answer())[0] == 200
        quick = there.quick
        connection.send(first)
        await until(lambda: any(one._taken for one in there.server._runner.server.connections))
        connection.send(QUICK[0])
        got = []
        try:
            async with asyncio.timeout(0.3):
                got.append(await connection.answer())
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            got.append(None)
        answers.append(got)
        assert there.quick == quick
        await connection.close()
        await until(lambda: not there.server._runner.server.connections)
    assert answers[0] == answers[1]


async def test_requests_that_come_together_are_answered_in_order(there: Served) -> None:
    connection = await there.connect()
    asked = [QUICK[0], QUICK[2], ORDINARY[0], QUICK[1], get("/nowhere"), QUICK[0], ORDINARY[9], QUICK[1]]
    connection.send(*asked)
    together = [await connection.answer() for _ in asked]
    apart = []
    for request in asked:
        connection.send(request)
        apart.append(await connection.answer())
    assert together == apart
    await connection.close()


async def test_a_client_that_doesnt_read_is_waited_for(there: Served) -> None:
    connection = await there.connect()
    connection.send(QUICK[0])
    await connection.answer()
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    (protocol,) = await until(lambda: there.server._runner.server.connections)
    big = get("/actors/words/" + next(f"big{n}" for n in range(8) if is_here(f"big{n}")))
    sent = 0
    while not protocol.writing_paused:
        connection.send(big)
        sent += 1
        await until(lambda expected=sent: there.quick == expected or protocol.writing_paused)
    quickly = there.quick
    assert quickly > 1
    connection.send(big)
    await until(lambda: protocol._request_in_progress)
    assert there.quick == quickly
    connection.send(QUICK[0])
    connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(sent + 1):
        status, _, body = await connection.answer()
        assert status == 200
        assert len(body) > 50_000
    assert b'"key":"ada"' in (await connection.answer())[2]
    await connection.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_it_waits_for_the_commit_that_is_under_way(there: Served, is_known: bool) -> None:
    connection, other = await there.connect(is_known=is_known), await there.connect(is_known=is_known)
    there.commits(State.COMMITTING)
    connection.send(QUICK[0])
    await until(lambda: there.waiting)
    # What comes behind it waits too, also when it needs no commit's end.
    connection.send(get("/nowhere"), QUICK[0], ORDINARY[0])
    other.send(get("/nowhere"))
    await other.answer()
    assert there.quick == 0
    assert there.server._runner.server.quick.meters().in_flight == 1
    there.store.apply([(b"ada", encode_stamp(1, 1) + b"new")], POSITION)
    there.commits(State.RUNNING)
    answers = [await connection.answer() for _ in range(4)]
    assert there.quick == is_known
    assert [status for status, _, _ in answers] == [200, 404, 200, 503]
    assert b'"value":"new"' in answers[0][2]
    assert answers[0] == answers[2]
    await connection.close()
    await other.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_commit_that_takes_too_long_is_a_503(
    there: Served, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr("actors.runtime.queries.WAIT_S", 0.05)
    connection = await there.connect(is_known=is_known)
    there.commits(State.COMMITTING)
    connection.send(QUICK[0])
    status, headers, body = await connection.answer()
    assert status == 503
    assert "Retry-After: 1" in headers
    assert b"a commit takes longer" in body
    there.commits(State.RUNNING)
    connection.send(QUICK[0])
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_while_questions_wait_others_wait_for_their_round_only(there: Served) -> None:
    first, second, other = [await there.connect(is_known=True) for _ in range(3)]
    rounds = there.server._runner.server.quick.rounds
    busy = there.tasks[TopicPartition("in", partition_for(b"ada", PARTITIONS))]
    busy._ownership.state = State.COMMITTING
    first.send(QUICK[0])
    await until(lambda: rounds.are_on(asyncio.get_running_loop().time()))
    free = next(key for key in KEYS if is_here(key) and key.isalnum() and key.isascii() and not _shares(key, "ada"))
    second.send(get(f"/actors/words/{free}"))
    other.send(get("/actors/words/ada?x=1"))
    assert (await second.answer())[0] == 200
    # What aiohttp has to look at is handed to it then.
    assert (await other.answer())[0] == 400
    assert len(rounds) == 1
    busy._ownership.state = State.RUNNING
    assert (await first.answer())[0] == 200
    assert not len(rounds)
    assert not rounds.are_on(asyncio.get_running_loop().time() + BUSY_S)
    assert there.server.web_app[GUARD]._in_flight == 0
    for connection in (first, second, other):
        await connection.close()


def _shares(key: str, other: str) -> bool:
    return partition_for(key.encode(), PARTITIONS) == partition_for(other.encode(), PARTITIONS)


async def test_what_cant_be_written_ends_its_connection_and_no_other(
    there: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    broken, whole = [await there.connect(is_known=True) for _ in range(2)]
    there.commits(State.COMMITTING)
    broken.send(QUICK[0])
    await until(lambda: there.waiting == 1)
    (protocol,) = [one for one in there.server._runner.server.connections if one._held is not None]

    def fails(*_: Any) -> None:
        raise RuntimeError("defect")

    write = quick.QuickProtocol._write
    monkeypatch.setattr(
        quick.QuickProtocol, "_write", lambda one, *answer: fails() if one is protocol else write(one, *answer)
    )
    whole.send(QUICK[0])
    await until(lambda: there.waiting == 2)
    there.commits(State.RUNNING)
    assert (await whole.answer())[0] == 200
    assert await broken.reader.read() == b""
    assert "defect" in caplog.text
    assert there.server.web_app[GUARD]._in_flight == 0
    assert not there.waiting
    for connection in (broken, whole):
        await connection.close()


async def test_each_waits_as_long_as_it_may(there: Served) -> None:
    ownership = next(iter(there.tasks.values()))._ownership
    ownership.state = State.COMMITTING
    began_s = time.monotonic()
    waits = [ownership.commit_end(timeout_s) for timeout_s in (0.2, 0.05, 60.0, 0.1)]
    ends = {}
    for number in (1, 3, 0):
        with pytest.raises(TimeoutError):
            await waits[number]
        ends[number] = time.monotonic() - began_s
    assert 0.05 <= ends[1] <= ends[3]
    assert 0.1 <= ends[3] <= ends[0]
    assert ends[0] >= 0.2
    assert not waits[2].done()
    there.commits(State.RUNNING)
    await waits[2]
    assert not ownership._commit_waits


async def test_a_commit_may_end_in_the_turn_in_which_the_wait_is_over(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.runtime.queries.WAIT_S", 0.02)
    there.commits(State.COMMITTING)
    reader = there.queries.router.reader
    asked = asyncio.create_task(reader.hold(there.spec, (0,)))
    await until(lambda: there.waiting)
    asyncio.get_running_loop().call_later(0.03, there.commits, State.RUNNING)
    # A handler holds the loop until both are due.
    time.sleep(0.05)  # noqa: ASYNC251
    with pytest.raises(NotReadyError, match="a commit takes longer"):
        await asked


async def test_exact_counts_dont_pile_up(there: Served) -> None:
    there.commits(State.COMMITTING)
    reader = there.queries.router.reader
    counts = [asyncio.create_task(reader.count(there.spec, "words", (0,), Bounds())) for _ in range(MAX_COUNTS)]
    await until(lambda: there.waiting)
    connection = await there.connect()
    count = get("/actors/words/_count?exact=true&partition=0")
    connection.send(count)
    status, headers, body = await connection.answer()
    assert status == 503
    assert "Retry-After: 1" in headers
    assert b"exact counts" in body
    there.commits(State.RUNNING)
    assert await asyncio.gather(*counts) == [len(KEYS) + 8] * MAX_COUNTS
    connection.send(count)
    assert (await connection.answer())[0] == 200
    await connection.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_who_hangs_up_or_waits_too_much_leaves_nothing_behind(there: Served, is_known: bool) -> None:
    connections = [await there.connect(is_known=is_known) for _ in range(257)]
    there.commits(State.COMMITTING)
    for connection in connections:
        connection.send(QUICK[0])
    (refused,) = [done.result() for done in (await _first([one.answer() for one in connections]))]
    assert refused[0] == 503
    assert b"busy" in refused[2]
    for connection in connections:
        await connection.close()
    await until(lambda: not there.server._runner.server.connections)
    # Handlers that aiohttp runs wait on.
    assert not is_known or there.server.web_app[GUARD]._in_flight == 0
    there.commits(State.RUNNING)
    again = [await there.connect(is_known=is_known) for _ in range(256)]
    there.commits(State.COMMITTING)
    for connection in again:
        connection.send(QUICK[0])
    await until(lambda: there.waiting == 256)
    there.commits(State.RUNNING)
    assert [(await one.answer())[0] for one in again] == [200] * 256
    for connection in again:
        await connection.close()
    assert there.server._runner.server.quick.meters().in_flight == 0
    assert there.server.web_app[GUARD]._in_flight == 0


async def _first(answers: list[Any]) -> set[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(answer) for answer in answers]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return done


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_server_that_stops_answers_who_waits(is_known: bool) -> None:
    async with served() as there:
        connection, idle = await there.connect(is_known=is_known), await there.connect(is_known=is_known)
        idle.send(QUICK[0])
        await idle.answer()
        there.commits(State.COMMITTING)
        connection.send(QUICK[0])
        await until(lambda: there.waiting)
        stopping = asyncio.create_task(there.server.stop_server())
        await asyncio.sleep(0.01)
        there.commits(State.RUNNING)
        assert (await connection.answer())[0] == 200
        async with asyncio.timeout(10):
            await stopping
            assert await connection.reader.read() == b""
            assert await idle.reader.read() == b""
        for one in (connection, idle):
            await one.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_another_workers_partition_is_asked_for_in_a_task(there: Served, is_known: bool) -> None:
    key = next(key for key in KEYS if not is_here(key) and key.isalnum())
    connection = await there.connect(is_known=is_known)
    for headers, status, word in (((), 503, b"no worker has taken it over yet"), (("Actors-Hop: 1",), 421, b"aren't")):
        connection.send(get(f"/actors/words/{key}", *headers), QUICK[0])
        answer = await connection.answer()
        assert answer[0] == status
        assert word in answer[2]
        assert (await connection.answer())[0] == 200
    await connection.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_without_a_lease_there_is_no_answer(there: Served, is_known: bool) -> None:
    connection = await there.connect(is_known=is_known)
    there.is_member, there.lease._asked_s = False, 0.0
    connection.send(QUICK[0])
    status, _, body = await connection.answer()
    assert status == 503
    assert b"doesn't know this worker" in body
    there.is_member = True
    connection.send(QUICK[0])
    assert (await connection.answer())[0] == 200
    await connection.close()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_defect_is_a_500(there: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any, is_known: bool) -> None:
    connection = await there.connect(is_known=is_known)
    connection.send(QUICK[0])
    await connection.answer()

    def fails(*_: Any) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(there.store, "get", fails)
    connection.send(QUICK[0], get("/nowhere"))
    assert (await connection.answer())[0] == 500
    assert (await connection.answer())[0] == 404
    assert "defect" in caplog.text
    await connection.close()


async def test_what_runs_around_all_of_the_users_requests_runs_around_these() -> None:
    seen = []

    @web.middleware
    async def watch(request: web.Request, handler: Any) -> Any:
        seen.append(request.path)
        return await handler(request)

    async with served(prepare=lambda app: app.middlewares.append(watch)) as there:
        connection = await there.connect()
        connection.send(QUICK[0])
        assert (await connection.answer())[0] == 200
        await connection.close()
    assert seen == [KEY]


@pytest.mark.parametrize("used", ["_USED", "_USED_OF_SERVER"])
async def test_an_unknown_aiohttp_answers_in_its_own_way(monkeypatch: pytest.MonkeyPatch, used: str) -> None:
    monkeypatch.setattr(quick, used, {"_something_else"})
    async with served() as there:
        assert type(there.server._runner.server) is web.Server
        answer_quickly(there.server)
        connection = await there.connect()
        connection.send(QUICK[0])
        assert (await connection.answer())[0] == 200
        await connection.close()
