"""Topics whose writers are declared: `app.topic(..., writers=[...])`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, Session, Sliding, Tumbling, UsageError, Window, aggregates
from actors._core.windows.kinds import Windows
from actors.errors import ActorsError, ConfigurationError, HandlerFailedError
from actors.testing import ActorTestDriver


class World:
    """Counts sales; `per_minute` has the actor `count` as its writer."""

    def __init__(self, writers: Any = ("count",)) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.windows: list[tuple[Window, int]] = []
        self.sales = self.topic("sales")
        self.per_minute = self.topic("per-minute", writers=writers)
        self.actor("count", self.sales)

    def topic(self, name: str, **options: Any) -> Any:
        return self.app.topic(name, key_type=str, value_type=int, **options)

    def actor(self, name: str, topic: Any, target: Any = None, *, kind: Windows | None = None) -> Any:
        windows = Tumbling(minutes=1) if kind is None else kind
        store = self.app.window_store(f"{name}-minutes", windows, aggregate=aggregates.sum())

        @self.app.actor(topic, stores=[store], name=name)
        async def add(ctx: Context, value: int) -> None:
            store.add(ctx.key, value)
            if target is not None:
                ctx.send(target, key=ctx.key, value=value)
            self.windows = list(store.fetch(ctx.key))

        return store

    def start(self) -> None:
        with ActorTestDriver(self.app) as driver:
            driver.send(self.sales, key="berlin", value=1)


def _to_no_actor() -> None:
    World(["cuont"]).start()


def _in_a_circle() -> None:
    world = World(["count", "again"])
    world.actor("again", world.per_minute, world.per_minute)
    world.start()


def _from_another_actor() -> None:
    world = World()
    orders = world.topic("orders")
    world.actor("other", orders, world.per_minute)
    with ActorTestDriver(world.app) as driver:
        driver.send(orders, key="berlin", value=1)


def _from_outside() -> None:
    asyncio.run(World().per_minute.send(key="berlin", value=1))


def _soon_from_outside() -> None:
    World().topic("per-minute").send_soon(key="berlin", value=1)


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        (lambda: World("count"), ConfigurationError, r"topic per-minute: writers= is a list of actors"),
        (lambda: World(World.start), ConfigurationError, r"topic per-minute: writers= is a list of actors"),
        (lambda: World([]), ConfigurationError, r"topic per-minute: writers= is a list of actors"),
        (lambda: World().topic("per-minute", writers=["other"]), ConfigurationError, "two lists of writers="),
        (lambda: World().topic("x", writers=["count"], timestamp=int), ConfigurationError, "exclude each other"),
        (_to_no_actor, ConfigurationError, r"topic per-minute: writers=: 'cuont' is no actor of this app.* count"),
        (_in_a_circle, ConfigurationError, "actor again is downstream of itself"),
        (_from_another_actor, HandlerFailedError, "actor other isn't a writer of topic per-minute.* writers= count"),
        (_from_outside, UsageError, "topic per-minute is declared with writers= count: .*alone"),
        (_soon_from_outside, UsageError, "topic per-minute is declared with writers= count: .*alone"),
    ],
)
def test_a_mistake_is_named(mistake: Callable[[], Any], error: type[ActorsError], text: str) -> None:
    with pytest.raises(error, match=text):
        mistake()


@pytest.mark.parametrize(
    "kind", [Tumbling(minutes=1), Session(timedelta(minutes=1)), Sliding(timedelta(minutes=1))], ids=repr
)
def test_windows_are_read_before_a_writer_has_told_its_time(kind: Windows) -> None:
    world = World()
    store = world.actor("second", world.per_minute, kind=kind)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.per_minute, key="berlin", value=5)
        windows = driver.windows(store, "berlin")
        assert (list(windows.values()), world.windows) == ([5], list(windows.items()))


def test_nothing_is_sent_to_a_changelog() -> None:
    app, errors = App("shop", broker="kafka://127.0.0.1:1"), list[Exception]()
    sales = app.topic("sales", key_type=str, value_type=int)
    totals = app.store("totals", key_type=str, value_type=int)
    changelog = app.topic("shop--totals-changelog", key_type=str, value_type=int)

    @app.actor(sales, stores=[totals])
    async def add(ctx: Context, value: int) -> None:
        totals.set(ctx.key, value)
        for topic in (changelog, "shop--totals-changelog"):
            with pytest.raises(UsageError, match="is the changelog of store totals: write to the store") as refused:
                ctx.send(topic, key=ctx.key, value=666)
            errors.append(refused.value)

    with ActorTestDriver(app) as driver:
        driver.send(sales, key="berlin", value=1)
        driver.crash(keep_disk=False)
        assert driver.items(totals) == {"berlin": 1}
    assert len(errors) == 2
    with pytest.raises(UsageError, match="is the changelog of store totals"):
        asyncio.run(changelog.send(key="berlin", value=666))
