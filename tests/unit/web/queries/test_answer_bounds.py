"""What a question may make the worker hold, and for how long it keeps the event loop."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from actors import http_client as _http
from actors.client import StateClient, StateUnavailableError
from actors.ports import OwnerRecord
from actors.runtime.queries import pace as pace_module
from actors.runtime.queries.pace import Pace
from actors.runtime.queries.queries import Bounds, Held, _counts, read_part
from actors.testing.fakes.ports import FakeClock
from actors.web.access import guard, limits
from actors.web.access.guard import GUARD
from actors.web.access.limits import MAX_ANSWER_BYTES
from actors.web.dashboard import group as group_module
from actors.web.dashboard.group import Room, Seen, ask_worker
from actors.web.queries.routing import ANSWER_BYTES, PARTITIONS
from stores._core.record import encode_metadata
from stores.memory import MemoryStore
from tests.unit.web.query_server import ELSEWHERE, POSITION, Served, get, is_here, served, until

VALUE_BYTES = 900_000
LARGE = [key for key in (f"large{number:02}" for number in range(60)) if is_here(key)][:12]
THERE = next(key for key in (f"there{number}" for number in range(60)) if not is_here(key))
JSON = {"Content-Type": "application/json"}


def fill(there: Served, keys: list[str] = LARGE, size: int = VALUE_BYTES) -> None:
    there.store.apply([(key.encode(), encode_metadata(1, 1) + b"x" * size) for key in keys], POSITION)


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[Served, Any]]:
    async with served(**options) as there, aiohttp.ClientSession() as session:
        fill(there)
        base = f"http://127.0.0.1:{there.app.conf.web_port}"

        async def ask(path: str, body: Any = None, **headers: str) -> tuple[int, Any, int]:
            method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
            given = {**(JSON if data else {}), **{name.replace("_", "-"): value for name, value in headers.items()}}
            async with session.request(method, base + path, data=data, headers=given) as reply:
                raw = await reply.read()
                return reply.status, json.loads(raw), len(raw)

        yield there, ask


# --- the bytes of an answer ------------------------------------------------------------------------------------------


async def test_equal_keys_are_looked_up_once_and_the_answer_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    get = MemoryStore.get
    monkeypatch.setattr(MemoryStore, "get", lambda store, key: looked.append(key) or get(store, key))
    async with asking() as (_, ask):
        status, said, size = await ask("/actors/words/_many", {"keys": [LARGE[0]] * 1000})
        assert status == 200
        assert size < MAX_ANSWER_BYTES + VALUE_BYTES
        assert looked == [LARGE[0].encode()]
        assert [result["key"] for result in said["results"]] == [LARGE[0]] * said["next"]
        assert {len(result["value"]) for result in said["results"]} == {VALUE_BYTES}


async def test_an_answer_for_many_keys_that_ends_early_says_where_and_the_rest_can_be_asked_for() -> None:
    async with asking() as (_, ask):
        keys, found = [*LARGE, "nobody", LARGE[3], "ada"], []
        left = keys
        while left:
            status, said, size = await ask("/actors/words/_many", {"keys": left})
            assert (status, size < MAX_ANSWER_BYTES + VALUE_BYTES) == (200, True)
            assert said["next"] in (None, len(said["results"]))
            assert said["results"], "each answer has one key at least"
            found += [(result["key"], result["found"]) for result in said["results"]]
            left = left[len(said["results"]) :]
        assert found == [(key, key != "nobody") for key in keys]


async def test_a_page_ends_early_with_a_cursor_and_no_row_is_lost() -> None:
    async with asking() as (_, ask):
        found, cursor, pages = [], "", 0
        while True:
            status, said, size = await ask(f"/actors/words?prefix=large&limit=1000&partition=0{cursor}")
            assert (status, size < MAX_ANSWER_BYTES + VALUE_BYTES) == (200, True)
            found += [item["key"] for item in said["items"]]
            pages += 1
            if said["next"] is None:
                break
            cursor = f"&cursor={said['next']}"
    assert (found, pages) == (sorted(LARGE), 3)


async def test_a_value_that_is_larger_than_an_answer_comes_alone() -> None:
    async with asking() as (there, ask):
        fill(there, ["huge0", "huge1"], MAX_ANSWER_BYTES + 1)
        status, said, _ = await ask("/actors/words?prefix=huge&partition=0")
        assert (status, len(said["items"]), said["next"] is None) == (200, 1, False)


async def test_json_that_is_longer_than_the_stored_bytes_counts() -> None:
    async with asking() as (there, ask):
        values = [(f"escaped{number}".encode(), encode_metadata(1, 1) + b"\x01" * 600_000) for number in range(4)]
        there.store.apply(values, POSITION)
        _, said, size = await ask("/actors/words?prefix=escaped&partition=0")
        assert size < MAX_ANSWER_BYTES + 4_000_000
        assert 0 < len(said["items"]) < 4
        assert said["next"] is not None


def test_a_page_looks_at_so_many_bytes_of_expired_values() -> None:
    store = MemoryStore()
    store.apply([(f"k{n:03}".encode(), encode_metadata(1, 1, 5) + b"x" * VALUE_BYTES) for n in range(30)], POSITION)
    part = read_part([Held(0, store, POSITION, now_ms=9)], Bounds(), None, 100)
    assert (list(part.rows), part.through) == ([], (b"k018", 0))


async def test_a_worker_that_asks_for_its_share_gets_no_more() -> None:
    async with asking() as (_, ask):
        hop = {"Actors_Hop": "1", PARTITIONS: "0,1,2"}
        _, said, size = await ask("/actors/words?prefix=large&limit=1000", **hop, **{ANSWER_BYTES: "1000000"})
        assert (len(said["items"]), size < 2_000_000, said["next"] is None) == (1, True, False)
        body = {"keys": LARGE, "partition": 0}
        _, said, _ = await ask("/actors/words/_many", body, **hop, **{ANSWER_BYTES: "1000000"})
        assert said["next"] == len(said["results"]) == 1


# --- what all requests hold together ---------------------------------------------------------------------------------


async def test_answers_that_nobody_reads_are_counted_until_their_clients_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than what the buffers of a connection take.
    size = 16_000_000
    path = "/actors/words/huge?partition=0"
    async with asking() as (there, ask):
        fill(there, ["huge"], size)
        held = there.server.web_app[GUARD].room
        deaf: list[Any] = []

        async def ask_and_not_read() -> None:
            connection = await there.connect()
            connection.writer.transport.pause_reading()
            connection.send(get(path))
            deaf.append(connection)

        for number in range(1, 4):
            await ask_and_not_read()
            await until(lambda number=number: size * number <= held.held_bytes < size * number + 1_000_000)
        status, said, _ = await ask(path)
        assert (status, said["type"].rpartition(":")[2], said["retry_after_ms"]) == (503, "busy", 1000)
        # Small questions go on.
        assert (await ask("/actors/words/ada"))[0] == 200
        for connection in deaf:
            connection.writer.transport.abort()
        await until(lambda: held.held_bytes == 0)
        monkeypatch.setattr(guard, "MAX_SEND_S", 0.1)
        await ask_and_not_read()
        await until(lambda: held.held_bytes >= size)
        await until(lambda: held.held_bytes == 0)
        for connection in deaf:
            connection.writer.transport.abort()
            await connection.close()


async def test_one_caller_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    room = limits.Room()
    with room.enter("a") as first, room.enter("a") as second, room.enter("b") as third:
        base_bytes = room.held_bytes
        first.take(limits.REQUEST_BYTES)
        assert room.held_bytes == base_bytes, "what each request counts as"
        first.take(limits.MAX_CLIENT_BYTES - 3 * limits.REQUEST_BYTES)
        with pytest.raises(limits.Problem, match="ask again later") as busy:
            second.take(4 * limits.REQUEST_BYTES)
        assert busy.value.status == 503
        third.take(limits.MAX_CLIENT_BYTES // 2)
        with pytest.raises(limits.Problem, match="ask for less") as large:
            third.take(limits.MAX_CLIENT_BYTES)
        assert large.value.status == 500
    assert room.held_bytes == 0


async def test_a_body_counts_as_what_it_becomes_when_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENT_BYTES", 10_000_000)
    async with asking() as (there, ask):

        @there.app.query(next(iter(there.app.actors.values())).declared)
        def look(ctx: Any, what: Any = None) -> int:
            return 1

        there.queries.actor = lambda _: there.spec
        assert (await ask("/actors/talk/_ask/look/ada", {"what": 1}))[0] == 200
        status, said, _ = await ask("/actors/talk/_ask/look/ada", {"what": [[]] * 200_000})
        assert (status, said["type"].rpartition(":")[2]) == (500, "large-answer")
        # Keys are decoded one by one.
        status, said, _ = await ask("/actors/words/_many", {"keys": [[[]] * 200_000]})
        assert (status, said["type"].rpartition(":")[2]) == (400, "bad-key")


# --- the event loop --------------------------------------------------------------------------------------------------


class StepClock(FakeClock):
    """Each look at it takes half a millisecond."""

    now_s = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        self.now_s += 0.0005
        return self.now_s

    async def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.now_s += seconds
        await asyncio.sleep(0)


async def test_long_work_runs_in_slices_and_others_get_their_turns() -> None:
    pace = Pace(StepClock())
    seen: list[str] = []

    async def other() -> None:
        while True:
            seen.append("other")
            await asyncio.sleep(0)

    def steps(name: str) -> Any:
        for _ in range(40):
            seen.append(name)
            yield name

    others = asyncio.create_task(other())
    assert await asyncio.gather(pace.run(steps("a")), pace.run(steps("b"))) == [["a"] * 40, ["b"] * 40]
    others.cancel()
    slices = "".join("." if name == "other" else "x" for name in seen).split(".")
    assert max(map(len, slices)) <= 11


async def test_a_busy_loop_gives_long_work_its_share_and_an_idle_one_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"busy": iter(range(100_000)), "idle": iter([0] * 100_000)}
    took: dict[str, float] = {}
    for how, times in used.items():
        monkeypatch.setattr(pace_module.time, "thread_time", lambda times=times: next(times))
        clock = StepClock()
        pace = Pace(clock)
        await pace.run(range(200))
        took[how] = clock.now_s
    assert took["busy"] > 2.2 * took["idle"]


async def test_a_turn_that_fails_is_given_back() -> None:
    pace = Pace(FakeClock())

    def fails() -> Any:
        yield 1
        raise ValueError("as it was told")

    with pytest.raises(ValueError, match="as it was told"):
        await pace.run(fails())
    assert await pace.run([1]) == [1]


async def test_an_exact_count_yields_by_bytes_too() -> None:
    rows = [(b"k", encode_metadata(1, 1) + b"x" * VALUE_BYTES)] * 10
    assert list(_counts(0, iter(rows))) == [2, 2, 2, 2, 2, 0]


# --- answers of other workers ----------------------------------------------------------------------------------------

BOMB = zlib.compress(b'{"count": 1, "pad": "' + b" " * 20_000_000 + b'"}', wbits=31)


class Stranger:
    """A worker that answers what it is told to."""

    def __init__(self) -> None:
        self.body, self.headers, self.status = b"{}", dict[str, str](), 200
        self.asked: list[web.Request] = []
        self.written = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        if self.body:
            return web.Response(body=self.body, headers=self.headers, status=self.status)
        reply = web.StreamResponse(headers=self.headers)
        await reply.prepare(request)
        try:
            while True:
                await reply.write(b" " * 65_536)
                self.written += 65_536
        except ConnectionError:
            return reply


@asynccontextmanager
async def stranger() -> AsyncIterator[tuple[Stranger, str]]:
    found, app = Stranger(), web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield found, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


UNUSABLE: list[tuple[bytes, dict[str, str]]] = [
    (BOMB, {"Content-Encoding": "gzip"}),
    (b"{}", {"Content-Encoding": "br"}),
    (b"", {}),
]
MALFORMED: list[bytes] = [
    b"[" * 100_000,
    b'{"count": "\xff"}',
    b'{"items": [{}], "results": [{}], "positions": {}, "count": "x"}',
    b'{"items": [{"key":1,"value":1,"partition":0,"expires_at_ms":null,"at":"@"}], "positions": {}}',
]
PATHS: list[tuple[str, Any]] = [
    (f"/actors/words?partition={ELSEWHERE}", None),
    (f"/actors/words/_count?exact=true&partition={ELSEWHERE}", None),
    ("/actors/words/_many", {"keys": [THERE]}),
]


@asynccontextmanager
async def beside(stranger_: Stranger, address: str) -> AsyncIterator[tuple[Served, Any]]:
    """Serve, and let the registry say that the stranger owns a partition."""

    async def owners() -> list[OwnerRecord]:
        return [OwnerRecord("talk", ELSEWHERE, 1, "other", address, 0)]

    async with asking() as (there, ask):
        there.queries.router.directory._read = owners
        yield there, ask


@pytest.mark.parametrize("number", range(len(UNUSABLE)))
async def test_answers_of_another_worker_are_read_to_a_limit_and_never_unpacked(number: int) -> None:
    async with stranger() as (other, address), beside(other, address) as (there, ask):
        other.body, other.headers = UNUSABLE[number]
        for path, question in [(f"/actors/words/{THERE}", None), PATHS[0], PATHS[2]]:
            status, said, _ = await ask(path, question)
            assert (status, said["type"].rpartition(":")[2]) == (503, "not-ready"), (path, said)
        assert other.written < 8 * _http.MAX_ANSWER_BYTES
        who = Seen("other", address)
        await ask_worker(there.queries.workers, who, Room())
        assert "Content-Encoding" in who.trouble or "more than" in who.trouble
        async with StateClient([address], timeout=timedelta(seconds=2)) as client:
            with pytest.raises(StateUnavailableError):
                await client.count("words")
        assert {request.headers["Accept-Encoding"] for request in other.asked} == {"identity"}


async def test_answers_of_another_worker_that_are_none_are_refused() -> None:
    async with stranger() as (other, address), beside(other, address) as (_, ask):
        for body in MALFORMED:
            other.body = body
            for path, question in PATHS:
                status, said, _ = await ask(path, question)
                assert (status, said["type"].rpartition(":")[2]) in {(503, "not-ready"), (200, "")}, (path, body, said)
                assert status == 503 or b"items" in body


async def test_what_is_passed_on_is_json_whatever_the_other_worker_calls_it() -> None:
    async with stranger() as (other, address), beside(other, address) as (there, _), aiohttp.ClientSession() as session:
        other.body, other.headers = b"<script>alert(1)</script>", {"Content-Type": "text/html", "Set-Cookie": "a=b"}
        url = f"http://127.0.0.1:{there.app.conf.web_port}/actors/words/{THERE}"
        async with session.get(url) as reply:
            assert (reply.content_type, "Set-Cookie" in reply.headers) == ("application/json", False)


async def test_parts_that_are_gathered_count_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENT_BYTES", 1_000_000)
    async with stranger() as (other, address), beside(other, address) as (_, ask):
        other.body = b""
        status, said, _ = await ask(*PATHS[0])
        assert (status, said["type"].rpartition(":")[2]) == (500, "large-answer")


async def test_reports_of_workers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MAX_REPORTS_BYTES", 1_000)
    async with stranger() as (other, address), beside(other, address) as (there, _):
        other.body = b" " * 2_000
        who = Seen("other", address)
        await ask_worker(there.queries.workers, who, Room())
        assert "more than 1000 bytes together" in who.trouble


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "http://[", "nonsense", "http://", "\x00", "http://a b"])
async def test_an_address_that_is_none_is_a_worker_that_doesnt_answer(address: str) -> None:
    async with beside(Stranger(), address) as (there, ask):
        status, said, _ = await ask(f"/actors/words/{THERE}")
        assert (status, said["type"].rpartition(":")[2]) == (503, "not-ready")
        who = Seen("other", address)
        await ask_worker(there.queries.workers, who, Room())
        assert who.trouble


async def test_the_client_asks_for_the_rest_of_many_keys() -> None:
    async with asking() as (there, _):
        async with StateClient([f"http://127.0.0.1:{there.app.conf.web_port}"], follow_owners=False) as client:
            found = await client.get_many("words", [*LARGE, "nobody", "ada"])
        assert {key: len(value) for key, value in found.items()} == {**dict.fromkeys(LARGE, VALUE_BYTES), "ada": 3}
