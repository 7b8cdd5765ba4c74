"""Queries for the rows below a key, and the client that asks them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import pytest

from actors import App, Context
from actors._core.group.members import TaskId
from actors.client import StateClient, StateRequestError
from actors.runtime.state.restore import Restored
from actors.testing import ActorTestDriver
from actors.web.queries import rows as row_queries
from actors.web.queries import server
from stores.memory import MemoryStore
from tests.unit.web.query_server import PARTITIONS, POSITION, Served, get, spec_of


@dataclass(frozen=True, slots=True)
class Declared:
    """An actor with map, list and set stores, and the keys and messages that it gets."""

    name: str
    topic: Any
    handler: Any
    stores: Sequence[Any]
    messages: Sequence[tuple[str, Any]]

    @classmethod
    def on(cls, app: App) -> Self:
        """Declare an actor."""
        events = app.topic("events", key_type=str, value_type=str)
        stores: list[Any] = [
            app.list_store("lines", value_type=str),
            app.map_store("cart", row_type=str, value_type=int),
            app.set_store("tags", key_type=bytes, row_type=bytes),
            app.list_store("brief", value_type=str, ttl=timedelta(days=36_000)),
        ]
        lines, cart, tags, brief = stores

        @app.actor(events, stores=stores, name="add")
        async def add(ctx: Context, text: str) -> None:
            lines.at(ctx.key).append(text)
            if len(lines.at(ctx.key)) > 5:
                del lines.at(ctx.key)[:1]
            cart.at(ctx.key)[text] = len(text)
            tags.at(ctx.key.encode()).add(text.encode())
            brief.at(ctx.key).append(text)

        messages = [("room/1", text) for text in ("a", "ab", "b/c", "d", "e", "f")]
        return cls("add", events, add, stores, [*messages, ("room", "x")])


class RowsServed(Served):
    """A server with the rows that an actor wrote on a test driver."""

    def __init__(self, declare: Callable[[App], Declared] = Declared.on) -> None:
        super().__init__()
        declared = declare(self.app)

        def recorded() -> dict[tuple[str, int], dict[bytes, bytes]]:
            with ActorTestDriver(self.app, partitions=PARTITIONS) as driver:
                for key, message in declared.messages:
                    driver.send(declared.topic, key=key, value=message)
                disk = driver._disk.files()
                return {(one.store, int(one.path.name.rpartition("-")[2])): dict(one.data) for one in disk}

        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(recorded).result()
        name, stores = declared.name, tuple(store.rows for store in declared.stores)
        self.spec = spec_of(name, declared.topic.get_topic_name(), declared.handler, stores)
        for number in range(PARTITIONS):
            task = self.tasks[TaskId(name, number)] = self._task(number)
            held = [MemoryStore() for _ in stores]
            for store, one in zip(stores, held, strict=True):
                one.apply(list(files[store.name, number].items()), POSITION)
            task._stores = [Restored(one, POSITION, is_empty=False) for one in held]
        service: Any = self.app._actor_service
        service.copies = []
        self.queries.actors[name] = self.spec
        self.queries.actor = self.queries.actors.__getitem__
        self.queries.stores |= dict.fromkeys((store.name for store in stores), self.spec)


@asynccontextmanager
async def rows_served(declare: Callable[[App], Declared] = Declared.on) -> AsyncIterator[RowsServed]:
    served = RowsServed(declare)
    assert served.server.cors
    served.server.init_server()
    await served.server.start_server()
    try:
        yield served
    finally:
        await served.server.stop_server()
        await served.queries.workers.close()
        await served.lease.close()


async def ask(served: RowsServed, path: str) -> tuple[int, Any]:
    connection = await served.connect()
    try:
        connection.send(get(path))
        status, _, body = await connection.answer()
    finally:
        await connection.close()
    return status, json.loads(body)


def shown(content: Any) -> list[tuple[Any, Any]]:
    return [(row["row"], row["value"]) for row in content["rows"]]


async def test_rows_of_a_key() -> None:
    async with rows_served() as served:
        status, content = await ask(served, "/actors/lines/room%2F1")
        assert status == 200
        assert shown(content) == [(0, "ab"), (1, "b/c"), (2, "d"), (3, "e"), (4, "f")]
        assert (content["store"], content["key"], content["count"], content["next"]) == ("lines", "room/1", 5, None)
        assert content["position"]["changelog_offset"] == POSITION.changelog_offset
        _, content = await ask(served, "/actors/cart/room")
        assert (shown(content), content["count"]) == ([("x", 1)], 1)
        _, content = await ask(served, "/actors/cart/nobody")
        assert (content["rows"], content["count"], content["next"]) == ([], 0, None)
        _, content = await ask(served, "/actors/tags/cm9vbQ")
        assert shown(content) == [("eA==", None)]
        _, content = await ask(served, "/actors/brief/room")
        assert content["rows"][0]["expires_at_ms"] > 0


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("from=-2", [3, 4]),
        ("from=1&to=3", [1, 2]),
        ("to=-4", [0]),
        ("from=9", []),
        ("reverse=true&limit=2", [4, 3]),
        ("from=1&to=4&reverse=true", [3, 2, 1]),
    ],
)
async def test_rows_of_a_list_by_index(query: str, rows: list[int]) -> None:
    async with rows_served() as served:
        _, content = await ask(served, f"/actors/lines/room%2F1?{query}")
        assert [row for row, _ in shown(content)] == rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("prefix=a", ["a", "ab"]),
        ("from=ab&to=e", ["ab", "b/c", "d"]),
        ("prefix=a&reverse=true", ["ab", "a"]),
        ("from=f", ["f"]),
        ("prefix=z", []),
    ],
)
async def test_rows_of_a_map_by_range_and_prefix(query: str, rows: list[str]) -> None:
    async with rows_served() as served:
        _, content = await ask(served, f"/actors/cart/room%2F1?{query}")
        assert [row for row, _ in shown(content)] == rows


@pytest.mark.parametrize("store", ["lines", "cart", "brief"])
@pytest.mark.parametrize("is_reversed", [False, True])
async def test_pages_have_everything_once(store: str, is_reversed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rows_served() as served, StateClient(f"http://127.0.0.1:{served.app.conf.web_port}") as client:
        whole = [row async for row in client.rows(store, "room/1", reverse=is_reversed)]
        assert len(whole) == (5 if store == "lines" else 6)
        assert whole == sorted(whole, reverse=is_reversed)
        monkeypatch.setattr(server, "answer_bytes", lambda _: 1)
        assert [row async for row in client.rows(store, "room/1", reverse=is_reversed)] == whole
        monkeypatch.undo()
        monkeypatch.setattr(row_queries, "MAX_LOOKED_AT", 2)
        assert [row async for row in client.rows(store, "room/1", reverse=is_reversed)] == whole


async def test_the_client_gives_rows() -> None:
    async with rows_served() as served, StateClient(f"http://127.0.0.1:{served.app.conf.web_port}") as client:
        assert [row async for row in client.rows("lines", "room/1", start=-1)] == [(4, "f")]
        assert [row async for row in client.rows("cart", "room/1", prefix="a")] == [("a", 1), ("ab", 2)]
        assert [row async for row in client.rows("cart", "room/1", start="d", end="f")] == [("d", 1), ("e", 1)]
        assert [row async for row in client.rows("tags", b"room")] == [("eA==", None)]
        with pytest.raises(StateRequestError, match="parameter 'limit' is unknown here"):
            _ = [row async for row in client.rows("words", "ada")]


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/actors/lines/room?from=x", "bad-parameter", "is no index of a list"),
        ("/actors/lines/room?prefix=1", "bad-parameter", "prefix is for maps and sets"),
        ("/actors/cart/room?prefix=1&from=2", "bad-parameter", "prefix doesn't go together with from and to"),
        ("/actors/cart/room?limit=0", "bad-parameter", "parameter limit is '0'"),
        ("/actors/cart/room?cursor=x", "bad-parameter", "parameter cursor isn't one of a page's `next`"),
        ("/actors/words/ada?reverse=true", "bad-parameter", "parameter 'reverse' is unknown here"),
        ("/actors/cart?prefix=a", "has-rows", "ask for one key's, /actors/cart/KEY?from=&to="),
    ],
)
async def test_what_is_refused(path: str, kind: str, text: str) -> None:
    async with rows_served() as served:
        status, content = await ask(served, path)
        assert status == 400
        assert content["type"].endswith(f":{kind}")
        assert text in content["detail"]


async def test_several_keys_at_once_are_refused() -> None:
    async with rows_served() as served, StateClient(f"http://127.0.0.1:{served.app.conf.web_port}") as client:
        with pytest.raises(StateRequestError, match="store lines has rows below each key"):
            await client.get_many("lines", ["a"])


async def test_all_records_are_shown_readably() -> None:
    async with rows_served() as served:
        _, content = await ask(served, "/actors/cart")
        items = [(item["key"], item["value"]) for item in content["items"]]
        assert (["room", "x"], 1) in items
        assert (["room"], {"first": 0, "end": 1}) in items


async def test_what_moves_isnt_answered_for() -> None:
    async with rows_served() as served:
        served.tasks.clear()
        status, _ = await ask(served, "/actors/lines/a")
        assert status == 503
