"""A record that is sent on without a change keeps its bytes: key, value and headers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, OnError, Tumbling, receive
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver

MINUTE = timedelta(minutes=1)
NOW_MS, LATE_MS = 1_700_049_600_000, 1_700_049_000_000
KEY, VALUE = b'{"shop": "a", "floor": 1}', b'{ "cents": 5, "currency": "USD" }'
HEADERS = [("trace", b"1"), ("trace", b"2"), ("empty", None)]


class Sale(msgspec.Struct):
    cents: int


class Shop(msgspec.Struct, frozen=True):
    shop: str


def windows(app: App, sales: Any, late: Any) -> None:
    tens = app.window_store("tens", Tumbling(MINUTE), key_type=Shop, value_type=int)

    @app.actor(sales, stores=[tens], late=late)
    async def count(ctx: Context, sale: Sale) -> None:
        tens.update(ctx.key, lambda cents: sale.cents)


def class_windows(app: App, sales: Any, late: Any) -> None:
    tens = app.window_store("tens", Tumbling(MINUTE), key_type=Shop, value_type=int)

    @app.actor(sales, stores=[tens], late=late)
    class Count(Actor[None]):
        @receive
        async def sale(self, message: Sale) -> None: ...


def join(app: App, sales: Any, late: Any) -> None:
    other = app.topic("others", key_type=Shop, value_type=Sale)

    @app.join(sales, other, within=MINUTE, late=late)
    async def pair(ctx: Context, sale: Sale, other: Sale) -> None: ...


def sent(driver: ActorTestDriver, topic: str, partitions: int = 3) -> list[tuple[Any, ...]]:
    places = (TopicPartition(topic, number) for number in range(partitions))
    records = [record for place in places for record in driver._cluster.fetch(place, 0, 100)[0]]
    return [(record.key, record.value, list(record.headers), record.timestamp) for record in records]


@pytest.mark.parametrize("declare", [windows, class_windows, join])
@pytest.mark.parametrize("late_type", [Sale, None, bytes, "other"])
def test_a_late_record_is_sent_in_its_own_bytes(declare: Callable[..., None], late_type: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=Shop, value_type=Sale)
    kind = msgspec.defstruct("Other", [("currency", str)]) if late_type == "other" else late_type
    late = app.topic("late", key_type=bytes if kind is bytes else Shop, value_type=kind)
    declare(app, sales, late)
    canonical = b'{"shop":"a"}'
    with ActorTestDriver(app) as driver:
        send(driver, sales, NOW_MS, canonical)
        send(driver, sales, LATE_MS, canonical)
        assert sent(driver, "late") == [(canonical, VALUE, HEADERS, LATE_MS)]


def send(driver: ActorTestDriver, topic: Any, at_ms: int, key: bytes) -> None:
    driver.send(topic, key=key, value=VALUE, headers=HEADERS, timestamp_ms=at_ms, raw=True)


def test_a_late_record_is_written_as_the_topics_serializer_says() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=Shop, value_type=Sale)
    late = app.topic("late", key_type=Shop, value_type=Sale, value_serializer="json|binary")
    windows(app, sales, late)
    with ActorTestDriver(app) as driver:
        send(driver, sales, NOW_MS, b'{"shop":"a"}')
        send(driver, sales, LATE_MS, b'{"shop":"a"}')
        assert [record.value for record in driver.outputs(late)] == [Sale(5)]


@pytest.mark.parametrize("then", ["skip", "park"])
def test_a_dead_letter_has_the_records_own_bytes(then: Any) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=Shop, value_type=Sale)

    @app.actor(sales, on_error=OnError(then=then, dead_letters=True))
    async def fail(ctx: Context, sale: Sale) -> None:
        raise RuntimeError("no")

    with ActorTestDriver(app) as driver:
        send(driver, sales, NOW_MS, KEY)
        [(key, value, headers, _)] = sent(driver, "shop-dead-letters", partitions=1)
        assert (key, value, headers[:3]) == (KEY, VALUE, HEADERS)


def test_a_parked_record_is_handled_again_with_its_own_bytes() -> None:
    app, records = App("shop", broker="kafka://127.0.0.1:1"), []
    sales = app.topic("sales", key_type=bytes, value_type=bytes)

    @app.actor(sales, on_error="park")
    async def fail(ctx: Context, sale: bytes) -> None:
        records.append((ctx.key, sale, list(ctx.headers)))
        if len(records) < 2:
            raise RuntimeError("no")

    with ActorTestDriver(app) as driver:
        send(driver, sales, NOW_MS, KEY)
        driver.retry_parked(fail, KEY)
        assert records == [(KEY, VALUE, HEADERS)] * 2


def test_a_record_that_is_read_by_another_key_keeps_its_value_and_headers() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=Shop, value_type=Sale)

    @app.actor(sales, by=lambda sale: str(sale.cents), name="by_cents")
    async def by_cents(ctx: Context, sale: Sale) -> None: ...

    with ActorTestDriver(app) as driver:
        send(driver, sales, NOW_MS, KEY)
        assert sent(driver, "shop--by_cents-sales-repartition") == [(b"5", VALUE, HEADERS, NOW_MS)]


def test_a_late_record_of_an_input_that_is_read_by_another_key() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales = app.topic("sales", key_type=str, value_type=Sale)
    refunds = app.topic("refunds", key_type=str, value_type=Sale)
    late = app.topic("late", key_type=str, value_type=Sale)

    @app.join(sales, refunds, by={refunds: lambda refund: str(refund.cents)}, within=MINUTE, late=late)
    async def pair(ctx: Context, sale: Sale, refund: Sale) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        for at_ms in (NOW_MS, LATE_MS):
            driver.send(sales, key="5", value=Sale(5), timestamp_ms=at_ms)
            driver.send(refunds, key="a", value=Sale(5), timestamp_ms=at_ms)
        assert [(one.key, one.value, one.timestamp_ms) for one in driver.outputs(late)] == [("5", Sale(5), LATE_MS)] * 2
