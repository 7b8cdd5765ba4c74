"""Parked messages on the test driver: lines of keys, retries and drops in order, the dead-letter topic."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App, Context, HandlerFailedError, OnError, Rejected, UndecodableRecordError
from actors._core.keys import line_bounds, place_of
from actors.errors import RecordError, RefusedRecordError
from actors.ports import TopicPartition
from actors.runtime.cancellation import GivenBack
from actors.runtime.message.internal_messages import InternalMessage, InternalRecord
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.quarantine import quarantine as parked
from actors.runtime.quarantine.quarantine import Parked, ParkedMessage
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.task.context import PoisonTracking
from actors.runtime.task.handling import Handling
from actors.testing import ActorTestDriver
from stores._core.overlay import MessageScope, Overlay
from stores.errors import StoreError
from stores.memory import MemoryStore

ON_ERROR = OnError(then="park")


class World:
    """An app whose handler fails for values that begin with "bad", until it is mended."""

    def __init__(self, on_error: OnError | str = ON_ERROR, secret: str | None = None, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1", worker_secret=secret)
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.raw = self.app.topic("in", key_type=bytes, value_type=bytes)
        self.done = self.app.topic("done", key_type=str, value_type=str)
        self.letters = self.app.topic("shop-dead-letters", key_type=bytes, value_type=bytes)
        counts = self.app.store("counts", key_type=str, value_type=int)
        self.is_mended = False
        self.seen: list[Context] = []

        @self.app.actor(self.topic, stores=[counts], on_error=on_error, **options)
        async def work(ctx: Context, value: str) -> None:
            counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
            ctx.send(self.done, key=ctx.key, value=f"{value} {counts.get(ctx.key)} {ctx.message_id}")
            if value.startswith("bad") and not self.is_mended:
                raise ValueError(f"can't do {value}")
            if value == "no":
                raise Rejected("I won't")
            self.seen.append(ctx)

    @property
    def store(self) -> Store[bytes, bytes]:
        return self.app.stores["work-parked"]

    def post(self, driver: ActorTestDriver, *messages: str) -> None:
        """Send messages like "a bad 1": the key, then the value."""
        for message in messages:
            key, _, value = message.partition(" ")
            driver.post(self.topic, key=key, value=value)
        driver.settle()

    def tell(self, driver: ActorTestDriver, key: str, command: str, **more: Any) -> None:
        self.post_control(driver, key, command, **more)
        driver.settle()

    def post_control(self, driver: ActorTestDriver, key: str, command: str, **more: Any) -> None:
        told = json.dumps({"actor": "work", "what": "message", "command": command, **more}).encode()
        driver.post(self.topic, key=key, value="control", headers={"fa-control": told})

    def line(self, driver: ActorTestDriver, key: bytes) -> list[ParkedMessage]:
        found = sorted((place_of(place), raw) for place, raw in driver.items(self.store).items())
        return [msgspec.json.decode(raw, type=ParkedMessage) for (owner, _), raw in found if owner == key]

    def waiting(self, driver: ActorTestDriver, key: str) -> list[tuple[bytes | None, bool]]:
        """Give the value of each parked message of a key, and whether it has an error."""
        return [(message.value, message.error is not None) for message in self.line(driver, key.encode())]

    def handled(self, driver: ActorTestDriver) -> list[str]:
        """Give what the handler sent since the last call, without the messages' ids."""
        return [f"{sent.key} {sent.value.rpartition(' ')[0]}" for sent in driver.outputs(self.done)]


def let_it_take_over(driver: ActorTestDriver) -> None:
    """Let a partition be taken over several times, which the driver's source sees when it polls, once in an hour."""
    driver.advance(6 * 3600, settle=False)
    driver.settle()


# --- parking -------------------------------------------------------------------------------------------------------


def test_later_messages_of_the_key_wait_and_other_keys_go_on():
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "a 1", "b 1", "a bad", "b 2", "a 3", "b 3", "a 4")
        assert world.handled(driver) == ["a 1 1", "b 1 1", "b 2 2", "b 3 3"]
        assert world.waiting(driver, "a") == [(b"bad", True), (b"3", False), (b"4", False)]
        assert world.waiting(driver, "b") == []


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_line_survives_kills_and_a_mended_handler_gets_it_in_order(keep_disk: bool):
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "a bad", "a 2")
        driver.crash(keep_disk=keep_disk)
        world.post(driver, "a 3", "b 1")
        assert [message.offset for message in world.line(driver, b"a")] == [0, 1, 2]
        world.is_mended = True
        driver.crash(keep_disk=keep_disk)
        assert world.handled(driver) == ["b 1 1"]
        world.tell(driver, "a", "retry")
        world.post(driver, "a 4")
        assert world.handled(driver) == ["a bad 1", "a 2 2", "a 3 3", "a 4 4"]
        assert driver.items(world.store) == {}
        driver.crash(keep_disk=keep_disk)
        assert world.handled(driver) == []


def test_a_retried_message_is_what_it_was():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="b", value="1")
        driver.send(world.topic, key="a", value="bad", headers={"x": b"\xff"})
        (message,) = world.line(driver, b"a")
        world.is_mended = True
        driver.advance(60)
        world.tell(driver, "a", "retry")
        assert [sent.value for sent in driver.outputs(world.done)] == ["1 1 in-0-0", "bad 1 in-0-1"]
        ctx = world.seen[-1]
        assert (ctx.key, ctx.offset, ctx.partition, ctx.topic, ctx.timer) == ("a", 1, 0, "in", None)
        assert list(ctx.headers) == [("x", b"\xff")]
        assert ctx.timestamp_ms == message.timestamp_ms


def test_the_dead_letter_has_the_message_and_says_why():
    world = World(OnError(retries=2, then="park"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.topic, key="a", value="bad", headers={"x": b"1", "fa-error": b"of another actor"})
        world.post(driver, "a 2")
        (letter,) = driver.outputs(world.letters)
        assert (letter.key, letter.value) == (b"a", b"bad")
        assert dict(letter.headers) == {
            "x": b"1",
            "fa-error": b"HandlerFailedError: ValueError: can't do bad",
            "fa-origin": b"in/0/0",
            "fa-attempts": b"3",
            "fa-actor": b"work",
        }
        assert len(letter.headers) == 5
        first, second = world.line(driver, b"a")
        assert (first.error, first.attempts) == ("HandlerFailedError: ValueError: can't do bad", 3)
        assert (second.error, second.attempts) == (None, 0)


UNDECODABLE = [(b"a", b"\xff", "doesn't decode"), (b"a", None, "value is null"), (None, b"1", "key is null")]


@pytest.mark.parametrize(("key", "value", "why"), UNDECODABLE)
def test_what_does_not_decode_is_parked_and_no_retry_loses_it(key: bytes | None, value: bytes | None, why: str):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.raw, key=key, value=value)
        world.post(driver, "b 1")
        for attempts in (1, 2, 3):
            (message,) = world.line(driver, key or b"")
            assert (message.key, message.value, message.attempts) == (key, value, attempts)
            assert message.error is not None
            assert message.error.startswith("UndecodableRecordError: ")
            world.tell(driver, (key or b"").decode(), "retry")
        (letter,) = driver.outputs(world.letters)
        assert (letter.key, letter.value) == (key, value)
        with ActorTestDriver(World("stop").app) as stopping, pytest.raises(UndecodableRecordError, match=why):
            stopping.send(world.raw, key=key, value=value)


def test_null_keys_and_the_empty_key_are_one_line():
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.raw, key=None, value=b"1")
        driver.send(world.raw, key=b"", value=b"2")
        assert [message.key for message in world.line(driver, b"")] == [None, b""]


def test_an_error_text_that_is_long_or_not_utf_8_does_no_harm():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, on_error="park")
    def work(ctx: Context, value: str) -> None:
        raise ValueError("\udc80" + "x" * 10_000)

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="1")
        ((_, raw),) = driver.items(app.stores["work-parked"]).items()
        error = msgspec.json.decode(raw, type=ParkedMessage).error
        assert error.startswith("HandlerFailedError: ValueError: \\udc80xxx")
        assert len(error) == parked.ERROR_CHARS


def test_what_the_broker_refuses_is_parked_and_refused_again():
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver._cluster.limit_records("done", 50)
        large = "x" * 60
        for key, value in (("b", "1"), ("a", large), ("b", "2"), ("a", "2")):
            driver.post(world.topic, key=key, value=value)
        let_it_take_over(driver)
        assert world.handled(driver) == ["b 1 1", "b 2 2"]
        assert world.waiting(driver, "a") == [(large.encode(), True), (b"2", False)]
        world.post_control(driver, "a", "retry")
        let_it_take_over(driver)
        first, second = world.line(driver, b"a")
        assert first.error.startswith(RefusedRecordError.__name__)
        assert (first.attempts, second.attempts) == (2, 0)
        driver._cluster.limit_records("done", None)
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == [f"a {large} 1", "a 2 2"]
        assert driver.items(world.store) == {}


# --- control records -----------------------------------------------------------------------------------------------


def test_a_retry_stops_at_the_first_that_fails_again():
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "a bad 1", "a 2", "a bad 3", "a 4")
        driver.advance(60)
        world.tell(driver, "a", "retry")
        first = world.line(driver, b"a")[0]
        assert (first.offset, first.attempts) == (0, 2)
        world.tell(driver, "a", "drop")
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == ["a 2 1"]
        third, fourth = world.line(driver, b"a")
        assert (third.offset, third.attempts, third.error) == (2, 1, "HandlerFailedError: ValueError: can't do bad 3")
        assert (fourth.offset, fourth.attempts, fourth.error) == (3, 0, None)
        assert len(driver.outputs(world.letters)) == 1


def test_drop_takes_the_first_or_the_one_of_an_id_or_all():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1", "a 2", "a 3", "b bad")
        world.tell(driver, "a", "drop")
        world.tell(driver, "a", "drop", id="in-0-3")
        world.tell(driver, "a", "drop", id="in-0-77")
        world.tell(driver, "nobody", "drop")
        assert world.waiting(driver, "a") == [(b"1", False), (b"2", False)]
        world.post(driver, "a 4")
        assert [message.offset for message in world.line(driver, b"a")] == [1, 2, 9]
        world.tell(driver, "a", "drop", id="*")
        world.post(driver, "a 5")
        assert world.waiting(driver, "a") == []
        assert world.waiting(driver, "b") == [(b"bad", True)]
        assert world.handled(driver) == ["a 5 1"]


def test_a_rejected_message_is_handled():
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "b no", "a bad", "a no", "a 3")
        world.is_mended = True
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == ["a bad 1", "a 3 2"]
        assert driver.items(world.store) == {}


def test_commands_in_one_commit_with_what_they_are_about():
    world = World()
    with ActorTestDriver(world.app) as driver:
        for value in ("bad", "1"):
            driver.post(world.topic, key="a", value=value)
        for _ in range(2):
            world.post_control(driver, "a", "drop")
        driver.post(world.topic, key="a", value="2")
        driver.settle()
        assert world.handled(driver) == ["a 2 1"]
        assert driver.items(world.store) == {}


@pytest.mark.parametrize(
    ("control", "told"),
    [
        (b"{", "can't be read"),
        (b"", "can't be read"),
        (b'{"actor":"work","what":"message","command":"burn"}', "can't be read"),
        (b'{"actor":"other","what":"message","command":"drop"}', "for actor 'other'"),
        (b'{"actor":"work","what":"effect","command":"drop"}', "has none"),
    ],
)
def test_a_control_record_that_is_wrong_is_skipped_with_a_warning(
    control: bytes, told: str, caplog: pytest.LogCaptureFixture
):
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver, caplog.at_level(logging.WARNING):
        world.post(driver, "a bad")
        caplog.clear()
        driver.send(world.topic, key="a", value="control", headers={"fa-control": control})
        (record,) = caplog.records
        assert "in[0] offset 1" in record.getMessage()
        assert told in record.getMessage()
        assert world.waiting(driver, "a") == [(b"bad", True)]
        assert world.handled(driver) == []


def test_one_command_retries_no_more_than_a_commit_may_hold(monkeypatch: pytest.MonkeyPatch):
    world = World()
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "a bad", *(f"a {number}" for number in range(1, 6)))
        world.is_mended = True
        monkeypatch.setattr(parked, "RETRY_MESSAGES", 3)
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == ["a bad 1", "a 1 2", "a 2 3"]
        monkeypatch.setattr(parked, "RETRY_BYTES", 10)
        world.tell(driver, "a", "retry")
        world.post(driver, "a 6")
        assert world.handled(driver) == ["a 3 4"]
        monkeypatch.undo()
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == ["a 4 5", "a 5 6", "a 6 7"]


# --- messages side by side -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [False, True])
def test_lines_are_the_same_when_messages_are_handled_side_by_side(crashes: bool):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    world: dict[str, Any] = {"mended": False, "times": {}}

    @app.actor(topic, on_error=OnError(retries=1, first_wait=timedelta(seconds=1), then="park"), concurrency=4)
    async def work(ctx: Context, value: str) -> None:
        name, _, seconds = value.partition(":")
        world["times"][name] = world["times"].get(name, 0) + 1
        await asyncio.sleep(float(seconds or 0))
        if name == "bad" and not world["mended"]:
            raise ValueError(name)
        ctx.send(done, key=ctx.key, value=name)

    retry = json.dumps({"actor": "work", "what": "message", "command": "retry"}).encode()
    with ActorTestDriver(app) as driver:
        driver.post(topic, key="slow", value="s:50")
        for key, value in (("a", "bad:1"), ("a", "2"), ("b", "1"), ("a", "3:5"), ("b", "2:1")):
            driver.post(topic, key=key, value=value)
        driver.advance(20, settle=False)
        # The line is committed although a message in front of it isn't finished.
        assert world["times"] == {"s": 1, "bad": 2, "1": 1, "2": 1}
        assert [sent.value for sent in driver.outputs(done)] == ["1", "2"]
        world["mended"] = True
        if crashes:
            driver.crash()
            assert world["times"]["bad"] == 2
        driver.post(topic, key="a", value="4")
        driver.post(topic, key="a", value="control", headers={"fa-control": retry})
        driver.post(topic, key="a", value="5")
        driver.settle()
        found = [sent.value for sent in driver.outputs(done)]
        assert [value for value in found if value != "s"] == ["bad", "2", "3", "4", "5"]
        assert found.count("s") == 1
        assert driver.items(app.stores["work-parked"]) == {}


# --- timers and effects --------------------------------------------------------------------------------------------


def test_a_timer_of_a_parked_key_waits_in_line():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    world: dict[str, Any] = {"mended": False}

    @app.actor(topic, on_error="park", timers=True)
    def work(ctx: Context, value: str) -> None:
        if value == "bad" and not world["mended"]:
            raise ValueError(value)
        if value == "remind":
            ctx.schedule("now", after=timedelta(seconds=10), name="t")
        ctx.send(done, key=ctx.key, value=f"{value} {ctx.timer}")

    with ActorTestDriver(app) as driver:
        for value in ("remind", "bad"):
            driver.send(topic, key="a", value=value)
        driver.advance(20)
        driver.send(topic, key="a", value="last")
        assert [sent.value for sent in driver.outputs(done)] == ["remind None"]
        driver.crash(keep_disk=False)
        world["mended"] = True
        retry = json.dumps({"actor": "work", "what": "message", "command": "retry"}).encode()
        driver.send(topic, key="a", value="control", headers={"fa-control": retry})
        assert [sent.value for sent in driver.outputs(done)] == ["bad None", "now t", "last None"]
        assert driver.items(app.stores["work-timers"]).keys() == {b"t"}


@pytest.mark.parametrize("on_error", ["park", "stop"])
def test_control_records_reach_parked_effects(on_error: str):
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    world: dict[str, Any] = {"mended": False, "paid": []}

    @app.effect(attempts=1)
    async def pay(call: Any, name: str) -> None:
        if not world["mended"]:
            raise ValueError(name)
        world["paid"].append(name)

    @app.actor(topic, on_error=on_error, effects=[pay])
    def work(ctx: Context, value: str) -> None:
        ctx.effect(pay, value)

    def tell(command: str) -> None:
        told = json.dumps({"actor": "work", "what": "effect", "command": command, "id": None})
        driver.send(topic, key="a", value="control", headers={"fa-control": told.encode()})

    with ActorTestDriver(app, partitions=1, effects={pay: pay}) as driver:
        for value in ("one", "two", "three"):
            driver.send(topic, key="a", value=value)
        tell("drop")
        world["mended"] = True
        tell("retry")
        assert world["paid"] == ["two", "three"]
        assert driver.items(app.stores["work-effects"]) == {}


# --- the object itself ---------------------------------------------------------------------------------------------


async def nothing(ctx: Context, value: Any) -> None:
    """Handle a message."""


class Standing:
    """A `Parked` with a task's state around it."""

    def __init__(self) -> None:
        self.store = Store("work-parked", encode_key=bytes, decode_key=bytes, encode_value=bytes, decode_value=bytes)
        self.scope = MessageScope(epoch=1)
        self.state = TaskState(
            actor="work",
            source=TopicPartition("in", 0),
            home=TopicPartition("in", 0),
            partition=0,
            partition_count=1,
            scope=self.scope,
            overlays={self.store: Overlay(MemoryStore(), self.scope)},
            max_record_bytes={"work-parked": 10_000},
            resolve_output=lambda topic: topic,
            outputs=[],
        )
        self.spec = ActorSpec(
            name="work",
            inputs=(InputSpec("in", nothing, bytes, bytes),),
            partition_count=1,
            stores=(self.store,),
            changelogs={},
            on_error=ON_ERROR,
            parked=self.store,
            dead_letters=OutputTopic("letters", bytes, bytes, 2_000),
        )
        self.parked = Parked(self.spec, self.state)

    def fail(self, key: bytes, offset: int, value: bytes = b"1") -> None:
        failed = HandlerFailedError("because", topic="in", partition=0, offset=offset, key=key)
        self.parked.park(self.state, InternalRecord(offset, 0, key, value), failed, 1)
        self.scope.release()

    def drop(self, key: bytes) -> None:
        for place, _ in self.state.overlays[self.store].items(*line_bounds(b"p", key)):
            self.state.overlays[self.store].delete(place)

    def sequences(self, key: bytes) -> list[int]:
        return [place_of(place)[1] for place, _ in self.state.overlays[self.store].items(*line_bounds(b"p", key))]


async def test_only_records_of_parked_keys_and_control_records_are_concerned():
    standing = Standing()
    control, other = [("fa-control", b"")], [("x", b"")]
    assert not standing.parked.may_concern(InternalRecord(0, 0, b"a", b"1"))
    assert not standing.parked.may_concern(InternalRecord(0, 0, b"a", b"1", other))
    assert standing.parked.may_concern(InternalRecord(0, 0, b"a", b"1", [*other, *control]))
    standing.fail(b"a", 0)
    assert standing.parked.may_concern(InternalRecord(1, 0, b"a", b"1"))
    assert not standing.parked.may_concern(InternalRecord(1, 0, b"b", b"1"))
    assert not standing.parked.may_concern(InternalRecord(1, 0, None, b"1"))
    standing.drop(b"a")
    assert standing.parked.may_concern(InternalRecord(1, 0, b"a", b"1"))
    assert not await standing.parked.intercept(standing.state, InternalRecord(1, 0, b"a", b"1"), None)
    assert not standing.parked.may_concern(InternalRecord(1, 0, b"a", b"1"))


def test_the_next_owner_goes_on_behind_each_line():
    standing = Standing()
    keys = [b"", b"a", b"ab", b"\xff" * 9, b"\x00" * 300]
    for offset, key in enumerate(keys * 3):
        standing.fail(key, offset)
    again = Parked(standing.spec, standing.state)
    assert again._next == dict.fromkeys(keys, 3)
    standing.drop(b"a")
    assert set(Parked(standing.spec, standing.state)._next) == set(keys) - {b"a"}
    assert standing.sequences(b"ab") == [0, 1, 2]


def test_many_lines_and_long_ones_are_found_with_few_searches(monkeypatch: pytest.MonkeyPatch):
    standing, searches = Standing(), 0
    lengths = {b"%d" % number: 1 + number % 3 for number in range(100)}
    lengths |= {b"7": parked.STEPS, b"8": parked.STEPS + 1, b"99": parked.STEPS - 1, b"99x": 40}
    for key, length in lengths.items():
        for offset in range(length):
            standing.fail(key, offset)
    items = Overlay.items

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal searches
        searches += 1
        return items(*args, **options)

    monkeypatch.setattr(Overlay, "items", counted)
    assert Parked(standing.spec, standing.state)._next == lengths
    assert searches == 1 + 2 * 3, "each costs as much as many steps, while nothing else runs in the process"


@pytest.mark.parametrize("waits", [1, 0])
async def test_a_turn_is_settled_and_waits_if_there_is_something_to_handle(waits: int):
    standing = Standing()
    standing.fail(b"a", 0)
    settled: list[Context] = []
    internal_record = InternalRecord(5, 7, b"a", b"1", id="t-1", timer="t")
    internal = InternalMessage(internal_record, lambda ctx: settled.append(ctx) or bool(waits), lambda: None, "a timer")
    assert await standing.parked.intercept(standing.state, internal_record, None, internal)
    assert len(settled) == 1
    assert settled[0]._state is None
    found = list(standing.state.overlays[standing.store].items(*line_bounds(b"p", b"a")))[1:]
    assert len(found) == waits
    if waits:
        message = msgspec.json.decode(found[0][1], type=ParkedMessage)
        assert (message.message_id, message.timer, message.timestamp_ms, message.error) == ("t-1", "t", 7, None)
    assert standing.scope.undo == []


@pytest.mark.parametrize("handled", [0, 2])
@pytest.mark.parametrize("error", [GivenBack, StoreError])
async def test_a_retry_that_is_not_carried_out_to_its_end_leaves_nothing(error: type[BaseException], handled: int):
    standing = Standing()
    for offset in range(3):
        standing.fail(b"a", offset)
    state = standing.state
    state.outputs, writes = ["of another message"], dict(state.overlays[standing.store].writes)
    told = b'{"actor":"work","what":"message","command":"retry"}'

    def is_over() -> bool:
        return len(state.outputs) > handled

    async def send(ctx: Context, value: bytes) -> None:
        if error is StoreError and is_over():
            raise error
        state.outputs.append(value)

    spec = standing.spec.with_handlers(lambda _: send)
    ends = error is GivenBack
    handling = Handling(spec, standing.parked, PoisonTracking(), lambda: ends and is_over(), asyncio.sleep)
    with pytest.raises(error):
        await standing.parked.intercept(state, InternalRecord(9, 0, b"a", b"1", [("fa-control", told)]), handling)
    assert standing.sequences(b"a") == [0, 1, 2]
    assert state.overlays[standing.store].writes == writes, "a commit has nothing of a command whose offset it lacks"
    assert state.outputs == ["of another message"]
    assert not standing.scope.undo


async def test_a_turn_that_is_too_large_to_wait_isnt_settled():
    standing = Standing()
    standing.fail(b"a", 0)
    standing.state.max_record_bytes = {"work-parked": 200}
    overlay = standing.state.overlays[standing.store]

    def consume(ctx: Context) -> bool:
        overlay.set(b"settled", b"1")
        return True

    internal_record = InternalRecord(5, 7, b"a", b"x" * 9_000, id="t-1", timer="t")
    remedy = r"it has 9001 bytes.* `faust -A APP stopped drop work 0 t-1`"
    with pytest.raises(RecordError, match=rf"in\[0\] key 'a': it has to wait.*{remedy}"):
        await standing.parked.intercept(
            standing.state, internal_record, None, InternalMessage(internal_record, consume, lambda: None, "a timer")
        )
    assert (overlay.get(b"settled"), standing.scope.undo) == (None, [])
