"""Stores that keep an aggregate of each key."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError, aggregates
from actors._core.aggregates import Aggregate
from actors.errors import ReadOnlyQueryError
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES


class Sale(msgspec.Struct, order=True):
    cents: int
    shop: str = ""


class World:
    """An app that calls `then(store, key, value)` for each message; `seen` has what that returned."""

    def __init__(
        self, aggregate: Any, then: Any = None, *, of: Any = int, concurrency: int = 1, **options: Any
    ) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.sales = app.topic("sales", key_type=str, value_type=of)
        self.store = store = app.store("totals", aggregate=aggregate, **options)
        self.seen: list[Any] = []

        @app.actor(self.sales, stores=[store], concurrency=concurrency, name="add", on_error="stop")
        async def add(ctx: Context, value: Any) -> None:
            self.seen.append((then or type(store).add)(store, ctx.key, value))

        @app.query("add")
        def total(ctx: Context) -> Any:
            return store.get(ctx.key)

        @app.query("add")
        def bad(ctx: Context) -> Any:
            return store.add(ctx.key, 1)

    def send(self, driver: ActorTestDriver, *values: Any, key: str = "a") -> None:
        for value in values:
            driver.send(self.sales, key=key, value=value)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    ("aggregate", "values", "results"),
    [
        (aggregates.count(), [5, 5, 5], [1, 2, 3]),
        (aggregates.sum(), [5, -7, 2], [5, -2, 0]),
        (aggregates.min(), [5, 3, 4], [5, 3, 3]),
        (aggregates.max(), [5, 3, 8], [5, 5, 8]),
        (aggregates.mean(), [5, 10, 15], [5.0, 7.5, 10.0]),
        (aggregates.collect(2), [5, 3, 4], [[5], [5, 3], [5, 3]]),
        (aggregates.top_n(2), [5, 3, 4], [[5], [5, 3], [5, 4]]),
        (aggregates.approx_distinct(), [5, 3, 5], [1, 2, 2]),
        (Aggregate("", lambda state, value: f"{state}{value}", state_type=str), [5, 3, 4], ["5", "53", "534"]),
    ],
)
def test_results_are_what_is_returned_read_and_shown(
    aggregate: Any, values: list[int], results: list[Any], concurrency: int
) -> None:
    world = World(aggregate, concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=2) as driver:
        for value in values:
            world.send(driver, value)
            driver.crash(keep_disk=False)
        world.send(driver, values[0], key="b")
        assert world.seen == [*results, results[0]]
        assert driver.get(world.store, "a") == results[-1]
        assert driver.items(world.store) == {"a": results[-1], "b": results[0]}
        assert driver.query("add", "total", "a") == results[-1]
        assert {one.key: one.value for one in driver.changelog(world.store)} == {"a": results[-1], "b": results[0]}


def test_values_have_the_type_that_the_aggregate_was_told() -> None:
    world = World(aggregates.max(Sale), of=Sale)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, Sale(5, "x"), Sale(9, "y"), Sale(7, "z"))
        assert world.seen == [Sale(5, "x"), Sale(9, "y"), Sale(9, "y")]
        assert driver.get(world.store, "a") == Sale(9, "y")
        (files,) = (one for one in driver._disk.files() if one.store == "totals")
        shown = world.app.decoder("totals").value_json(files.data[b"a"][METADATA_BYTES:])
        assert json.loads(shown) == {"cents": 9, "shop": "y"}


def test_a_result_that_is_the_state_is_written_as_any_value() -> None:
    def then(store: Any, key: str, value: int) -> Any:
        if value == 0:
            return store.delete(key), store.put_if_absent(key, 100), store[key]
        if value < 0:
            store.set(key, value)
        return store.add(key, value), store.compare_and_set(key, 3, 7), key in store, dict(store.items())

    world = World(aggregates.sum(), then)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, 3, 1, 0, -5, 15)
        assert world.seen == [
            (3, True, True, {"a": 7}),
            (8, False, True, {"a": 8}),
            (True, None, 100),
            (-10, False, True, {"a": -10}),
            (5, False, True, {"a": 5}),
        ]


@pytest.mark.parametrize(
    ("aggregate", "value", "text"),
    [
        (aggregates.mean(), 5.0, r"store totals: no state can be made of a result of its aggregate: use add\(\)"),
        (aggregates.approx_distinct(), 5, "no state can be made of a result"),
        (aggregates.count(), "five", "store totals: not a state of this aggregate, Expected `int`, got `str`"),
        (aggregates.count(), None, "Expected `int`, got `None`"),
        (aggregates.max(Sale), {"shop": "x"}, "missing required field `cents`"),
        (aggregates.max(), object(), "store totals: Encoding objects of type object is unsupported"),
    ],
)
def test_what_is_no_state_is_not_written(aggregate: Any, value: Any, text: str) -> None:
    world = World(aggregate, lambda store, key, _: store.set(key, value))
    with ActorTestDriver(world.app, partitions=1) as driver, pytest.raises(HandlerFailedError, match=text):
        world.send(driver, 1)


def test_a_message_that_fails_adds_nothing() -> None:
    def then(store: Any, key: str, value: int) -> None:
        store.add(key, value)
        if value == 13:
            raise ValueError("unlucky")

    world = World(aggregates.sum(), then)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, 1)
        with pytest.raises(HandlerFailedError, match="unlucky"):
            world.send(driver, 13)
        assert driver.get(world.store, "a") == 1


def test_add_needs_an_aggregate_and_is_no_query() -> None:
    world = World(None, lambda store, key, value: store.add(key, value))
    refused = r"store totals: add\(\) needs aggregate=…, as in aggregate=aggregates.sum\(\)"
    with ActorTestDriver(world.app, partitions=1) as driver, pytest.raises(HandlerFailedError, match=refused):
        world.send(driver, 1)
    world = World(aggregates.sum())
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, 1)
        with pytest.raises(ReadOnlyQueryError):
            driver.query("add", "bad", "a")


def test_a_ttl_begins_with_each_add_and_hooks_get_results() -> None:
    ended: list[Any] = []

    async def gone(ctx: Context, value: Any) -> None:
        ended.append((ctx.key, value))

    world = World(aggregates.mean(), ttl=timedelta(seconds=60), on_expire=gone)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.send(driver, 4)
        driver.advance(50)
        world.send(driver, 8)
        driver.advance(50)
        assert driver.get(world.store, "a") == 6.0
        driver.advance(20)
        assert (driver.get(world.store, "a"), ended) == (None, [("a", 6.0)])
        world.send(driver, 1)
        assert world.seen[-1] == 1.0


def test_results_are_published() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    sales, readers = (app.topic(name, key_type=str, value_type=of) for name, of in (("sales", int), ("read", float)))
    store = app.store("means", aggregate=aggregates.mean(), publish=readers)

    @app.actor(sales, stores=[store])
    async def add(ctx: Context, value: int) -> None:
        store.add(ctx.key, value)

    with ActorTestDriver(app, partitions=1) as driver:
        for value in (4, 8):
            driver.send(sales, key="a", value=value)
        assert [(one.key, one.value) for one in driver.outputs(readers)] == [("a", 4.0), ("a", 6.0)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"value_type": int}, r"store s: value_type= is a part of aggregate=.*aggregates.max\(value_type=Sale\)"),
        ({"value_serializer": "json"}, "store s: value_serializer= is a part of aggregate="),
        ({"version": 2, "upgrades": {1: int}}, "store s: version= is a part of aggregate="),
        ({"upgrades": {}}, "store s: upgrades= is a part of aggregate="),
        ({"aggregate": aggregates.sum}, "store s: aggregate=<function sum.*: give one of actors.aggregates"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], text: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=text):
        app.store("s", **{"aggregate": aggregates.sum(), **options})
