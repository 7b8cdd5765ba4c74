"""Aggregates that keep values: what is read back has the type that was named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import faust
import msgspec
import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError, Session, Tumbling, Window, aggregates
from actors._core.windows.kinds import Windows
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
SECOND = timedelta(seconds=1)


class Sale(msgspec.Struct, order=True):
    cents: int
    shop: str


@dataclasses.dataclass(order=True)
class Order:
    cents: int
    shop: str


class Record(faust.Record):
    cents: int


def cents_of(sale: Any) -> int:
    return int(sale.cents)


MADE: dict[str, Callable[..., aggregates.Aggregate[Any]]] = {
    "min": aggregates.min,
    "max": aggregates.max,
    "collect": lambda **of: aggregates.collect(3, **of),
    "top_n": lambda **of: aggregates.top_n(2, by=cents_of, **of),
}
EXPECTED: dict[str, Callable[[Any], Any]] = {
    "min": lambda of: of(3, "b"),
    "max": lambda of: of(20, "c"),
    "collect": lambda of: [of(5, "a"), of(3, "b"), of(20, "c")],
    "top_n": lambda of: [of(20, "c"), of(9, "d")],
}


class World:
    """Sales of a type that go into windows with an aggregate; `seen` has what handlers and closes got."""

    def __init__(self, kind: Windows, aggregate: aggregates.Aggregate[Any], of: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.sales = sales = app.topic("sales", key_type=str, value_type=of)
        self.store = store = app.window_store("held", kind, aggregate=aggregate)
        self.added: list[Any] = []
        self.fetched: list[Any] = []
        self.closed: list[Any] = []

        @store.on_close
        async def closed(ctx: Context, window: Window, value: Any) -> None:
            self.closed.append(value)

        @app.actor(sales, stores=[store])
        async def add(ctx: Context, sale: Any) -> None:
            self.added = store.add(ctx.key, sale)
            self.fetched = list(store.fetch(ctx.key))

    def send(self, driver: ActorTestDriver, sale: Any, at_s: int) -> None:
        driver.send(self.sales, key="k", value=sale, timestamp_ms=NOON_MS + at_s * 1000)


@pytest.mark.parametrize("of", [Sale, Order])
@pytest.mark.parametrize("name", MADE)
def test_values_have_their_type_in_each_window(name: str, of: Any) -> None:
    world = World(Tumbling(seconds=10), MADE[name](value_type=of), of)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for cents, shop, at_s in ((5, "a", 0), (3, "b", 1), (20, "c", 2), (9, "d", 3)):
            world.send(driver, of(cents, shop), at_s)
            driver.crash(keep_disk=False)
        expected = EXPECTED[name](of)
        assert [value for _, value in world.added] == [expected]
        assert [value for _, value in world.fetched] == [expected]
        assert list(driver.windows(world.store, "k").values()) == [expected]
        world.send(driver, of(0, "z"), 60)
        assert world.closed == [expected]


@pytest.mark.parametrize("name", MADE)
def test_values_have_their_type_when_sessions_merge(name: str) -> None:
    world = World(Session(5 * SECOND), MADE[name](value_type=Sale), Sale)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for cents, shop, at_s in ((5, "a", 0), (20, "c", 10), (9, "d", 11), (3, "b", 5)):
            world.send(driver, Sale(cents, shop), at_s)
        merged = {**EXPECTED, "collect": lambda of: [of(5, "a"), of(20, "c"), of(9, "d")]}
        assert [value for _, value in world.added] == [merged[name](Sale)]


@pytest.mark.parametrize("of", [Sale, Order])
@pytest.mark.parametrize("name", MADE)
def test_values_that_would_come_back_as_dicts_are_refused_at_once(name: str, of: Any) -> None:
    world = World(Tumbling(seconds=10), MADE[name](), of)
    refused = (
        rf"aggregates\.{name}\(\) of values that are {of.__name__}.*aggregates\.{name}\(…, value_type={of.__name__}\)"
    )
    with ActorTestDriver(world.app, partitions=1) as driver, pytest.raises(HandlerFailedError, match=refused):
        world.send(driver, of(5, "a"), 0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: aggregates.max(Record),
            r"max\(value_type=.*Record.*\): it can't be decoded: make it a",
        ),
        (lambda: aggregates.min(Sale | Record), r"min\(value_type=.*\): it can't be decoded"),
        (lambda: aggregates.collect(1, object()), r"collect\(value_type=.*\): it can't be decoded"),
        (lambda: aggregates.top_n(0, value_type=Sale), r"top_n\(n=0\): give a number of 1 or more"),
    ],
)
def test_types_that_states_cannot_hold_are_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"value_type": Sale, "aggregate": aggregates.max()},
            r"window store s: value_type= is a part of aggregate=: leave one of the two out\. The type of the values "
            r"goes into the aggregate, as in aggregates.max\(value_type=Sale\)",
        ),
        ({"value_type": int, "aggregate": aggregates.count()}, "value_type= is a part of aggregate="),
        (
            {"value_serializer": "json", "aggregate": aggregates.sum()},
            "value_serializer= is a part of .*out$",
        ),
        ({"aggregate": aggregates.sum}, "window store s: aggregate=<function sum.*: give one of actors.aggregates"),
        (
            {"aggregate": aggregates.Aggregate(0, lambda state, _: state, state_type=str)},
            "window store s: the initial=0 of its aggregate= isn't of its state_type=.*Expected `str`, got `int`",
        ),
        (
            {"aggregate": aggregates.Aggregate(object(), lambda state, _: state)},
            "window store s: the initial=.* of its aggregate= .* can't be kept",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_where_it_is_declared(options: dict[str, Any], text: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=text):
        app.window_store("s", Tumbling(seconds=10), **options)
    app.window_store("s", Tumbling(seconds=10), aggregate=aggregates.sum())


def test_a_state_of_a_type_of_ones_own_is_read_back_as_it_over_a_table() -> None:
    """Aggregates that keep values can't take one out, so over tables the state's type is the user's."""
    app = App("shop", broker="kafka://127.0.0.1:1")
    offers = app.table(app.topic("offers", key_type=str, value_type=Sale))
    seen: list[Any] = []
    total = aggregates.Aggregate(
        Sale(0, ""),
        add=lambda held, offer: Sale(held.cents + offer.cents, offer.shop),
        remove=lambda held, offer: Sale(held.cents - offer.cents, offer.shop),
        state_type=Sale,
    )

    async def changed(ctx: Context, value: Any) -> None:
        seen.append(value)

    with pytest.raises(ConfigurationError, match="aggregate s: its aggregate= can't take a value out again"):
        offers.aggregate("s", by="shop", aggregate=aggregates.max(Sale))
    held = offers.aggregate("totals", by="shop", aggregate=total, on_change=changed)

    @app.actor(offers.topic, stores=[offers])
    async def listed(ctx: Context, offer: Any) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        for key, cents in (("x", 5), ("y", 20), ("x", 7)):
            driver.send(offers.topic, key=key, value=Sale(cents, "a"))
        assert seen == [Sale(5, "a"), Sale(25, "a"), Sale(27, "a")]
        assert driver.get(held, "a") == Sale(27, "a")
