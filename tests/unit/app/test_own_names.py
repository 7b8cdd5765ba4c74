"""Names that are one app's alone, and a program which keeps something else in a store than was kept there."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors import App, ConfigurationError, Context, Every, OnError, Session, Tumbling, aggregates
from actors._faust.setup import Setup
from actors._faust.startup.registry import StoreRegistry
from actors._kafka.admin.owners import KafkaOwners
from actors.declare.host import changelog_topic
from actors.declare.names import (
    check_app_id,
    dead_letter_topic,
    own_prefix,
    owners_topic,
    repartition_topic,
    reply_topic,
)
from spark_replay.sources.changelog import store_of
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

NAMES = st.text("ab.-", min_size=1, max_size=8)


def owner_of(topic: str) -> str:
    """Return the app that a changelog or a repartition topic is of, by its name alone."""
    return topic.partition("--")[0]


@given(app_id=NAMES, name=NAMES, other=NAMES)
@example(app_id="a", name="-b", other="c")
@example(app_id="a-b", name="c", other="c")
def test_the_name_of_a_changelog_or_repartition_topic_has_its_app(app_id: str, name: str, other: str) -> None:
    try:
        check_app_id(app_id)
    except ConfigurationError:
        return
    app: Any = SimpleNamespace(
        app_id=app_id, conf=SimpleNamespace(id=app_id), actor_options=SimpleNamespace(changelogs={}), renamed_stores={}
    )
    changelog = changelog_topic(app, name)
    assert owner_of(changelog) == owner_of(repartition_topic(app_id, name, other)) == app_id
    assert store_of(changelog, app_id) == name
    own = [topic(app_id) for topic in (owners_topic, dead_letter_topic, reply_topic)]
    assert len({changelog, repartition_topic(app_id, name, other), *own}) == 5
    assert not any(topic.startswith(own_prefix(app_id)) for topic in own)


@pytest.mark.parametrize("app_id", ["", "my shop", "caf\u00e9", "shop\n", "eu/shop", "shop:eu", "\uff41"])
def test_an_id_that_no_topic_can_have_in_its_name_is_refused(app_id: str) -> None:
    with pytest.raises(
        ConfigurationError, match="an app's id: it has letters, digits, dots, underscores and dashes only"
    ):
        App(app_id, broker="kafka://127.0.0.1:1")


@pytest.mark.parametrize(
    ("app_id", "instead"),
    [("a--b", "a-b"), ("a-", "a"), ("a---b--", "a-b"), ("a-actors", "a"), ("a-actors-", "a"), ("--", "app")],
)
def test_an_id_that_could_make_the_names_of_another_app_is_refused(app_id: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"App\('{app_id}'\): .* Write App\('{instead}'\)"):
        App(app_id, broker=URL)


def test_an_actor_that_reads_its_apps_dead_letters_sends_none() -> None:
    app = App("shop", broker=URL)

    async def bury(ctx: Context, letter: bytes) -> None:
        """Bury nothing."""

    letters = app.topic("shop-dead-letters", key_type=bytes, value_type=bytes)
    with pytest.raises(ConfigurationError, match="skipped messages go to topic shop-dead-letters, and the actor"):
        app.actor(letters, on_error=OnError(then="skip", dead_letters=True))(bury)
    app.actor(letters, name="other", on_error="skip")(bury)


def test_two_actors_of_an_app_that_come_to_one_repartition_topic_are_refused() -> None:
    app = App("shop", broker=URL)

    async def count(ctx: Context, sale: dict[str, Any]) -> None:
        """Count nothing."""

    app.actor(app.topic("b-c", key_type=str, value_type=dict), by="shop", name="a")(count)
    with pytest.raises(ConfigurationError, match="topic shop--a-b-c-repartition is the input of actor a"):
        app.actor(app.topic("c", key_type=str, value_type=dict), by="shop", name="a-b")(count)


@pytest.mark.parametrize(("name", "other"), [("a.b", "a_b"), ("a_b.c", "a.b_c")])
def test_stores_and_topics_that_brokers_take_for_one_are_refused(name: str, other: str) -> None:
    app = App("shop", broker=URL)
    app.store(name)
    with pytest.raises(ConfigurationError, match=f"store {other}: the app has {name} too, and Kafka doesn't make"):
        app.window_store(other, MINUTE)
    app.topic(name)
    app.topic(name)
    with pytest.raises(ConfigurationError, match=f"topic {other}: the app has {name} too"):
        app.topic(other)


def test_topics_of_actors_and_tables_that_brokers_take_for_one_are_refused() -> None:
    app = App("shop", broker=URL)

    async def count(ctx: Context, sale: dict[str, Any]) -> None:
        """Count nothing."""

    sales = app.topic("sales", key_type=str, value_type=dict)
    app.actor(sales, by="shop", name="a.b")(count)
    with pytest.raises(ConfigurationError, match=r"topic shop--a_b-.*: the app has shop--a\.b-sales"):
        app.actor(sales, by="town", name="a_b")(count)
    app.actor(app.topic("in"), name="x.y", timers=True)(count)
    with pytest.raises(ConfigurationError, match=r"store x_y-timers: the app has x\.y-timers too"):
        app.actor(app.topic("other"), name="x_y", timers=True)(count)


async def test_a_topic_that_brokers_take_for_a_changelog_is_refused_at_the_start(brokers: Any) -> None:
    app = App("shop", broker=URL)
    held = app.store("a.b")

    @app.actor(app.topic("in"), stores=[held])
    async def count(ctx: Context, sale: dict[str, Any]) -> None:
        """Count nothing."""

    app.topic("shop--a_b-changelog")
    with pytest.raises(ConfigurationError, match="only in dots and underscores, and Kafka doesn't make both"):
        await start_of(brokers, app).check()


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
