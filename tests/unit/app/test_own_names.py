"""A program whose names make those of another app, or which keeps something else in a store than was kept there."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import App, ConfigurationError, Context, Every, Session, Tumbling, aggregates
from actors._faust.setup import Setup
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.owners import KafkaOwners
from tests.unit.app.test_registry import Brokers, brokers

__all__ = ["brokers"]
URL = "kafka://127.0.0.1:1"
MINUTE = Tumbling(minutes=1)
DAY = Tumbling(days=1)
SESSION = Session(timedelta(seconds=1))


def start_of(brokers: Any, app: App) -> StoreRegistry:
    """Return the start of a worker of an app, whose topics are there."""
    setup: Any = Setup(app)
    brokers.make(setup.owners_topic)
    for definition in app.actors.values():
        for topic in definition.topic_names:
            brokers.make(topic)
    owners, clock = KafkaOwners(setup.owners_topic, brokers), SimpleNamespace(wall_ms=lambda: 5)
    return StoreRegistry(setup, brokers, brokers, owners, clock)  # type: ignore[arg-type]


# --- topics that apps make -------------------------------------------------------------------------------------------


def counting(name: str, actor: str) -> App:
    """Return an app that reads sales by shop."""
    app = App(name, broker=URL)
    sales = app.topic("sales", key_type=str, value_type=dict)
    counts = app.store(f"{name}-counts", value_type=int)

    @app.actor(sales, by="shop", stores=[counts], name=actor)
    async def count(ctx: Context, sale: dict[str, Any]) -> None:
        """Count nothing."""

    return app


def took_over(brokers: Brokers, app: App) -> None:
    """Write what a takeover of each of the app's tasks leaves in the registry."""
    for definition in app.actors.values():
        topic = brokers.topics[definition.topic_name]
        owner = {"actor": definition.name, "partition": 0, "epoch": 1, "worker": "w", "address": "", "at_ms": 1}
        record = {**owner, "topic": topic.name, "topic_id": str(topic.topic_id)}
        brokers.append(f"{app.conf.id}-actors-owners", f"{definition.name}/0".encode(), msgspec.json.encode(record))


@pytest.mark.parametrize("order", [("shop", "shop-eu"), ("shop-eu", "shop")])
async def test_two_apps_do_not_share_a_topic_that_both_make(brokers: Brokers, order: tuple[str, str]) -> None:
    actors = {"shop": "eu-count", "shop-eu": "count"}
    first, second = (counting(name, actors[name]) for name in order)
    shared = "shop-eu-count-sales-repartition"
    assert all(shared in app.actors[actors[str(app.conf.id)]].topic_names for app in (first, second))
    await brokers.start(start_of(brokers, first))
    took_over(brokers, first)
    before = list(brokers.records[f"{order[1]}-actors-owners"]) if f"{order[1]}-actors-owners" in brokers.topics else []
    refused = rf"topic {shared} is what actor {actors[order[1]]} of app {order[1]} .* of app {order[0]} too"
    with pytest.raises(ConfigurationError, match=refused):
        await brokers.start(start_of(brokers, second))
    assert brokers.records[f"{order[1]}-actors-owners"] == before, "it claims nothing"
    # Whose it is starts again, and the other one with another name.
    await brokers.start(start_of(brokers, first))
    await brokers.start(start_of(brokers, counting(order[1], "counter")))
    # A topic that was made again is another one.
    brokers.topics[shared] = dataclasses.replace(brokers.topics[shared], topic_id=brokers.make("another").topic_id)
    await brokers.start(start_of(brokers, counting(order[1], actors[order[1]])))


# --- what stores hold ------------------------------------------------------------------------------------------------


class Small(msgspec.Struct):
    a: int = 0


class Other(msgspec.Struct):
    b: int = 0


def with_windows(kind: Any = MINUTE, **options: Any) -> App:
    app = App("shop", broker=URL)
    held = app.window_store("held", kind, **options)

    @app.actor(app.topic("sales", key_type=str, value_type=int), stores=[held], name="count")
    async def count(ctx: Context, cents: int) -> None:
        """Count nothing."""

    return app


def with_values(**options: Any) -> App:
    app = App("shop", broker=URL)

    @app.actor(app.topic("sales", key_type=str, value_type=int), stores=[app.store("held", **options)], name="count")
    async def count(ctx: Context, cents: int) -> None:
        """Count nothing."""

    return app


def with_a_table() -> App:
    app = App("shop", broker=URL)
    sales = app.topic("sales", key_type=str, value_type=int)

    @app.actor(sales, stores=[app.table(app.topic("held", key_type=str, value_type=int))], name="count")
    async def count(ctx: Context, cents: int) -> None:
        """Count nothing."""

    return app


def with_a_join(**within: float) -> App:
    app = App("shop", broker=URL)
    sales, others = (app.topic(name, key_type=str, value_type=int) for name in ("sales", "others"))
    options: Any = {"within": timedelta(**(within or {"seconds": 1})), "name": "held"}

    @app.join(sales, others, **options)
    async def paired(ctx: Context, one: int, other: int) -> None:
        """Do nothing."""

    return app


def own() -> aggregates.Aggregate[Any]:
    return aggregates.Aggregate(0, lambda state, value: state + value, lambda one, two: one + two)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            with_values(),
            with_windows(aggregate=aggregates.sum()),
            "has values, .* windows of Tumbling.* of the aggregate sum",
        ),
        (
            with_windows(aggregate=aggregates.sum()),
            with_values(),
            "has windows of Tumbling.* of the aggregate sum, .* keep values",
        ),
        (with_values(), with_a_table(), "has values, .* rows of a table"),
        (with_values(), with_values(aggregate=aggregates.sum()), "has values, .* keep values of the aggregate sum"),
        (
            with_values(aggregate=aggregates.sum()),
            with_values(),
            "values of the aggregate sum, .* keep values there",
        ),
        (with_values(aggregate=aggregates.sum()), with_values(aggregate=aggregates.count()), "sum, .* aggregate count"),
        (with_values(aggregate=aggregates.sum()), with_windows(aggregate=aggregates.sum()), "values of .* windows of"),
        (with_values(aggregate=own()), with_values(), "has values of an aggregate, .* keep values there"),
        (
            with_values(aggregate=own()),
            with_windows(aggregate=own()),
            "has values of an .* keep windows of Tumbling.* of an",
        ),
        (
            with_values(aggregate=aggregates.max(Small)),
            with_values(aggregate=aggregates.max(Other)),
            "Undo the change of the type, or give the store another name",
        ),
        (with_a_table(), with_windows(value_type=int), "has rows of a table, .* windows of Tumbling.* there"),
        (with_windows(aggregate=aggregates.sum()), with_windows(aggregate=aggregates.max()), "sum, .* aggregate max"),
        (with_windows(aggregate=aggregates.count()), with_windows(aggregate=aggregates.sum()), "count, .* sum"),
        (
            with_windows(value_type=int),
            with_windows(aggregate=aggregates.sum()),
            "has windows of Tumbling.*, .* aggregate sum",
        ),
        (with_windows(aggregate=own()), with_values(), "has windows of Tumbling.* of an aggregate, .* values"),
        (with_a_join(), with_a_join(hours=1), "within 0:00:01, .* within 1:00:00 there: .*the join, an"),
        (with_windows(value_type=int), with_windows(DAY, value_type=int), "windows of T.* windows of Tumbling.1 day"),
        (
            with_windows(SESSION, aggregate=own()),
            with_windows(SESSION, aggregate=aggregates.sum(), retention=timedelta(days=9)),
            "windows of Session.* windows of Session",
        ),
        (with_windows(value_type=Small), with_windows(value_type=Other), "type, or give the store another name"),
        (
            with_windows(aggregate=aggregates.max(Small)),
            with_windows(aggregate=aggregates.max(Other)),
            "type, or give the store another name",
        ),
    ],
)
async def test_rows_are_not_taken_for_what_they_are_not(brokers: Brokers, before: App, after: App, text: str) -> None:
    await brokers.start(start_of(brokers, before))
    with pytest.raises(ConfigurationError, match=f"store held: .*{text}"):
        await brokers.start(start_of(brokers, after))
    await brokers.start(start_of(brokers, before))
    # Records of an earlier release don't say what the rows are.
    (written,) = [one for one in brokers.records["shop-actors-owners"] if one.key == b"store:held"][-1:]
    old = {**msgspec.json.decode(written.value), "contents": "", "shapes": []}
    brokers.append("shop-actors-owners", b"store:held", msgspec.json.encode(old))
    await brokers.start(start_of(brokers, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_windows(aggregate=aggregates.sum()), with_windows(aggregate=own())),
        (with_values(aggregate=aggregates.sum()), with_values(aggregate=own())),
        (with_values(aggregate=own()), with_values(aggregate=aggregates.sum())),
        (with_windows(aggregate=own()), with_windows(aggregate=aggregates.sum())),
        (with_windows(aggregate=aggregates.top_n(3)), with_windows(aggregate=aggregates.top_n(5))),
        (with_windows(aggregate=aggregates.top_n(3)), with_windows(aggregate=aggregates.top_n(3, value_type=Small))),
        (with_windows(aggregate=aggregates.max()), with_windows(aggregate=aggregates.max(Small))),
        (
            with_windows(aggregate=aggregates.sum()),
            with_windows(aggregate=aggregates.sum(), emit=Every(seconds=1), grace=timedelta(seconds=5)),
        ),
        (
            with_windows(Session(timedelta(seconds=1)), aggregate=aggregates.mean()),
            with_windows(Session(timedelta(seconds=1)), aggregate=aggregates.mean()),
        ),
        (with_a_join(), with_a_join()),
        (with_a_table(), with_a_table()),
    ],
)
async def test_what_may_change_starts(brokers: Brokers, before: App, after: App) -> None:
    await brokers.start(start_of(brokers, before))
    await brokers.start(start_of(brokers, after))
