"""Admin commands: who may give them, and what one that is produced again does."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors._faust.settings import secrets
from actors.admin.operation import Caller
from actors.admin.parked.operations import DropStopped, RetryStopped
from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.commands import MAC_HEADER, Command, CommandKey, RefusedCommandError, is_over
from actors.runtime.message.internal_messages import InternalRecord
from actors.testing import ActorTestDriver
from tests.unit.runtime.quarantine.test_parked import World

SECRET = "a-secret-of-the-workers-0123456789"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "SCRYPT_COST", 2)
    secrets._stretched.cache_clear()


def guarded(**options: Any) -> World:
    """Give an app whose workers share a secret."""
    return World(secret=SECRET, **options)


def commands(driver: ActorTestDriver) -> list[Any]:
    """Give the commands' records that the input holds."""
    log = driver._cluster.log(TopicPartition("in", 0)).history
    return [record for record in log if any(name == "fa-control" for name, _ in record.headers)]


def produce_again(world: World, driver: ActorTestDriver, record: Any) -> None:
    driver.send(world.raw, key=record.key, value=record.value, headers=list(record.headers))


# --- who may give them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_producer_cannot_drop_or_retry_what_is_parked(concurrency: int, caplog: pytest.LogCaptureFixture):
    world = guarded(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1")
        with caplog.at_level(logging.WARNING):
            for command in ("drop", "retry"):
                world.tell(driver, "a", command, id="*")
            world.tell(driver, "a", "drop", id="*", before=1_000)
        refused = [one for one in caplog.records if "isn't signed" in one.getMessage()]
        # A producer may write as many as it wants: one a minute is named.
        assert len(refused) == 1
        assert "in[0] offset 2 key 'a'" in refused[0].getMessage()
        assert world.waiting(driver, "a") == [(b"bad", True), (b"1", False)]
        assert world.line(driver, b"a")[0].attempts == 1
        (task,) = driver._worker.tasks
        assert task.meters.refused_commands == 3
        # The records reach no handler, and what is behind them is handled.
        world.post(driver, "b 1")
        assert world.handled(driver) == ["b 1 1"]


def test_a_signed_command_is_obeyed():
    world = guarded()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1")
        world.is_mended = True
        driver.retry_parked("work", "a")
        assert world.handled(driver) == ["a bad 1", "a 1 2"]
        assert driver.items(world.store) == {}


def test_a_command_that_is_signed_for_elsewhere_or_with_another_secret_is_refused():
    told = Command(actor="work", what="message", command="drop", id="*", before=9)
    raw = msgspec.json.encode(told)
    key = CommandKey("shop", "in", "1", lambda: [b"k" * 32])
    record: Any = InternalRecord(0, 0, b"a", raw, key.headers(3, b"a", raw))
    assert key.read(3, record) == told
    elsewhere = [
        CommandKey("other", "in", "1", lambda: [b"k" * 32]),
        CommandKey("shop", "out", "1", lambda: [b"k" * 32]),
        CommandKey("shop", "in", "2", lambda: [b"k" * 32]),
        CommandKey("shop", "in", "1", lambda: [b"j" * 32]),
    ]
    for other in elsewhere:
        with pytest.raises(RefusedCommandError, match="signature is wrong"):
            other.read(3, record)
    moved: list[Any] = [InternalRecord(0, 0, other, raw, record.headers) for other in (b"b", b"", None)]
    moved.append(InternalRecord(0, 0, b"a", raw, [("fa-control", raw.replace(b"9", b"99")), record.headers[1]]))
    for wrong in moved:
        with pytest.raises(RefusedCommandError, match="signature is wrong"):
            key.read(3, wrong)
    with pytest.raises(RefusedCommandError, match="signature is wrong"):
        key.read(2, record)
    rotated = CommandKey("shop", "in", "1", lambda: [b"j" * 32, b"k" * 32])
    assert rotated.read(3, record) == told


def test_a_key_of_none_differs_from_an_empty_one():
    key = CommandKey("shop", "in", "1", lambda: [b"k" * 32])
    assert key.headers(0, None, b"{}")[1][1] != key.headers(0, b"", b"{}")[1][1]


def test_a_signed_command_has_to_say_what_it_is_about():
    key = CommandKey("shop", "in", "1", lambda: [b"k" * 32])
    raw = b'{"actor":"work","what":"message","command":"drop"}'
    with pytest.raises(RefusedCommandError, match="before"):
        key.read(0, InternalRecord(0, 0, b"a", raw, key.headers(0, b"a", raw)))


def test_without_a_secret_all_commands_are_obeyed_and_none_is_signed():
    key = CommandKey("shop", "in", "1", tuple)
    raw = b'{"actor":"work","what":"message","command":"drop"}'
    assert key.headers(0, b"a", raw) == [("fa-control", raw)]
    assert not is_over(key.read(0, InternalRecord(0, 0, b"a", raw, [("fa-control", raw)])), 7)


# --- what is produced again ----------------------------------------------------------------------------------------


def test_a_drop_that_is_produced_again_does_nothing():
    world = guarded()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1")
        driver.drop_parked("work", "a")
        assert driver.items(world.store) == {}
        (drop,) = commands(driver)
        assert MAC_HEADER in dict(drop.headers)
        world.post(driver, "a bad 2", "a 3")
        produce_again(world, driver, drop)
        assert world.waiting(driver, "a") == [(b"bad 2", True), (b"3", False)]
        (task,) = driver._worker.tasks
        assert task.meters.refused_commands == 0


@pytest.mark.parametrize("crashes", [False, True])
def test_a_retry_that_is_produced_again_does_nothing(crashes: bool):
    world = guarded()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1")
        driver.retry_parked("work", "a")
        (retry,) = commands(driver)
        assert world.line(driver, b"a")[0].attempts == 2
        if crashes:
            driver.crash(keep_disk=False)
        world.is_mended = True
        produce_again(world, driver, retry)
        assert world.waiting(driver, "a") == [(b"bad", True), (b"1", False)]
        assert world.line(driver, b"a")[0].attempts == 2
        driver.retry_parked("work", "a")
        assert world.handled(driver) == ["a bad 1", "a 1 2"]


@pytest.mark.parametrize("name", ["in", "more"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_effect_is_called_once_for_a_retry_that_is_produced_again(concurrency: int, name: str):
    app = App("shop", broker="kafka://127.0.0.1:1", worker_secret=SECRET)
    topic, raw = (app.topic("in", key_type=type_, value_type=type_) for type_ in (str, bytes))
    more = app.topic("more", key_type=str, value_type=str)
    called = []

    @app.effect(attempts=1)
    async def pay(call: Any, name: str) -> None:
        called.append(name)
        raise ValueError(name)

    @app.actor(topic, more, effects=[pay], concurrency=concurrency)
    async def work(ctx: Context, value: str) -> None:
        if value != "nothing":
            ctx.effect(pay, value)

    with ActorTestDriver(app, partitions=1, effects={pay: pay}) as driver:
        for _ in range(9):
            driver.send(topic, key="b", value="nothing")
        driver.send(topic if name == "in" else more, key="a", value="one")
        driver.retry_parked("work", "a")
        assert called == ["one", "one"]
        (retry,) = commands(driver)
        for _ in range(2):
            driver.send(raw, key=retry.key, value=retry.value, headers=list(retry.headers))
        assert called == ["one", "one"]
        driver.drop_parked("work", "a")
        driver.send(topic if name == "in" else more, key="a", value="two")
        driver.send(raw, key=retry.key, value=retry.value, headers=list(retry.headers))
        assert called == ["one", "one", "two"]
        driver.retry_parked("work", "a")
        assert called == ["one", "one", "two", "two"]


def test_entries_that_came_after_a_command_was_given_are_left():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "a 1", "a 2")
        world.tell(driver, "a", "drop", id="*", before=2)
        assert world.waiting(driver, "a") == [(b"2", False)]
        world.tell(driver, "a", "retry", before=2)
        assert world.waiting(driver, "a") == [(b"2", False)]
        world.tell(driver, "a", "retry", before=3)
        assert world.handled(driver) == ["a 2 1"]


def test_a_command_for_a_stopped_partition_is_over_when_the_partition_has_gone_on():
    key = CommandKey("shop", "in", "1", lambda: [b"k" * 32])
    raw = json.dumps({"actor": "work", "what": "internal", "command": "drop", "id": "t", "before": 5}).encode()
    record: Any = InternalRecord(7, 0, None, raw, key.headers(0, None, raw))
    assert key.about(0, record, ("work", "t"), 5) == "drop"
    assert key.about(0, record, ("work", "t"), 6) is None
    assert key.about(0, record, ("work", "other"), 5) is None
    unsigned: Any = InternalRecord(7, 0, None, raw, [("fa-control", raw)])
    with pytest.raises(RefusedCommandError):
        key.about(0, unsigned, ("work", "t"), 5)


# --- actors that obey none -----------------------------------------------------------------------------------------


class Plain:
    """An app whose actor has nothing that a command could be about."""

    def __init__(self, concurrency: int, **options: Any) -> None:
        self.app = app = App("plain", broker="kafka://127.0.0.1:1")
        times = options.pop("times", {})
        self.topic = app.topic("in", key_type=str, value_type=bytes, **times)
        self.sums, self.handled = app.store("sums", value_type=int), list[bytes]()

        @app.actor(self.topic, stores=[self.sums], concurrency=concurrency, name="plain", **options)
        async def take(ctx: Context, value: bytes) -> None:
            self.handled.append(value)
            self.sums.set(ctx.key, self.sums.get(ctx.key, 0) + 1)


def no_time(value: bytes) -> int:
    if b"internal" in value:
        raise ValueError("a command has no time")
    return 1_700_049_600_000


@pytest.mark.parametrize(
    "options",
    [{}, {"by": lambda value: value.decode()}, {"times": {"timestamp": no_time}}],
    ids=["plain", "by another key", "with times of its own"],
)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("key", [None, "ada"])
def test_a_command_is_no_message_of_an_actor_that_obeys_none(
    key: str | None, concurrency: int, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plain = Plain(concurrency, **options)
    told = msgspec.json.encode(Command(actor="plain", what="internal", command="retry", id="x"))
    with ActorTestDriver(plain.app, partitions=3) as driver:
        for partition in range(3):
            driver.send(
                plain.topic, key=key, value=told, headers=[("trace", b"1"), ("fa-control", told)], partition=partition
            )
        driver.send(plain.topic, key="ada", value=b"1", headers=[("trace", b"1")])
        assert plain.handled == [b"1"]
        driver.crash(keep_disk=False)
        assert plain.handled == [b"1"]
    assert caplog.text.count("a control record is skipped: actor") == 3


def test_a_command_does_not_move_the_stream_time_of_timers() -> None:
    app, fired = App("timed", broker="kafka://127.0.0.1:1"), list[str]()
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, timers=True, name="timed")
    async def take(ctx: Context, value: str) -> None:
        if value == "due":
            fired.append(value)
        else:
            ctx.schedule("due", after=timedelta(minutes=1), stream_time=True)

    told = msgspec.json.encode(Command(actor="timed", what="internal", command="retry", id="x"))
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="ada", value="set", timestamp_ms=1_600_000_000_000)
        driver.send(topic, value="x", headers={"fa-control": told}, partition=0)
        assert fired == []
        driver.send(topic, key="ada", value="set", timestamp_ms=1_600_000_060_000)
        assert fired == ["due"]


@pytest.mark.parametrize("operation", [RetryStopped, DropStopped])
async def test_no_command_is_sent_to_an_actor_that_obeys_none(operation: type[RetryStopped | DropStopped]) -> None:
    setup: Any = SimpleNamespace(app=Plain(1).app)
    with pytest.raises(UsageError, match=r"actor plain .*nothing of it stops between messages"):
        await operation(actor="plain", partition=0, id="x").run(setup, Caller("ann"))
