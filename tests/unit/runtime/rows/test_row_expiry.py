"""Rows below a key that expire one by one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, UsageError
from actors.testing import ActorTestDriver
from tests.unit.runtime.rows.played import Do, Played, extend


@pytest.fixture
def played() -> Played:
    return Played()


def test_rows_expire_one_by_one() -> None:
    played = Played(ttl=timedelta(seconds=10))

    def add(text: str) -> Do:
        def do(ctx: Context) -> Any:
            played.lines.at(ctx.key).append(text)
            played.cart.at(ctx.key)[text] = 1
            return played.tags.at(ctx.key).add(text)

        return do

    def look(ctx: Context) -> Any:
        lines, cart, tags = (store.at(ctx.key) for store in (played.lines, played.cart, played.tags))
        return list(lines), len(lines), lines[-1], dict(cart.items()), len(cart), sorted(tags), len(tags)

    with ActorTestDriver(played.app) as driver:
        played.run(driver, add("a"))
        driver.advance(6)
        played.run(driver, add("b"))
        driver.advance(5)
        assert played.run(driver, look) == (["b"], 1, "b", {"b": 1}, 1, ["b"], 1)
        assert played.run(driver, add("a")) is True
        assert played.run(driver, look) == (["b", "a"], 2, "a", {"a": 1, "b": 1}, 2, ["a", "b"], 2)
        driver.advance(60)
        for store in (played.lines, played.cart, played.tags):
            assert driver.items(store.rows) == {}, "neither rows nor how many there are"
        assert played.run(driver, lambda ctx: len(played.lines.at(ctx.key))) == 0


def test_a_row_may_have_a_time_to_live_of_its_own() -> None:
    played = Played(expires=True)

    def put(ctx: Context) -> None:
        cart, tags = played.cart.at(ctx.key), played.tags.at(ctx.key)
        cart.set("short", 1, ttl=timedelta(seconds=1))
        cart.set("long", 2)
        tags.add("short", ttl=timedelta(seconds=1))
        assert tags.add("short", ttl=timedelta(seconds=1)) is False

    with ActorTestDriver(played.app) as driver:
        played.run(driver, put)
        driver.advance(2)
        assert played.run(
            driver, lambda ctx: (dict(played.cart.at(ctx.key).items()), len(played.tags.at(ctx.key)))
        ) == (
            {"long": 2},
            0,
        )


def test_a_ttl_needs_a_store_that_expires(played: Played) -> None:
    def put(ctx: Context) -> None:
        with pytest.raises(UsageError, match="store cart: a write with a ttl in a store whose keys don't expire"):
            played.cart.at(ctx.key).set("x", 1, ttl=timedelta(seconds=1))

    with ActorTestDriver(played.app) as driver:
        played.run(driver, put)


def test_a_row_that_is_replaced_expires_as_the_one_before() -> None:
    played = Played(ttl=timedelta(seconds=10))

    def replace(ctx: Context) -> None:
        played.lines.at(ctx.key)[0] = "A"

    with ActorTestDriver(played.app) as driver:
        played.run(driver, lambda ctx: extend(played.lines.at(ctx.key), "ab"))
        driver.advance(5)
        played.run(driver, replace)
        assert driver.get(played.lines, "ada") == ["A", "b"]
        driver.advance(5)
        assert driver.get(played.lines, "ada") == []


def test_a_shorter_ttl_than_before_loses_no_older_row() -> None:
    """Rows in the middle of a list expire first then; the older ones stay where they are."""

    def app_with(ttl: timedelta) -> tuple[App, Any, Any]:
        app = App("rows", broker="kafka://127.0.0.1:1")
        inputs = app.topic("inputs", key_type=str, value_type=str)
        lines = app.list_store("lines", value_type=str, ttl=ttl)

        @app.actor(inputs, stores=[lines], name="player")
        async def say(ctx: Context, line: str) -> None:
            lines.at(ctx.key).append(line)

        return app, inputs, lines

    app, inputs, lines = app_with(timedelta(hours=1))
    with ActorTestDriver(app) as driver:
        driver.send(inputs, key="ada", value="old")
        app, inputs, lines = app_with(timedelta(seconds=10))
        driver.restart(app)
        for line in ("new", "newer"):
            driver.send(inputs, key="ada", value=line)
        driver.advance(60)
        driver.send(inputs, key="ada", value="newest")
        assert driver.get(lines, "ada") == ["old", "newest"]
        driver.advance(3700)
        assert driver.items(lines.rows) == {}
