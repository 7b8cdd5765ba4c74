"""Other keys that are made of a record's key and value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.errors import ConfigurationError, RecordError
from actors.testing import ActorTestDriver


class Place(msgspec.Struct, frozen=True):
    shop: str
    order: int


class Line(msgspec.Struct):
    cents: int
    note: str | None = None


def shop(by: Any, **options: Any) -> tuple[App, Any, list[Any]]:
    app, seen = App("shop", broker="kafka://127.0.0.1:9092"), []
    lines = app.topic("lines", key_type=Place, value_type=Line)

    @app.actor(lines, by=by, stores=[app.store("sums", key_type=options.pop("kind", str))], tombstones=True, **options)
    async def add(ctx: Context, line: Line | None) -> None:
        seen.append((ctx.key, line and line.cents))

    return app, lines, seen


@pytest.mark.parametrize("by", ["key.shop", lambda key, value: key.shop])
def test_a_field_of_the_key_and_a_function_of_key_and_value(by: Any) -> None:
    app, lines, seen = shop(by)
    with ActorTestDriver(app) as driver:
        driver.send(lines, key=Place("a", 1), value=Line(3))
        driver.send(lines, key=Place("b", 2), value=Line(4))
        driver.send(lines, key=Place("b", 2), value=None)
    assert seen == [("a", 3), ("b", 4), ("b", None)]


def test_a_number_of_the_key_makes_keys_that_are_numbers() -> None:
    app, lines, seen = shop("key.order", kind=int)
    with ActorTestDriver(app) as driver:
        driver.send(lines, key=Place("a", 1), value=Line(3))
    assert seen == [(1, 3)]


@pytest.mark.parametrize(
    ("by", "key", "value", "text"),
    [
        ("key.shop", None, Line(1), "its key is null"),
        ("note", Place("a", 1), Line(1), "gives no key"),
        ("note", Place("a", 1), None, "its value is null"),
        (lambda key, value: None, Place("a", 1), Line(1), "gives no key"),
        (lambda key, value: key.shop, None, Line(1), "'NoneType' object has no attribute 'shop'"),
    ],
)
def test_a_null_key_and_a_null_result_go_by_the_policy(by: Any, key: Any, value: Any, text: str) -> None:
    app, lines, seen = shop(by, on_error="skip")
    with ActorTestDriver(app) as driver:
        driver.send(lines, key=key, value=value)
    assert seen == []
    app, lines, _ = shop(by)
    with ActorTestDriver(app) as driver, pytest.raises(RecordError, match=rf"lines.*offset 0(?s:.)*{text}"):
        driver.send(lines, key=key, value=value)


def test_a_null_key_is_no_error_where_the_function_takes_it() -> None:
    app, lines, seen = shop(lambda key, value: "none" if key is None else key.shop)
    with ActorTestDriver(app) as driver:
        driver.send(lines, key=None, value=Line(1))
    assert seen == [("none", 1)]


def test_fields_that_the_key_lacks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"field 'city'"):
        shop("key.city")

    async def by(key: Place, line: Line) -> str:
        return key.shop

    with pytest.raises(ConfigurationError, match="async"):
        shop(by)


def test_aggregates_and_joins_by_a_part_of_the_key() -> None:
    app, seen = App("shop", broker="kafka://127.0.0.1:9092"), []
    lines = app.table(app.topic("lines", key_type=Place, value_type=Line), name="lines")
    shops = app.table(app.topic("shops", key_type=str, value_type=str), name="shops")
    sums = lines.aggregate(
        "sums",
        by=lambda key, line: key.shop,
        initial=0,
        value_type=int,
        add=lambda cents, line: cents + line.cents,
        remove=lambda cents, line: cents - line.cents,
    )

    @app.join(lines, shops, on="key.shop")
    async def named(ctx: Context, line: Line | None, name: str | None) -> None:
        seen.append((ctx.key, line and line.cents, name))

    with ActorTestDriver(app) as driver:
        driver.send("shops", key="a", value="Anna's")
        driver.send("lines", key=Place("a", 1), value=Line(3))
        driver.send("lines", key=Place("a", 2), value=Line(4))
        assert driver.get(sums, "a") == 7
        driver.send("lines", key=Place("a", 1), value=None)
        assert driver.get(sums, "a") == 4
    assert seen == [(Place("a", 1), 3, "Anna's"), (Place("a", 2), 4, "Anna's"), (Place("a", 1), None, None)]
