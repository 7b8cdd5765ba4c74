"""A timer that stops its partition, and the commands that try it again or give it up."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from actors import App, Context, EffectCall, HandlerFailedError, OnError, RecordError
from actors.errors import RecordTooLargeError, RefusedRecordError, UnreadableLogError
from actors.ports import TopicPartition
from actors.runtime.quarantine import entries as parked_entries
from actors.runtime.quarantine import quarantine as parked
from actors.runtime.quarantine.entries import ParkedMessage
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeLogs


class World:
    """`orders` sets a timer, or calls an effect, whose handler raises as long as `fails`."""

    def __init__(self, way: str, concurrency: int, every: timedelta | None = None) -> None:
        self.app = App("halt", broker="kafka://127.0.0.1:1")
        self.orders = self.app.topic("orders", key_type=str, value_type=str)
        self.handled: list[str] = []
        self.fails = True
        world = self

        @self.app.effect()
        async def call(call: EffectCall) -> str:
            return "bad"

        self.effects = {call: call}

        @self.app.actor(self.orders, timers=True, effects=[call], concurrency=concurrency)
        async def order(ctx: Context, text: str) -> None:
            if text == "bad" and world.fails:
                raise ValueError("not now")
            world.handled.append(text)
            if text == "set" and way == "timer":
                ctx.schedule("bad", after=timedelta(seconds=10), every=every, name="t")
            elif text == "set":
                ctx.effect(call)

    def halt(self, driver: ActorTestDriver) -> str:
        """Let it stop its partition; give what the error says is its id."""
        driver.post(self.orders, key="a", value="set")
        with pytest.raises(HandlerFailedError, match="faust -A APP stopped drop order 0 ") as caught:
            driver.advance(20)
        assert "committed offset" not in str(caught.value)
        return str(caught.value).split("stopped drop order 0 ")[1].rstrip("`.")

    def tell(self, driver: ActorTestDriver, command: str, id: str) -> None:
        told = {"actor": "order", "what": "internal", "command": command, "id": id}
        driver.post(self.orders, value="x", partition=0, headers={"fa-control": json.dumps(told).encode()})


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("way", ["timer", "effect"])
def test_what_stopped_its_partition_is_dropped_by_a_command_behind_other_input(way: str, concurrency: int) -> None:
    world = World(way, concurrency)
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        id = world.halt(driver)
        driver.post(world.orders, key="b", value="behind")
        world.tell(driver, "drop", "another")
        driver.advance(10, settle=False)
        assert world.handled == ["set"]
        world.tell(driver, "drop", id)
        driver.advance(10, settle=False)
        driver.settle()
        assert world.handled == ["set", "behind"]
        driver.crash(keep_disk=False)
        driver.advance(100)
        assert world.handled == ["set", "behind"]


def test_a_periodic_timer_goes_on_after_a_firing_that_was_dropped() -> None:
    world = World("timer", 1, every=timedelta(seconds=60))
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        world.tell(driver, "drop", world.halt(driver))
        world.fails = False
        driver.advance(100)
        assert world.handled == ["set", "bad"]


def test_what_stopped_its_partition_is_tried_again_once_for_each_command() -> None:
    world = World("timer", 1)
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        id = world.halt(driver)
        world.tell(driver, "retry", id)
        driver.advance(100, settle=False)
        assert world.handled == ["set"]
        world.fails = False
        driver.advance(100, settle=False)
        assert world.handled == ["set"]
        world.tell(driver, "retry", id)
        driver.advance(100)
        assert world.handled == ["set", "bad"]


def test_a_command_that_came_while_no_worker_ran_counts() -> None:
    world: Any = World("timer", 1)
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        id = world.halt(driver)
        driver._kill()
        driver.post(world.orders, key="b", value="behind")
        world.tell(driver, "drop", id)
        driver._run(driver._restart(settle=False))
        driver.advance(20, settle=False)
        driver.settle()
        assert world.handled == ["set", "behind"]


def test_commands_are_found_behind_records_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world, read, end = World("timer", 1), FakeLogs.read, 3

    async def damaged(logs: FakeLogs, source: TopicPartition, start: int, until: int, topic_id: str = "") -> Any:
        if source.topic == "orders" and start < end:
            raise UnreadableLogError(f"{source}: the records are damaged", source=source, next_offset=end)
        async for chunk in read(logs, source, start, until, topic_id):
            yield chunk

    monkeypatch.setattr(FakeLogs, "read", damaged)
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        id = world.halt(driver)
        for _ in range(2):
            driver.post(world.orders, key="b", value="behind")
        driver.advance(20, settle=False)
        world.tell(driver, "drop", id)
        driver.advance(20, settle=False)
        driver.settle()
        assert world.handled == ["set", "behind", "behind"]


def test_commands_are_found_where_retention_took_the_input_before_them() -> None:
    world = World("timer", 1)
    with ActorTestDriver(world.app, partitions=1, effects=world.effects) as driver:
        id = world.halt(driver)
        driver.post(world.orders, key="b", value="lost")
        driver._cluster.log(TopicPartition("orders", 0)).delete_before(2)
        world.tell(driver, "drop", id)
        driver.advance(20, settle=False)
        task = next(iter(driver._worker.tasks))
        assert "deleted before they were processed" in str(task.halted_by)


@pytest.mark.parametrize("behind", ["parked", "alone"])
def test_a_result_that_cannot_be_parked_is_dropped_by_a_command(behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("halt", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    handled: list[str] = []
    large = "x" * 900

    def write_small_ones(store: Any, state: Any, line_key: bytes, sequence: int, message: ParkedMessage) -> None:
        if large.encode() in (message.value or b""):
            raise RecordTooLargeError("the changelog takes no such record")
        parked_entries.write_entry(store, state, line_key, sequence, message)

    monkeypatch.setattr(parked, "write_entry", write_small_ones)

    @app.effect()
    async def call(call: EffectCall) -> str:
        return large

    @app.actor(orders, effects=[call], on_error="park")
    async def order(ctx: Context, text: str) -> None:
        if text in ("bad", large):
            raise ValueError("not now")
        handled.append(text)
        if text == "set":
            ctx.effect(call)

    with ActorTestDriver(app, partitions=1, effects={call: lambda _: large}) as driver:
        driver.post(orders, key="a", value="set")
        if behind == "parked":
            driver.post(orders, key="a", value="bad")
        with pytest.raises(RecordError, match="faust -A APP stopped drop order 0 ") as caught:
            driver.advance(20)
        driver.post(orders, key="b", value="behind")
        told = {"actor": "order", "what": "internal", "command": "drop"}
        told["id"] = str(caught.value).split("stopped drop order 0 ")[1].rstrip("`.")
        driver.post(orders, value="x", partition=0, headers={"fa-control": json.dumps(told).encode()})
        driver.advance(20, settle=False)
        driver.settle()
    assert handled == ["set", "behind"]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_timer_that_the_broker_refused_is_tried_again_by_a_command(concurrency: int) -> None:
    app = App("halt", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    sent = app.topic("sent", key_type=str, value_type=str)

    @app.actor(orders, timers=True, concurrency=concurrency)
    async def order(ctx: Context, text: str) -> None:
        if text == "set":
            ctx.schedule("large" * 100, after=timedelta(seconds=1))
        elif ctx.timer is not None:
            ctx.send(sent, key=ctx.key, value=text)

    with ActorTestDriver(app, partitions=1) as driver:
        driver._cluster.limit_records("sent", 50)
        driver.post(orders, key="a", value="set")
        with pytest.raises(RefusedRecordError, match="faust -A APP stopped drop order 0 ") as caught:
            driver.advance(60)
        driver._cluster.limit_records("sent", None)
        told = {"actor": "order", "what": "internal", "command": "retry"}
        told["id"] = str(caught.value).split("stopped drop order 0 ")[1].rstrip("`.")
        driver.post(orders, value="x", partition=0, headers={"fa-control": json.dumps(told).encode()})
        driver.advance(20, settle=False)
        driver.settle()
        assert len(driver.outputs(sent)) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_message_that_the_broker_refuses_is_named_where_it_made_a_timer_by_stream_time_due(concurrency: int) -> None:
    app = App("halt", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    sent = app.topic("sent", key_type=str, value_type=str)
    fired: list[str | None] = []

    @app.actor(orders, timers=True, concurrency=concurrency)
    async def order(ctx: Context, text: str) -> None:
        if text == "set":
            ctx.schedule("due", after=timedelta(seconds=10), stream_time=True)
        elif ctx.timer is not None:
            fired.append(ctx.key)
        else:
            ctx.send(sent, key=ctx.key, value=text * 100)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value="set")
        driver.advance(10)
        driver._cluster.limit_records("sent", 50)
        driver.post(orders, key="b", value="large")
        with pytest.raises(RefusedRecordError, match=r"orders\[0\] offset 1 key 'b'"):
            driver.advance(60)
        driver._cluster.limit_records("sent", None)
        driver.restart()
        driver.settle()
        assert (len(driver.outputs(sent)), fired[-1:]) == (1, ["a"])


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("policy", [OnError(then="park"), OnError(then="skip", dead_letters=True)])
def test_a_message_whose_dead_letter_is_refused_stops_its_partition(policy: OnError, concurrency: int) -> None:
    app = App("halt", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    handled: list[str] = []

    @app.actor(orders, on_error=policy, concurrency=concurrency)
    async def order(ctx: Context, text: str) -> None:
        handled.append(text)
        if text == "bad":
            raise ValueError("not now")

    with ActorTestDriver(app, partitions=1) as driver:
        driver._cluster.limit_records("halt-dead-letters", 2)
        driver.post(orders, key="a", value="bad")
        driver.post(orders, key="b", value="behind")
        with pytest.raises(RefusedRecordError, match="halt-dead-letters"):
            driver.advance(60)
        assert handled.count("behind") <= 3, "once in each takeover"
        driver._cluster.limit_records("halt-dead-letters", None)
        driver.restart()
        assert handled[-1] == "behind"
        assert [sent.value for sent in driver.dead_letters()] == ["bad"]
