"""The code of the pages on the calendar, readers of one topic, what is around handlers, and on Celery."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.testing import ActorTestDriver
from tests.documents import block


class Order(msgspec.Struct):
    cents: int


def an_app() -> App:
    return App("shop", broker="kafka://127.0.0.1:1")


def test_the_example_runs_each_night() -> None:
    app = an_app()
    sums = app.store("sums", key_type=str, value_type=int)
    names = {"app": app, "sums": sums, "reports": app.topic("reports", key_type=str, value_type=int)}
    block("docs/reference/timers-and-effects.md", "A calendar").run({**names, "Context": Context, "datetime": datetime})
    with ActorTestDriver(app, now=datetime(2026, 3, 28, tzinfo=UTC)) as driver:
        driver.advance(2 * 86_400)
        assert [sent.key for sent in driver.outputs("reports")] == ["2026-03-28", "2026-03-29"]


def test_both_actors_of_the_example_get_each_order() -> None:
    app, orders = an_app(), list[str]()
    stores = {name: app.store(name, key_type=str, value_type=int) for name in ("totals", "known")}
    names: dict[str, Any] = {"app": app, "Order": Order, "Context": Context, **stores}
    names = block("docs/reference/inputs.md", "Several actors of one topic").run(names)

    @app.wrap
    def note(ctx: Context) -> Any:
        orders.append(ctx.topic)
        yield

    with ActorTestDriver(app) as driver:
        driver.send(names["orders"], key="ada", value=Order(5))
    assert sorted(orders) == ["shop--add-orders-repartition", "shop--warn-orders-repartition"]


def test_the_tenant_is_that_of_the_message() -> None:
    names = block("docs/how-to/around-handlers.md", "A tenant for each message").run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.send(names["orders"], key="ada", value="hat", headers={"tenant": b"acme"})
        driver.send(names["orders"], key="ada", value="cap")
        assert [sent.value for sent in driver.outputs(names["placed"])] == ["hat for acme", "cap for nobody"]


def test_a_handler_has_a_session() -> None:
    app, session = an_app(), ContextVar[str]("session")
    orders, used = app.topic("orders", key_type=str, value_type=str), list[str]()

    class Pool:
        @asynccontextmanager
        async def acquire(self) -> AsyncIterator[str]:
            yield "a connection"
            used.append("given back")

    names = {"app": app, "Context": Context, "AsyncIterator": AsyncIterator, "pool": Pool(), "session": session}
    block("docs/how-to/around-handlers.md", "A session of a database").run(names)

    @app.actor(orders)
    async def place(ctx: Context, order: str) -> None:
        used.append(session.get())

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="hat")
    assert used == ["a connection", "given back"]


def test_a_line_of_a_handler_begins_with_the_place(caplog: pytest.LogCaptureFixture) -> None:
    app = an_app()
    orders = app.topic("orders", key_type=str, value_type=Order)
    block("docs/how-to/logs.md", "Lines of a handler").run(
        {"app": app, "Context": Context, "Order": Order, "orders": orders}
    )
    with caplog.at_level("INFO"), ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value=Order(5))
    assert "actor place, orders[0] offset 0 key 'ada': an order of 5 cents" in caplog.messages


def test_the_program_of_celery_and_ours() -> None:
    celery, ours = (
        block("docs/how-to/from-celery.md", "The program"),
        block("docs/how-to/from-celery.md", "The program", 2),
    )
    compile(celery.code, celery.label, "exec")
    names = ours.run({})
    with ActorTestDriver(names["app"], now=datetime(2026, 3, 28, tzinfo=UTC)) as driver:
        driver.advance(86_400)
        driver.crash(keep_disk=False)
        assert [(sent.key, sent.value) for sent in driver.outputs(names["sums"])] == [("2026-03-28", 7)]
