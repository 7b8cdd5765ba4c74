"""Queries for the rows of a table: those of the store that it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from actors import Context
from actors._core.group.members import TaskId
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Restored
from actors.testing import ActorTestDriver
from stores.memory import MemoryStore
from tests.unit.web.queries.test_window_queries import ask
from tests.unit.web.query_server import PARTITIONS, POSITION, Served

NOON_MS = 1_700_049_600_000


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
                for key, name in (("a", "Ada"), ("a", "Ada L."), ("b", "Bob"), ("b", None)):
                    value = None if name is None else {"name": name}
                    driver.send(table.topic, key=key, value=value, timestamp_ms=NOON_MS)
                disk = driver._disk.files()
                return {(one.store, int(one.path.name.rpartition("-")[2])): dict(one.data) for one in disk}

        # The driver has an event loop of its own, and a thread has one.
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(recorded).result()
        stores = app.actors["enrich"].stores
        self.spec = ActorSpec("enrich", "orders", PARTITIONS, enrich, bytes.decode, bytes.decode, stores, {})
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


async def test_a_query_shows_the_latest_value() -> None:
    found = TablesServed()
    found.server.init_server()
    await found.server.start_server()
    try:
        status, content = await ask(found, "/actors/customers/a")
        assert (status, content["value"]) == (200, {"name": "Ada L."})
        assert (await ask(found, "/actors/customers/b"))[0] == 404
        _, listed = await ask(found, "/actors/customers")
        assert [(one["key"], one["value"]) for one in listed["items"]] == [("a", {"name": "Ada L."})]
    finally:
        await found.server.stop_server()
        await found.queries.workers.close()
        await found.lease.close()
