"""Null values as messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, UndecodableRecordError, receive
from actors.ports import TopicPartition
from actors.replay.replay import Replayer
from actors.testing import ActorTestDriver


class Put(msgspec.Struct, tag="put"):
    value: int


class Add(msgspec.Struct, tag="add"):
    value: int


class Plain(msgspec.Struct):
    value: int


class Other(msgspec.Struct):
    value: int


class State(msgspec.Struct):
    value: int = 0


def an_app() -> App:
    return App("shop", broker="kafka://127.0.0.1:1")


def by_option(app: App) -> tuple[Any, Any]:
    topic = app.topic("in", key_type=str, value_type=Put)

    def handle(ctx: Context, message: Any) -> Any:
        return message

    return topic, (handle, {"tombstones": True})


def by_topic(app: App) -> tuple[Any, Any]:
    topic = app.topic("in", key_type=str, value_type=Put | Add | None)

    def handle(ctx: Context, message: Any) -> Any:
        return message

    return topic, (handle, {})


def by_annotation(app: App) -> tuple[Any, Any]:
    topic = app.topic("in", key_type=str, value_type=Put)

    def handle(ctx: Context, message: Put | None) -> Any:
        return message

    return topic, (handle, {})


@pytest.mark.parametrize("declared", [by_option, by_topic, by_annotation])
@pytest.mark.parametrize("options", [{}, {"concurrency": 4}, {"dedupe_by": "id"}])
def test_a_function_gets_null_values_as_none(declared: Callable[[App], Any], options: dict[str, Any]) -> None:
    app, got = an_app(), []
    topic, (handle, own) = declared(app)

    def noting(ctx: Context, message: Any) -> None:
        got.append((ctx.key, message))

    noting.__annotations__ = {**handle.__annotations__, "return": "None"}
    app.actor(topic, name="noting", **own, **options)(noting)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value=Put(1), headers={"id": b"1"})
        for _ in range(2):
            driver.send(topic, key="a", headers={"id": b"2"})
    repeats = 1 if "dedupe_by" in options else 2
    assert got == [("a", Put(1)), *[("a", None)] * repeats]


def test_a_null_value_is_no_message_where_nothing_takes_it() -> None:
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=Put)

    @app.actor(topic)
    def handle(ctx: Context, message: Put) -> None:
        """Do nothing."""

    with ActorTestDriver(app) as driver, pytest.raises(UndecodableRecordError, match=r"the value is null.*tombstones="):
        driver.send(topic, key="a")


def test_state_by_key_needs_the_key_of_a_tombstone_too() -> None:
    app = an_app()
    topic, store = app.topic("in", key_type=str, value_type=Put), app.store("held", key_type=str, value_type=int)

    @app.actor(topic, stores=[store], tombstones=True)
    def handle(ctx: Context, message: Put | None) -> None:
        """Do nothing."""

    with ActorTestDriver(app) as driver, pytest.raises(UndecodableRecordError, match="the key is null"):
        driver.send(topic)


@pytest.mark.parametrize(
    ("types", "value_type"),
    [((Put,), None), ((Put, Add), None), ((Put, Add), Put | Add | None), ((Plain, Other), None)],
)
def test_a_class_with_a_method_for_none_gets_null_values(types: tuple[Any, ...], value_type: Any) -> None:
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=value_type)
    out = app.topic("out", key_type=str, value_type=str)

    @app.actor(topic)
    class Held(Actor[State]):
        @receive(types[0])
        async def put(self, message: Any) -> None:
            self.state.value = message.value

        if len(types) > 1:

            @receive(types[1])
            async def add(self, message: Any) -> None:
                self.state.value += message.value

        @receive
        async def deleted(self, _: None) -> None:
            self.ctx.send(out, key=self.key, value=f"deleted {self.state.value}")
            self.forget()

    @app.actor(app.topic("deletes", key_type=str, value_type=str))
    def delete(ctx: Context, value: str) -> None:
        ctx.tell(Held, ctx.key, None)

    with ActorTestDriver(app) as driver:
        driver.tell(Held, "a", types[0](3))
        driver.send(topic, key="a")
        assert driver.get("Held", "a") is None
        driver.tell(Held, "a", types[-1](4))
        driver.tell(delete, "a", "now")
        assert [sent.value for sent in driver.outputs(out)] == ["deleted 3", "deleted 4"]
        if types == (Put, Add):
            # A type that only a newer program knows is told from a damaged message.
            with pytest.raises(Exception, match="a message of the unknown type 'new'"):
                driver.send(topic, key=b"a", value=b'{"type":"new"}', raw=True)


def test_a_class_without_a_method_for_none_cannot_take_tombstones() -> None:
    app = an_app()

    class Held(Actor[State]):
        @receive
        async def put(self, message: Put) -> None:
            """Do nothing."""

    with pytest.raises(ConfigurationError, match="actor Held: tombstones=True, and no method of Held takes None"):
        app.actor(app.topic("in", key_type=str), tombstones=True)(Held)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_tombstone_is_parked_and_retried_in_its_place(concurrency: int) -> None:
    app, got, is_mended = an_app(), [], False
    topic = app.topic("in", key_type=str, value_type=Put | None)

    @app.actor(topic, on_error="park", concurrency=concurrency)
    def handle(ctx: Context, message: Put | None) -> None:
        if message is None and not is_mended:
            raise ValueError("not yet")
        got.append((ctx.offset, message))

    with ActorTestDriver(app) as driver:
        for value in (Put(1), None, Put(2), None):
            driver.send(topic, key="a", value=value)
        assert [one.value for one in driver.parked(handle)] == [None, Put(2), None]
        driver.retry_parked(handle, "a")
        assert [one.attempts for one in driver.parked(handle)] == [2, 0, 0]
        is_mended = True
        driver.retry_parked(handle, "a")
        assert driver.parked(handle) == []
    assert got == [(0, Put(1)), (1, None), (2, Put(2)), (3, None)]


def test_a_replay_handles_tombstones() -> None:
    app = an_app()
    topic, store = app.topic("in", key_type=str, value_type=Put), app.store("held", key_type=str, value_type=int)

    @app.actor(topic, stores=[store], tombstones=True, misplaced="warn")
    def handle(ctx: Context, message: Put | None) -> None:
        if message is None:
            store.delete(ctx.key)
        else:
            store.set(ctx.key, message.value)

    with ActorTestDriver(app) as driver:
        for key, value in (("a", Put(1)), ("b", Put(2)), ("a", None)):
            driver.send(topic, key=key, value=value, partition=0)
        assert driver.items(store) == {"b": 2}
        records, _ = driver._cluster.fetch(TopicPartition("in", 0), 0, 100)
    rows = Replayer.of(app, handle).run(0, [(0, record) for record in records], partition_count=1)
    assert [(row.store, row.key, row.value) for row in rows][:-1] == [("held", b"b", b"2")]


def test_each_input_takes_null_values_by_its_own_type() -> None:
    app, seen = an_app(), []
    plain = app.topic("plain", key_type=str, value_type=int)
    first, second, own = (app.topic(name, key_type=str, value_type=int | None) for name in ("first", "second", "own"))

    @app.actor(first, second, plain, own)
    async def handle(ctx: Context, value) -> None:
        seen.append((ctx.topic, value))

    @app.on(handle, own)
    async def other(ctx: Context, value: int | None) -> None:
        seen.append((ctx.topic, value))

    @app.actor(app.topic("a", value_type=int | None), app.topic("b", value_type=int), name="pair")
    async def pair(ctx: Context, value) -> None: ...

    @app.on(pair, app.actors["pair"].topics[1])
    async def of_b(ctx: Context, value: int) -> None: ...

    with ActorTestDriver(app, partitions=1) as driver:
        for topic in (first, second, own):
            driver.send(topic, key="k", value=None)
        assert seen == [("first", None), ("second", None), ("own", None)]
        with pytest.raises(UndecodableRecordError, match=r"plain\[0\] offset 0.*takes no tombstones"):
            driver.send(plain, key="k", value=None)
    message = r"b\[0\] offset 0.*takes no tombstones"
    with ActorTestDriver(app, partitions=1) as driver, pytest.raises(UndecodableRecordError, match=message):
        driver.send(app.actors["pair"].topics[1], key=b"k", value=None)
