"""Queries for the windows of a key, and the client that asks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from actors import Context, Session, Sliding, Tumbling, aggregates
from actors._core.group.members import TaskId
from actors.client import StateClient, StateError, StateRequestError, WindowValue
from actors.runtime.state.restore import Restored
from actors.runtime.windows import committed
from actors.testing import ActorTestDriver
from actors.web.queries import server
from stores.memory import MemoryStore
from tests.documents import block
from tests.unit.web.query_server import PARTITIONS, POSITION, Served, get, spec_of

NOON_MS = 1_700_049_600_000
MINUTE_MS = 60_000


class WindowsServed(Served):
    """A server with window stores, whose rows the actors of a test driver wrote."""

    def __init__(self) -> None:
        super().__init__()
        app = self.app
        events = app.topic("events", key_type=str, value_type=int)
        count = aggregates.count()
        stores = [
            app.window_store("minutes", Tumbling(minutes=1), aggregate=aggregates.mean()),
            app.window_store("near", Sliding(timedelta(minutes=1)), aggregate=count),
            app.window_store("visits", Session(timedelta(minutes=1)), aggregate=count),
            app.window_store("raw", Tumbling(hours=1), key_type=bytes, value_type=str),
        ]
        minutes, near, visits, raw = stores

        @app.actor(events, stores=stores, late="handle")
        async def add(ctx: Context, amount: int) -> None:
            for store in (minutes, near, visits):
                store.add(ctx.key, amount)
            raw.set(ctx.key.encode(), "x" * amount)

        def recorded() -> dict[tuple[str, int], dict[bytes, bytes]]:
            with ActorTestDriver(app, partitions=PARTITIONS) as driver:
                for key, amount, minute in [("a", 1, 0), ("a", 2, 0.5), ("a/b", 8, 1), ("a", 4, 3), ("a", 100, 0.1)]:
                    driver.send(events, key=key, value=amount, timestamp_ms=NOON_MS + int(minute * MINUTE_MS))
                disk = driver._disk.files()
                return {(one.store, int(one.path.name.rpartition("-")[2])): dict(one.data) for one in disk}

        # The driver has an event loop of its own, and a thread has one.
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(recorded).result()
        rows = tuple(store.rows for store in stores)
        self.spec = spec_of("add", "events", add, rows, windows=tuple(stores))
        for number in range(PARTITIONS):
            task = self.tasks[TaskId("add", number)] = self._task(number)
            held = [MemoryStore() for _ in stores]
            for store, one in zip(stores, held, strict=True):
                one.apply(list(files[store.name, number].items()), POSITION)
            task._stores = [Restored(one, POSITION, is_empty=False) for one in held]
        service: Any = self.app._actor_service
        service.copies = []
        self.queries.actors["add"] = self.spec
        self.queries.stores |= dict.fromkeys((store.name for store in stores), self.spec)


@asynccontextmanager
async def windows_served() -> AsyncIterator[WindowsServed]:
    found = WindowsServed()
    assert found.server.cors
    found.server.init_server()
    await found.server.start_server()
    try:
        yield found
    finally:
        await found.server.stop_server()
        await found.queries.workers.close()
        await found.lease.close()


async def ask(found: WindowsServed, path: str) -> tuple[int, Any]:
    connection = await found.connect()
    try:
        connection.send(get(path))
        status, _, body = await connection.answer()
    finally:
        await connection.close()
    return status, json.loads(body)


def shown(content: Any) -> list[tuple[float, float, Any]]:
    """Windows with their bounds in minutes after noon."""
    return [
        ((one["start_ms"] - NOON_MS) / MINUTE_MS, (one["end_ms"] - NOON_MS) / MINUTE_MS, one["value"])
        for one in content["windows"]
    ]


async def test_windows_of_a_key() -> None:
    async with windows_served() as found:
        status, content = await ask(found, "/actors/minutes/a")
        assert status == 200
        assert shown(content) == [(0, 1, 1.5), (3, 4, 4.0)]
        assert (content["store"], content["key"], content["next"]) == ("minutes", "a", None)
        assert content["stream_ms"] == NOON_MS + 3 * MINUTE_MS
        assert content["read"] == "committed"
        assert content["position"]["changelog_offset"] == POSITION.changelog_offset
        assert shown((await ask(found, "/actors/minutes/a%2Fb"))[1]) == [(1, 2, 8.0)]
        assert shown((await ask(found, "/actors/visits/a"))[1]) == [(0, 0.5, 2), (3, 3, 1)]
        assert [value for *_, value in shown((await ask(found, "/actors/near/a"))[1])] == [1, 2, 1, 1]
        assert (await ask(found, "/actors/minutes/nobody"))[1]["windows"] == []


async def test_bounds_are_starts_and_both_are_included() -> None:
    async with windows_served() as found:
        for bounds, starts in [
            (f"from={NOON_MS}&to={NOON_MS}", [0]),
            (f"from={NOON_MS + 1}", [3]),
            (f"to={NOON_MS + 3 * MINUTE_MS - 1}", [0]),
            (f"from={NOON_MS}&to={NOON_MS + 3 * MINUTE_MS}", [0, 3]),
        ]:
            _, content = await ask(found, f"/actors/minutes/a?{bounds}")
            assert [start for start, *_ in shown(content)] == starts, bounds


@pytest.mark.parametrize("store", ["minutes", "near", "visits"])
async def test_pages_have_everything_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with windows_served() as found, StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
        whole = await client.windows(store, "a", from_ms=NOON_MS - MINUTE_MS)
        monkeypatch.setattr(committed, "MAX_PLACES", 2)
        monkeypatch.setattr(server, "answer_bytes", lambda _: 1)
        _, first = await ask(found, f"/actors/{store}/a?from={NOON_MS - MINUTE_MS}")
        assert len(first["windows"]) <= 1
        assert first["next"] is not None
        assert len(whole) > 1
        assert await client.windows(store, "a", from_ms=NOON_MS - MINUTE_MS) == whole


async def test_the_example_of_the_client() -> None:
    names = block("docs/reference/api/client.md", "Example").run({})
    async with windows_served() as found:
        urls = [f"http://127.0.0.1:{found.app.conf.web_port}"]
        answer, windows = await names["look"](urls)
        assert (answer.found, [one.value for one in windows]) == (True, [])
        assert not names["is_later"](answer, answer)
        assert await asyncio.to_thread(names["word_of"], urls, "ada") == answer.value


async def test_the_client_gives_windows() -> None:
    async with windows_served() as found, StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
        assert await client.windows("minutes", "a", to_ms=NOON_MS) == [WindowValue(NOON_MS, NOON_MS + MINUTE_MS, 1.5)]
        assert [one.value for one in await client.windows("raw", b"a")] == ["x" * 100]
        with pytest.raises(StateError, match="store words has no windows"):
            await client.windows("words", "ada")


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/actors/minutes/a?from=2&to=1", "bad-parameter", "from=2 is behind to=1"),
        ("/actors/minutes/a?from=-1", "bad-parameter", "parameter from is '-1', not a number"),
        ("/actors/minutes/a?to=noon", "bad-parameter", "parameter to is 'noon', not a number"),
        ("/actors/minutes/a?limit=3", "bad-parameter", "parameter 'limit' is unknown here"),
        ("/actors/words/ada?from=1", "bad-parameter", "parameter 'from' is unknown here"),
        ("/actors/minutes?prefix=a", "has-windows", "prefix, from and to are of plain stores' keys"),
        ("/actors/minutes/_count?from=a", "has-windows", "prefix, from and to are of plain stores' keys"),
        ("/actors/raw/a*b", "bad-key", "a key isn't base64"),
    ],
)
async def test_what_is_refused(path: str, kind: str, text: str) -> None:
    async with windows_served() as found:
        status, content = await ask(found, path)
        assert status == 400
        assert content["type"].endswith(f":{kind}")
        assert text in content["detail"]


async def test_several_keys_at_once_are_refused() -> None:
    async with windows_served() as found, StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
        with pytest.raises(StateRequestError, match="/actors/minutes/KEY"):
            await client.get_many("minutes", ["a"])


async def test_what_moves_isnt_answered_for() -> None:
    async with windows_served() as found:
        found.tasks.clear()
        status, _ = await ask(found, "/actors/minutes/a")
        assert status == 503


async def test_rows_are_shown_readably() -> None:
    async with windows_served() as found:
        _, content = await ask(found, "/actors/minutes")
        rows = {json.dumps(one["key"]): one["value"] for one in content["items"]}
        assert rows[json.dumps(["a", NOON_MS, NOON_MS + MINUTE_MS])] == 1.5
        _, content = await ask(found, "/actors/visits")
        lists = [one["value"] for one in content["items"] if one["key"][0] == "a"]
        assert [NOON_MS, NOON_MS + MINUTE_MS // 2, 2] in [window for held in lists for window in held]
        _, overview = await ask(found, "/actors")
        kinds = {one["store"]: one["keys"] for one in overview["stores"]}
        assert (kinds["minutes"], kinds["raw"]) == ("text", "base64")
