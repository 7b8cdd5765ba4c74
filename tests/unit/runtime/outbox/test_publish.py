"""Read-model topics: what readers find there is what was committed, in the topic's own bytes."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import ClassVar

import msgspec
import pytest

from actors import (
    Actor,
    App,
    ConfigurationError,
    Context,
    HandlerFailedError,
    OnError,
    ReadOnlyQueryError,
    RecordTooLargeError,
    UsageError,
    receive,
)
from actors._core.partitioner import partition_for
from actors._faust.setup import Setup
from actors.admin import backfill
from actors.declare.publishing import publication
from actors.ports import Output, TopicPartition
from actors.replay.replay import Replayer
from actors.runtime.handlers.query_methods import Query, QueryTarget
from actors.runtime.message.outputs import OutputTopic
from actors.testing import ActorTestDriver
from stores._core.overlay import MessageScope
from stores.memory import MemoryStore


class Order(msgspec.Struct):
    things: int


def order_app(name: str = "orders", **options):
    """An app whose messages are calls of `then(ctx, store, value)`."""
    app = App(name)
    source = app.topic("in", key_type=str, value_type=str)
    readers = app.topic("readers", key_type=str, value_type=Order, value_serializer="json|binary")
    orders = app.store(
        "orders",
        key_type=str,
        value_type=Order,
        publish=readers,
        **{
            key: value
            for key, value in options.items()
            if key in ("ttl", "expires", "on_expire", "version", "upgrades")
        },
    )

    async def handle(ctx: Context, value: str) -> None:
        what, _, number = value.partition(" ")
        if what == "delete":
            orders.delete(ctx.key)
        else:
            orders.set(ctx.key, Order(int(number)))
        if what == "twice":
            orders.set(ctx.key, Order(int(number) + 1))
        if what == "wait":
            await asyncio.sleep(1)
        if what == "fail":
            raise ValueError("after it wrote")

    more = {key: value for key, value in options.items() if key in ("on_error", "concurrency")}
    app.actor(source, stores=[orders], name="handle", **more)(handle)
    return app, source, readers, orders


def rows(driver: ActorTestDriver, topic) -> list[tuple[str, int | None]]:
    return [(sent.key, None if sent.value is None else sent.value.things) for sent in driver.outputs(topic)]


def test_readers_find_each_commits_last_values_as_the_topic_declares_them():
    app, source, readers, orders = order_app()
    with ActorTestDriver(app, partitions=3) as driver:
        for value in ("set 1", "set 2"):
            driver.send(source, key="ada", value=value)
        driver.send(source, key="bob", value="set 7")
        driver.send(source, key="bob", value="delete")
        sent = driver.outputs(readers)
        assert sorted(((one.key, one.value and one.value.things) for one in sent), key=str) == [
            ("ada", 1),
            ("ada", 2),
            ("bob", 7),
            ("bob", None),
        ]
        assert all(one.headers == [] for one in sent)
        assert all(one.partition == partition_for(one.key.encode(), 3) for one in sent)
        driver.send(source, key="ada", value="twice 3")
        assert rows(driver, readers) == [("ada", 4)]
        assert driver.items(orders) == {"ada": Order(4)}


def test_a_killed_worker_leaves_readers_with_the_changelogs_state():
    app, source, readers, orders = order_app()
    with ActorTestDriver(app, partitions=2) as driver:
        for number in range(40):
            driver.post(source, key=f"k{number % 7}", value="delete" if number % 5 == 4 else f"set {number}")
            if number % 8 == 3:
                driver.advance(0.003, settle=False)
                driver.crash(keep_disk=number % 16 == 3)
        driver.settle()
        published, logged = driver.outputs(readers), driver.changelog(orders)
        found = {sent.key: None if sent.value is None else sent.value.things for sent in published}
        assert found == {sent.key: None if sent.value is None else sent.value.things for sent in logged}
        assert len(published) == len(logged)


def test_what_a_failed_message_wrote_isnt_published():
    app, source, readers, _ = order_app(on_error=OnError(then="skip", retries=0))
    with ActorTestDriver(app) as driver:
        driver.send(source, key="ada", value="fail 1")
        driver.send(source, key="ada", value="set 2")
        assert rows(driver, readers) == [("ada", 2)]


def test_keys_that_are_handled_side_by_side_are_published():
    app, source, readers, _ = order_app(concurrency=5)
    with ActorTestDriver(app) as driver:
        for number in range(10):
            driver.post(source, key=f"k{number % 5}", value=f"wait {number}")
        driver.settle()
        assert dict(rows(driver, readers)) == {f"k{number - 5}": number for number in range(5, 10)}


def test_an_expired_key_is_removed_for_readers_when_its_changelog_gets_the_tombstone():
    app, source, readers, orders = order_app(ttl=timedelta(seconds=10))
    with ActorTestDriver(app) as driver:
        driver.send(source, key="ada", value="set 1")
        driver.advance(8)
        assert rows(driver, readers) == [("ada", 1)]
        driver.advance(60)
        assert rows(driver, readers) == [("ada", None)]
        assert [sent.value for sent in driver.changelog(orders)][-1] is None


def test_a_record_that_the_topic_doesnt_take_is_the_handlers_error_and_leaves_nothing():
    app = App("large")
    source = app.topic("in", key_type=str, value_type=str)
    readers = app.topic("readers", key_type=str, value_type=str, value_serializer="json")
    texts = app.store("texts", key_type=str, value_type=str, publish=readers)
    caught: list[Exception] = []

    @app.actor(source, stores=[texts])
    async def keep(ctx: Context, value: str) -> None:
        length = abs(int(value))
        try:
            # A quote takes two bytes in JSON: it fits into the changelog, and not into the topic.
            texts.set(ctx.key, '"' * length)
        except RecordTooLargeError as error:
            caught.append(error)
            if value.startswith("+"):
                raise

    with ActorTestDriver(app) as driver:
        driver.send(source, key="ada", value="-600000")
        assert "topic readers, to which store texts is published" in str(caught[0])
        assert (driver.outputs(readers), driver.changelog(texts)) == ([], [])
        driver.send(source, key="ada", value="1")
        assert [sent.value for sent in driver.outputs(readers)] == ['"']
        with pytest.raises(HandlerFailedError) as failed:
            driver.send(source, key="ada", value="+600000")
        assert isinstance(failed.value.__cause__, RecordTooLargeError)
        assert driver.outputs(readers) == []
        assert driver.items(texts) == {"ada": '"'}


def test_a_value_that_isnt_what_the_topic_declares_is_told_at_once():
    app = App("other-types")
    source = app.topic("in", key_type=str, value_type=str)
    readers = app.topic("readers", key_type=str, value_type=int)
    texts = app.store("texts", key_type=str, value_type=str, publish=readers)

    @app.actor(source, stores=[texts])
    async def keep(ctx: Context, value: str) -> None:
        texts.set(ctx.key, value)

    with (
        ActorTestDriver(app) as driver,
        pytest.raises(HandlerFailedError, match="published to topic readers") as failed,
    ):
        driver.send(source, key="ada", value="no number")
    assert isinstance(failed.value.__cause__, UsageError)


def test_a_key_that_could_never_be_published_can_still_be_deleted(caplog: pytest.LogCaptureFixture):
    def version(is_published: bool):
        app = App("later")
        source = app.topic("in", key_type=bytes, value_type=str)
        readers = app.topic("readers", key_type=str, value_type=str)
        texts = app.store("texts", key_type=bytes, value_type=str, publish=readers if is_published else None)

        @app.actor(source, stores=[texts])
        async def keep(ctx: Context, value: str) -> None:
            if value == "delete":
                texts.delete(ctx.key)
            else:
                texts.set(ctx.key, value)

        return app, source, readers, texts

    before, source, readers, _ = version(is_published=False)
    with ActorTestDriver(before) as driver:
        driver.send(source, key=b"\xff", value="there before")
        app, source, readers, texts = version(is_published=True)
        driver.restart(app)
        driver.send(source, key=b"\xff", value="delete")
        assert (driver.items(texts), driver.outputs(readers)) == ({}, [])
    assert "was never published" in caplog.text


class Deposit(msgspec.Struct, tag="deposit"):
    cents: int


class Close(msgspec.Struct, tag="close"):
    pass


class Balance(msgspec.Struct):
    cents: int = 0


def bank(publish_type=Balance):
    app = App("bank")
    balances = app.topic("balances", key_type=str, value_type=publish_type)

    @app.actor(app.topic("accounts", key_type=str), publish=balances)
    class Account(Actor[Balance]):
        state_version = 2
        state_upgrades: ClassVar = {1: lambda old: {"cents": old["amount"] * 100}}

        @receive
        async def deposit(self, message: Deposit) -> None:
            self.state.cents += message.cents

        @receive
        async def close(self, _: Close) -> None:
            self.forget()

    return app, balances, Account


def test_a_class_actors_states_are_published_without_their_version():
    app, balances, account = bank()
    with ActorTestDriver(app) as driver:
        driver.tell(account, "ada", Deposit(5))
        driver.tell(account, "ada", Deposit(6))
        driver.tell(account, "ada", Close())
        assert [sent.value for sent in driver.outputs(balances)] == [Balance(5), Balance(11), None]


def test_a_view_of_the_topic_follows_the_store():
    app, balances, account = bank()
    view = app.view(balances)
    with ActorTestDriver(app, partitions=2) as driver:
        driver.tell(account, "ada", Deposit(5))
        driver.tell(account, "bob", Deposit(1))
        assert dict(view.items()) == {"ada": Balance(5), "bob": Balance(1)}
        driver.tell(account, "ada", Close())
        assert dict(view.items()) == {"bob": Balance(1)}


def test_bytes_are_converted_only_where_they_differ():
    app = App("bytes")
    topic = OutputTopic("t", bytes, bytes, 1_000)
    same = app.store("same", key_type=str, value_type=Order, publish=app.topic("a", key_type=str, value_type=Order))
    other = app.store(
        "other",
        key_type=bytes,
        value_type=Order,
        publish=app.topic("b", key_type=str, value_type=Order, value_serializer="json|binary"),
    )
    newer = app.store(
        "newer",
        key_type=str,
        value_type=Order,
        version=2,
        upgrades={1: dict},
        publish=app.topic("c", key_type=str, value_type=Order),
    )
    assert (publication(same, topic).convert_key, publication(same, topic).convert_value) == (None, None)
    assert publication(newer, topic).convert_value is not None
    found = publication(other, topic)
    assert found.convert_key is not None
    assert found.convert_value(other.encode_value(Order(3))) == base64.b64encode(b'{"things":3}')


def test_a_replay_makes_the_same_state():
    app, source, _, orders = order_app()
    with ActorTestDriver(app, partitions=1) as driver:
        for value in ("set 1", "set 2"):
            driver.send(source, key="ada", value=value)
        records = driver._cluster.fetch(TopicPartition("in", 0), 0, 100)[0]
    found = list(Replayer.of(app, "handle").run(0, [(0, record) for record in records], partition_count=1))
    assert [(one.kind, one.key, one.value) for one in found if one.kind == "state"] == [
        ("state", b"ada", orders.encode_value(Order(2)))
    ]


def test_a_query_may_not_write_to_a_published_store():
    orders = order_app()[3]
    asked = QueryTarget("handle", TopicPartition("in", 0), 1, "ada", b"ada", 0, {orders: MemoryStore()})
    for write in (lambda ctx: orders.set("ada", Order(1)), lambda ctx: orders.delete("ada")):
        with pytest.raises(ReadOnlyQueryError, match=r"it (writes|deletes)"):
            asked.answer(Query.of("q", write, "query q"), {})


# --- what is refused ------------------------------------------------------------------------------------------------


def test_only_a_topic_of_the_app_can_be_published_to():
    app = App("refused")
    with pytest.raises(ConfigurationError, match=r"has to be a topic of app\.topic"):
        app.store("a", publish="readers")
    with pytest.raises(ConfigurationError, match="placement"):
        app.store("b", placement="task", publish=app.topic("readers"))
    elsewhere = App("elsewhere").topic("readers")
    store = app.store("c", publish=elsewhere)
    app.actor(app.topic("in"), stores=[store], name="x")(_nothing)
    with pytest.raises(ConfigurationError, match="own app"), ActorTestDriver(app):
        pass


def test_faust_would_make_the_topic_as_it_has_to_be():
    app = App("agents")
    topics = [app.topic("a"), app.topic("b", compacting=False)]
    for number, topic in enumerate(topics):
        app.store(f"s{number}", publish=topic)
    assert [topic.compacting for topic in topics] == [True, False]


def test_an_actor_without_a_state_has_nothing_to_publish():
    app = App("no-state")
    with pytest.raises(ConfigurationError, match="has none"):
        app.actor(app.topic("in"), name="x", publish=app.topic("readers"))(_nothing)

    class Silent(Actor[None]):
        @receive
        async def see(self, value: int) -> None:
            pass

    with pytest.raises(ConfigurationError, match="has none"):
        app.actor(app.topic("in"), publish=app.topic("readers"))(Silent)


async def _nothing(ctx: Context, value: object) -> None:
    pass


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("in", "the input of actor x"),
        ("taken--one-changelog", "the changelog of store one"),
        ("taken--two-changelog", "the changelog of store two"),
        ("taken-actors-owners", "the leader registry"),
        ("taken-dead-letters", "where dead letters go"),
        ("taken-replies", "where answers go"),
        ("second", "store two is published there"),
    ],
)
def test_a_topic_in_which_there_is_something_else_is_refused(topic: str, why: str):
    app = App("taken")
    two = app.store("two", publish=app.topic("second"))
    one = app.store("one", publish=app.topic(topic))
    app.actor(app.topic("in"), stores=[two, one], name="x")(_nothing)
    with pytest.raises(ConfigurationError, match=why), ActorTestDriver(app):
        pass


def test_handlers_cant_send_to_it():
    app, _, readers, _ = order_app("sender")
    other = app.topic("other-in", key_type=str, value_type=str)

    @app.actor(other)
    async def forge(ctx: Context, value: str) -> None:
        ctx.send("readers" if value == "name" else readers, key=ctx.key, value=Order(1))

    for value in ("name", "topic"):
        with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError) as failed:
            driver.send(other, key="ada", value=value)
        assert "store orders is published to topic readers" in str(failed.value.__cause__)


def test_apps_without_published_stores_pay_nothing():
    app = App("plain")
    store = app.store("plain")
    assert type(store).__name__ == "Store"
    fields = {"epoch", "input", "now_ms", "source_offset", "undo"}
    assert {name for name in dir(MessageScope()) if name[0] != "_"} == fields | {"release", "rollback"}
    assert Setup(app).plain() == {}


def test_a_backfills_transactions_are_bounded_by_keys_and_by_bytes(monkeypatch: pytest.MonkeyPatch):
    small = [Output("readers", 0, b"k%d" % number, b"v", [], None) for number in range(7)]
    large = [Output("readers", 0, b"k", b"x" * size, [], None) for size in (400_000, 400_000, 2_000_000, 10, 400_000)]
    monkeypatch.setattr(backfill, "CHUNK_RECORDS", 3)
    assert [len(chunk) for chunk in backfill.chunks(small, 1_000_000)] == [3, 3, 1]
    assert list(backfill.chunks(large, 1_000_000)) == [large[:2], large[2:3], large[3:]]
    assert list(backfill.chunks([], 1_000_000)) == []
