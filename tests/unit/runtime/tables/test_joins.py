"""Joins of two tables by key, beside two dicts."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from actors import App, ConfigurationError, Context, HandlerFailedError
from actors.testing import ActorTestDriver

NOON_MS = 1_700_049_600_000
HOWS = ("inner", "left", "outer")


class Joined:
    """Two tables, and what their join sends."""

    def __init__(self, how: str, **options: Any) -> None:
        self.app = app = App("joined", broker="kafka://127.0.0.1:1")
        self.left = app.table(app.topic("left", key_type=str, value_type=int), **options)
        self.right = app.table(app.topic("right", key_type=str, value_type=int), **options)
        self.out = app.topic("out", key_type=str, value_type=list)

        @app.join(self.left, self.right, how=how)
        async def both(ctx: Context, left: int | None, right: int | None) -> None:
            ctx.send(self.out, key=ctx.key, value=None if left is right is None else [left, right])

        self.both = both


def result(how: str, left: int | None, right: int | None) -> list[int | None] | None:
    if how == "inner" and (left is None or right is None):
        return None
    if (how == "left" and left is None) or (left is None and right is None):
        return None
    return [left, right]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("keep_disk", [True, False])
def test_each_change_gives_its_result_once(how: str, keep_disk: bool) -> None:
    rng = random.Random(f"{how}{keep_disk}")
    joined = Joined(how)
    sides: dict[str, list[int | None]] = {}
    expected: dict[str, list[Any]] = {}
    with ActorTestDriver(joined.app) as driver:
        for number in range(300):
            key, side = rng.choice("abcd"), rng.randint(0, 1)
            value = None if rng.random() < 0.4 else number
            driver.post((joined.left, joined.right)[side].topic, key=key, value=value, timestamp_ms=NOON_MS + number)
            held = sides.setdefault(key, [None, None])
            is_change = value is not None or held[side] is not None
            before = result(how, *held)
            held[side] = value
            after = result(how, *held)
            if is_change and (after is not None or before is not None):
                expected.setdefault(key, []).append(after)
            if number % 100 == 50:
                driver.crash(keep_disk=keep_disk, settle=False)
        driver.settle()
        found: dict[str, list[Any]] = {}
        for one in driver.outputs(joined.out):
            found.setdefault(one.key, []).append(one.value)
        assert found == expected
        assert len(expected) == 4


def test_an_update_that_comes_too_late_changes_no_result() -> None:
    joined = Joined("left", history=timedelta(hours=1))
    with ActorTestDriver(joined.app) as driver:
        for value, at in ((1, 100), (2, 50), (3, 100), (None, 200), (4, 150)):
            driver.send(joined.left.topic, key="a", value=value, timestamp_ms=NOON_MS + at)
        assert [one.value for one in driver.outputs(joined.out)] == [[1, None], [3, None], None]


def test_a_handler_that_fails_leaves_the_row_as_it_was() -> None:
    app = App("joined", broker="kafka://127.0.0.1:1")
    left, right = (app.table(app.topic(name, key_type=str, value_type=int)) for name in ("left", "right"))

    @app.join(left, right, how="outer", on_error="skip")
    async def both(ctx: Context, of_left: int | None, of_right: int | None) -> None:
        if of_left == 13:
            raise ValueError("unlucky")

    with ActorTestDriver(app) as driver:
        driver.send(left.topic, key="a", value=12)
        driver.send(left.topic, key="a", value=13)
        assert driver.items(left) == {"a": 12}


def test_a_join_is_an_actor_with_its_options() -> None:
    app = App("joined", broker="kafka://127.0.0.1:1")
    left, right = (app.table(app.topic(name, key_type=str, value_type=int)) for name in ("left", "right"))
    sums = app.store("sums", value_type=int)

    @app.join(left, right, name="sum", stores=[sums])
    def add(ctx: Context, of_left: int | None, of_right: int | None) -> None:
        sums.set(ctx.key, (of_left or 0) + (of_right or 0))

    @app.query(add)
    def sum_of(ctx: Context) -> int | None:
        return sums.get(ctx.key)

    with ActorTestDriver(app) as driver:
        driver.send(left.topic, key="a", value=1)
        assert driver.items(sums) == {}
        driver.send(right.topic, key="a", value=2)
        assert driver.query(add, "sum_of", "a") == 3
    assert list(app.actors) == ["sum"]


def two(app: App) -> list[Any]:
    return [app.table(app.topic(name, key_type=str, value_type=int)) for name in ("left", "right")]


@pytest.mark.parametrize(
    ("join", "text"),
    [
        (lambda app, left, right: app.join(left, right, how="full"), "how='full': it is one of inner, left, outer"),
        (lambda app, left, right: app.join(left, left), "both sides are table left: join two tables"),
        (lambda app, left, right: app.join(left, right.topic), "or two tables of app.table"),
        (lambda app, left, right: app.join(left, right, retries=3)(handler), "there is no argument 'retries'"),
        (lambda app, left, right: app.join(left, right)(lambda ctx, value: None), "can't be called with 3 arguments"),
    ],
)
def test_joins_that_cant_be_meant(join: Any, text: str) -> None:
    app = App("joined", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=text):
        join(app, *two(app))


async def handler(ctx: Context, left: int | None, right: int | None) -> None:
    pass


def test_a_failing_join_names_the_record() -> None:
    app = App("joined", broker="kafka://127.0.0.1:1")
    left, right = two(app)

    @app.join(left, right, how="outer")
    async def both(ctx: Context, of_left: int | None, of_right: int | None) -> None:
        raise ValueError("no")

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"right\[\d\] offset 0"):
        driver.send(right.topic, key="a", value=1)
