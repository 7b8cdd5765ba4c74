"""Queries for the rows of a table: those of the store that it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from actors import Context
from actors._core.group.members import TaskId
from actors._core.windows.versions import MARK_KEY
from actors.client import StateClient, StateRequestError
from actors.runtime.queries import histories
from actors.runtime.state.restore import Restored
from actors.testing import ActorTestDriver
from stores._core.record import encode_metadata
from stores.memory import MemoryStore
from tests.unit.web.queries.test_window_queries import ask
from tests.unit.web.query_server import PARTITIONS, POSITION, Served, spec_of

NOON_MS = 1_700_049_600_000
HOUR_MS = 3_600_000
ROWS = [
    *(("a", "Ada", NOON_MS), ("a", "Ada L.", NOON_MS), ("b", "Bob", NOON_MS), ("b", None, NOON_MS)),
    *(("c", "Cy", NOON_MS), ("c", "Cyd", NOON_MS + 10), ("c", None, NOON_MS + 20), ("c", "Cyde", NOON_MS + HOUR_MS)),
    *(("d", "Dee", NOON_MS), ("d", None, NOON_MS + 15)),
]


class TablesServed(Served):
    """A server with a table, whose rows the actor of a test driver wrote."""

    def __init__(self) -> None:
        super().__init__()
        app = self.app
        orders = app.topic("orders", key_type=str, value_type=int)
        table = app.table(app.topic("customers", key_type=str, value_type=dict), history=timedelta(hours=1))

        @app.actor(orders, stores=[table])
        async def enrich(ctx: Context, number: int) -> None:
            pass

        def recorded() -> dict[tuple[str, int], dict[bytes, bytes]]:
            with ActorTestDriver(app, partitions=PARTITIONS) as driver:
                for key, name, at_ms in ROWS:
                    value = None if name is None else {"name": name}
                    driver.send(table.topic, key=key, value=value, timestamp_ms=at_ms)
                disk = driver._disk.files()
                return {(one.store, int(one.path.name.rpartition("-")[2])): dict(one.data) for one in disk}

        # The driver has an event loop of its own, and a thread has one.
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(recorded).result()
        stores = app.actors["enrich"].stores
        self.spec = spec_of("enrich", "orders", enrich, stores)
        for number in range(PARTITIONS):
            task = self.tasks[TaskId("enrich", number)] = self._task(number)
            held = [MemoryStore() for _ in stores]
            for store, one in zip(stores, held, strict=True):
                one.apply(list(files[store.name, number].items()), POSITION)
            task._stores = [Restored(one, POSITION, is_empty=False) for one in held]
        service: Any = self.app._actor_service
        service.copies = []
        self.queries.actors["enrich"] = self.spec
        self.queries.stores |= dict.fromkeys((store.name for store in stores), self.spec)


@asynccontextmanager
async def serving() -> AsyncIterator[TablesServed]:
    found = TablesServed()
    found.server.init_server()
    await found.server.start_server()
    try:
        yield found
    finally:
        await found.server.stop_server()
        await found.queries.workers.close()
        await found.lease.close()


async def test_a_query_shows_the_latest_value() -> None:
    async with serving() as found:
        status, content = await ask(found, "/actors/customers/a")
        assert (status, content["value"]) == (200, {"name": "Ada L."})
        assert (await ask(found, "/actors/customers/b"))[0] == 404
        _, listed = await ask(found, "/actors/customers")
        assert [(one["key"], one["value"]) for one in listed["items"]] == [
            ("a", {"name": "Ada L."}),
            ("c", {"name": "Cyde"}),
        ]


async def test_a_query_shows_the_value_as_of_a_time() -> None:
    async with serving() as found:
        for at, name in ((0, "Cy"), (9, "Cy"), (10, "Cyd"), (19, "Cyd"), (HOUR_MS, "Cyde"), (9 * HOUR_MS, "Cyde")):
            status, content = await ask(found, f"/actors/customers/c?as_of={NOON_MS + at}")
            assert (status, content["value"]) == (200, {"name": name})
        for at in (20, HOUR_MS - 1):
            status, content = await ask(found, f"/actors/customers/c?as_of={NOON_MS + at}")
            assert (status, content["type"]) == (404, "urn:faust-actors:problem:no-such-key")
        assert (await ask(found, f"/actors/customers/c?as_of={NOON_MS + 10}&raw=true"))[1]["value"]
        async with StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
            assert await client.get("customers", "c", as_of=NOON_MS + 10) == {"name": "Cyd"}
            assert await client.get("customers", "c", as_of=NOON_MS + 20) is None
            with pytest.raises(StateRequestError, match=f"keeps former values since {NOON_MS}"):
                await client.get("customers", "c", as_of=NOON_MS - 1)


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("customers/c?as_of=soon", "bad-parameter", "'soon', not a number from 0"),
        ("customers/c?as_of=-1", "bad-parameter", "'-1', not a number from 0"),
        (f"customers/c?as_of={1 << 63}", "bad-parameter", "not a number from 0"),
        (f"customers/c?as_of={NOON_MS - 1}", "before-history", f"since {NOON_MS}, and as_of={NOON_MS - 1} is before"),
        ("customers/c?as_of=5&read=standby", "bad-parameter", "given by their owners only"),
        (f"customers?as_of={NOON_MS - 1}", "before-history", f"since {NOON_MS}, and as_of={NOON_MS - 1} is before"),
        ("customers?as_of=soon", "bad-parameter", "'soon', not a number from 0"),
        ("customers?as_of=5&read=standby", "bad-parameter", "given by their owners only"),
        ("customers-history?as_of=5", "no-history", "store customers-history keeps no former values"),
        ("customers/_count?as_of=5", "bad-parameter", "as_of"),
        ("customers-history/aw==?partition=0&as_of=5", "no-history", "store customers-history keeps no former values"),
    ],
)
async def test_times_that_cant_be_asked_for_are_refused(path: str, kind: str, text: str) -> None:
    async with serving() as found:
        status, content = await ask(found, f"/actors/{path}")
        assert (status, content["type"]) == (400, f"urn:faust-actors:problem:{kind}")
        assert text in content["detail"]


def as_of(at_ms: int) -> dict[str, str]:
    """Give what a range has to show, from the records alone."""
    found = {key: name for key, name, written_ms in ROWS if written_ms <= at_ms}
    return {key: name for key, name in sorted(found.items()) if name is not None}


TIMES_MS = [NOON_MS + at for at in (0, 9, 10, 14, 15, 19, 20, HOUR_MS - 1, HOUR_MS, 9 * HOUR_MS)]


@pytest.mark.parametrize("at_ms", TIMES_MS)
async def test_a_range_shows_the_values_as_of_a_time(at_ms: int) -> None:
    async with serving() as found:
        wanted = as_of(at_ms)
        _, listed = await ask(found, f"/actors/customers?as_of={at_ms}")
        assert {one["key"]: one["value"]["name"] for one in listed["items"]} == wanted
        async with StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
            assert {key: value["name"] async for key, value in client.range("customers", as_of=at_ms)} == wanted
            ranged = [key async for key, _ in client.range("customers", start="b", end="d", as_of=at_ms)]
            assert ranged == [key for key in wanted if "b" <= key < "d"]


async def test_pages_of_former_values_go_on_where_the_last_one_ended() -> None:
    async with serving() as found:
        keys, cursor = list[str](), ""
        while True:
            _, page = await ask(found, f"/actors/customers?as_of={NOON_MS + 10}&limit=1{cursor}")
            keys += [one["key"] for one in page["items"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert keys == ["a", "c", "d"]


async def test_a_page_of_former_values_looks_at_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may need a row of each segment of the history."""
    monkeypatch.setattr(histories, "MAX_LOOKED_AT", histories.READS_OF_A_KEY)
    async with serving() as found:
        _, page = await ask(found, f"/actors/customers?as_of={NOON_MS + 10}")
        assert [one["key"] for one in page["items"]] == ["a"]
        async with StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
            assert [key async for key, _ in client.range("customers", as_of=NOON_MS + 10)] == ["a", "c", "d"]


async def test_a_history_that_cant_be_read_is_no_value() -> None:
    async with serving() as found:
        for task in found.tasks.values():
            for held in task._stores or ():
                if dict(held.store.scan()).keys() & {MARK_KEY}:
                    held.store.apply([(MARK_KEY, encode_metadata(1, 2) + b"\xff")], POSITION)
        for path in ("customers/c", "customers"):
            status, content = await ask(found, f"/actors/{path}?as_of={NOON_MS}")
            assert (status, content["type"]) == (500, "urn:faust-actors:problem:bad-value")
