"""Questions for a key over HTTP: odd keys and targets, order, commits under way, and what a client leaves behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from actors._core.partitioner import partition_for
from actors._core.task.lifecycle import State
from actors.errors import NotReadyError
from actors.runtime.queries.queries import MAX_COUNTS, Bounds
from actors.web.access.guard import GUARD
from actors.web.access.limits import MAX_CLIENT_BYTES, REQUEST_BYTES
from actors.web.access.tls import Hops
from stores._core.record import encode_metadata
from tests.unit.web.query_server import KEY, KEYS, PARTITIONS, POSITION, Connection, Served, get, is_here, served, until

QUESTION, ABSENT = get(KEY), get("/actors/words/nobody")


@pytest.fixture
async def there() -> AsyncIterator[Served]:
    async with served() as found:
        yield found


ANSWERS = [
    (QUESTION, 200),
    (get("/actors/words/a%2Fb"), 200),
    (get("/actors/words/key%201"), 200),
    (get("/actors/words/%D0%BA%D0%BB%D1%8E%D1%87"), 200),
    (get("/actors/words/%25"), 200),
    (get("/actors/words/%"), 200),
    (get("/actors/words/%zz"), 404),
    (get("/actors/words/-"), 200),
    (get("/actors/words/;a=b"), 404),
    (get("/actors/words/ada?"), 200),
    (get("/actors/words/ada?raw=true"), 200),
    (get("/actors/words/%22ada%22?encoding=json"), 200),
    (get("/actors/words/YWRh?encoding=base64"), 200),
    (get(f"/actors/words/ada?partition={partition_for(b'ada', PARTITIONS)}"), 200),
    (get("/actors/words/ada?read=standby"), 200),
    (get("/actors/words/_x"), 503),
    (get(KEY, "Actors-Hop: 1"), 200),
    (get(KEY, "Content-Length: 0"), 200),
    (get(KEY, "Accept-Encoding: gzip", "Cookie: a=b", "If-None-Match: *"), 200),
    (ABSENT, 404),
    (get("/actors/words/!?encoding=base64"), 400),
    (get("/actors/words/ada?encoding=rot13"), 400),
    (get("/actors/words/ada?partition=9"), 400),
    (get("/actors/words/ada?raw=true&raw=true"), 400),
    (get("/actors/words/ada?x=1"), 400),
    (get("/actors/nowhere/ada"), 404),
    (get(KEY, "Authorization: Bearer wrong"), 401),
    (get(KEY, "X-Forwarded-For: 10.0.0.1"), 403),
    (b"GET /actors/words/ada HTTP/1.1\r\nHost: example.org\r\n\r\n", 403),
    (get("/actors/words/_many"), 200),
    (get("/actors/w%6Frds/ada"), 200),
    (get("/actors/words/ada/"), 400),
    (get(KEY, method="DELETE"), 405),
    (get("/nowhere"), 404),
]


async def test_requests_over_one_connection_are_answered_each_as_alone(there: Served) -> None:
    together = await there.connect()
    for request, status in ANSWERS:
        alone = await there.connect()
        alone.send(request)
        expected = await alone.answer()
        assert expected[0] == status, (request, expected)
        together.send(request)
        assert await together.answer() == expected
        await alone.close()
    await together.close()


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


async def test_keys_with_the_names_of_routes_are_keys(there: Served) -> None:
    connection = await there.connect()
    for key in ("_count", "_many"):
        connection.send(get(f"/actors/words/%22{key}%22?encoding=json"))
        status, _, body = await connection.answer()
        answer = msgspec.json.decode(body)
        assert answer["value"] == key if is_here(key) else ("count" not in answer and status != 404)
    connection.send(get("/actors/words/_many"))
    status, _, body = await connection.answer()
    assert (status, msgspec.json.decode(body)["value"]) == (200, "_many")
    await connection.close()


async def test_requests_that_come_together_are_answered_in_order(there: Served) -> None:
    connection = await there.connect()
    asked = [QUESTION, ABSENT, get("/actors/words/_count?partition=0"), get("/nowhere"), QUESTION, get("/actors/words")]
    connection.send(*asked)
    together = [await connection.answer() for _ in asked]
    apart = []
    for request in asked:
        connection.send(request)
        apart.append(await connection.answer())
    assert together == apart
    await connection.close()


async def test_it_waits_for_the_commit_that_is_under_way(there: Served) -> None:
    connection, other = await there.connect(), await there.connect()
    there.commits(State.COMMITTING)
    connection.send(QUESTION)
    await until(lambda: there.waiting)
    # What comes behind it waits too, also when it needs no commit's end.
    connection.send(get("/nowhere"), QUESTION)
    other.send(get("/nowhere"))
    await other.answer()
    there.store.apply([(b"ada", encode_metadata(1, 1) + b"new")], POSITION)
    there.commits(State.RUNNING)
    answers = [await connection.answer() for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 404, 200]
    assert b'"value":"new"' in answers[0][2]
    assert answers[0] == answers[2]
    await connection.close()
    await other.close()


async def test_a_commit_that_takes_too_long_is_a_503(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.runtime.queries.queries.WAIT_S", 0.05)
    connection = await there.connect()
    there.commits(State.COMMITTING)
    connection.send(QUESTION)
    status, headers, body = await connection.answer()
    assert status == 503
    assert "Retry-After: 1" in headers
    assert b"a commit takes longer" in body
    there.commits(State.RUNNING)
    connection.send(QUESTION)
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_lease_is_renewed_also_while_one_commit_follows_the_other(there: Served) -> None:
    connection = await there.connect()
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


async def test_each_waits_as_long_as_it_may(there: Served) -> None:
    ownership = next(iter(there.tasks.values())).context
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
    monkeypatch.setattr("actors.runtime.queries.queries.WAIT_S", 0.02)
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
    assert b"counts or digests" in body
    there.commits(State.RUNNING)
    assert await asyncio.gather(*counts) == [len(KEYS) + 8] * MAX_COUNTS
    connection.send(count)
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_client_has_its_share_of_the_room_and_leaves_nothing_behind(there: Served) -> None:
    share, room = MAX_CLIENT_BYTES // REQUEST_BYTES, there.server.web_app[GUARD].room
    connections = [await there.connect() for _ in range(share + 1)]
    there.commits(State.COMMITTING)
    for connection in connections:
        connection.send(QUESTION)
    (refused,) = [done.result() for done in (await _first([one.answer() for one in connections]))]
    assert refused[0] == 503
    assert b"requests of address 127.0.0.1 hold 67108864 bytes, their share" in refused[2]
    for connection in connections:
        await connection.close()
    there.commits(State.RUNNING)
    await until(lambda: not room.held_bytes)
    again = [await there.connect() for _ in range(share)]
    there.commits(State.COMMITTING)
    for connection in again:
        connection.send(QUESTION)
    await until(lambda: there.waiting == share)
    there.commits(State.RUNNING)
    assert [(await one.answer())[0] for one in again] == [200] * share
    for connection in again:
        await connection.close()
    await until(lambda: not there.app.actor_service.meters.queries.in_flight)


async def _first(answers: list[Any]) -> set[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(answer) for answer in answers]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return done


async def test_a_server_that_stops_answers_who_waits() -> None:
    async with served() as there:
        connection, idle = await there.connect(), await there.connect()
        idle.send(QUESTION)
        await idle.answer()
        there.commits(State.COMMITTING)
        connection.send(QUESTION)
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


async def test_another_workers_partition_is_asked_for_over_there(there: Served) -> None:
    key = next(key for key in KEYS if not is_here(key) and key.isalnum())
    connection = await there.connect()
    for headers, status, word in (((), 503, b"no worker has taken it over yet"), (("Actors-Hop: 1",), 421, b"aren't")):
        connection.send(get(f"/actors/words/{key}", *headers), QUESTION)
        answer = await connection.answer()
        assert answer[0] == status
        assert word in answer[2]
        assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_worker_of_another_app_that_was_at_this_address_gets_no_answer(there: Served) -> None:
    connection = await there.connect()
    for app, status in (("quick", 200), ("slow", 421)):
        hops = Hops(app=app).headers("GET", "http://localhost:80", KEY)
        connection.send(get(KEY, *(f"{name}: {value}" for name, value in hops.items())))
        assert (await connection.answer())[0] == status
    assert Hops.of(there.app).app == "quick"
    await connection.close()


async def test_without_a_lease_there_is_no_answer(there: Served) -> None:
    connection = await there.connect()
    there.is_member, there.lease._asked_s = False, 0.0
    connection.send(QUESTION)
    status, _, body = await connection.answer()
    assert status == 503
    assert b"this worker is unknown" in body
    there.is_member = True
    connection.send(QUESTION)
    assert (await connection.answer())[0] == 200
    await connection.close()


async def test_a_defect_is_a_500(there: Served, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    connection = await there.connect()
    connection.send(QUESTION)
    await connection.answer()

    def fails(*_: Any) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(there.store, "get", fails)
    connection.send(QUESTION, get("/nowhere"))
    assert (await connection.answer())[0] == 500
    assert (await connection.answer())[0] == 404
    assert "defect" in caplog.text
    await connection.close()


LENGTH = len(QUESTION)


@pytest.mark.parametrize(
    "pieces",
    [
        [QUESTION[:9], QUESTION[9:-1], QUESTION[-1:]],
        [b"\r\n", QUESTION],
        # The body of a question is no request, in one piece with its head or behind it.
        [get(KEY, f"Content-Length: {LENGTH}") + get("/nowhere")[:LENGTH].ljust(LENGTH)],
        [get(KEY, f"Content-Length: {LENGTH}"), QUESTION],
        [get(KEY, "Transfer-Encoding: chunked"), b"2\r\nab\r\n", b"0\r\n\r\n"],
    ],
)
async def test_a_request_that_comes_in_pieces_is_one_request(there: Served, pieces: list[bytes]) -> None:
    connection = await there.connect()
    for _ in range(2):
        for piece in pieces:
            connection.send(piece)
            await asyncio.sleep(0)
        status, _, body = await connection.answer()
        assert status == 200
        assert b'"key":"ada"' in body
    connection.send(ABSENT)
    assert (await connection.answer())[0] == 404
    await connection.close()


async def questions_behind(connection: Connection, count: int) -> list[int]:
    return [(await connection.answer())[0] for _ in range(count)]


async def test_many_requests_in_one_piece_are_answered_in_order(there: Served) -> None:
    connection = await there.connect()
    connection.send((QUESTION + ABSENT) * 500)
    assert await questions_behind(connection, 1000) == [200, 404] * 500
    await connection.close()
