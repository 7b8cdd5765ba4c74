"""Messages without a key: handled where no state lives with keys, by the actor's policy where it does."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, HandlerFailedError, OnError, UndecodableRecordError, receive
from actors._core.keys import place_of
from actors.runtime.quarantine.quarantine import ParkedMessage
from actors.testing import ActorTestDriver

CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 4])


class World:
    """An actor that fails for "bad" until it is mended."""

    def __init__(self, *, placement: str | None = None, **options: Any) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.out = self.app.topic("out", key_type=str, value_type=str)
        self.letters = self.app.topic("shop-dead-letters", key_type=bytes, value_type=bytes)
        self.is_mended = False
        self.seen: list[tuple[str | None, str]] = []
        stores = []
        if placement is not None:
            stores.append(self.app.store("counts", key_type=str, value_type=int, placement=placement))

        @self.app.actor(self.topic, stores=stores, **options)
        async def work(ctx: Context, value: str) -> None:
            if value == "bad" and not self.is_mended:
                raise ValueError("can't do it")
            if value == "timer":
                ctx.schedule("later", after=timedelta(seconds=1))
            if placement == "task":
                stores[0].set("all", stores[0].get("all", 0) + 1)
            self.seen.append((ctx.key, value))
            ctx.send(self.out, key=ctx.key, value=value)

    def post(self, driver: ActorTestDriver, *messages: tuple[str | None, str]) -> None:
        for key, value in messages:
            driver.post(self.topic, key=key, value=value)
        driver.settle()

    def parked(self, driver: ActorTestDriver) -> list[tuple[bytes, ParkedMessage]]:
        found = sorted((place_of(place), raw) for place, raw in driver.items(self.app.stores["work-parked"]).items())
        return [(key, msgspec.json.decode(raw, type=ParkedMessage)) for (key, _), raw in found]


@CONCURRENCY
def test_without_state_by_key_the_handler_gets_none(concurrency: int) -> None:
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, ("a", "1"), (None, "2"), (None, "3"), ("a", "4"))
        assert sorted(world.seen, key=str) == [("a", "1"), ("a", "4"), (None, "2"), (None, "3")]
        assert sorted((sent.key or "", sent.value) for sent in driver.outputs(world.out)) == [
            ("", "2"),
            ("", "3"),
            ("a", "1"),
            ("a", "4"),
        ]


def test_a_store_with_task_placement_can_be_used() -> None:
    world = World(placement="task")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, (None, "1"), (None, "2"))
        assert driver.get(world.app.stores["counts"], "all") == 2


def test_those_without_a_key_are_handled_side_by_side() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    running, most = [0], [0]

    @app.actor(topic, concurrency=3)
    async def work(ctx: Context, value: str) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(1)
        running[0] -= 1

    with ActorTestDriver(app, partitions=1) as driver:
        for number in range(6):
            driver.post(topic, key=None, value=str(number))
        driver.settle()
    assert most == [3]


@CONCURRENCY
def test_with_state_by_key_it_is_a_bad_record(concurrency: int) -> None:
    world = World(placement="key", concurrency=concurrency)
    with (
        ActorTestDriver(world.app, partitions=1) as driver,
        pytest.raises(UndecodableRecordError, match="the key is null"),
    ):
        world.post(driver, ("a", "1"), (None, "2"), ("a", "3"))
    assert world.seen == [("a", "1")] if concurrency == 1 else ("a", "1") in world.seen


def test_a_class_with_state_takes_none_either() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic)
    class Count(Actor[int]):
        @receive
        def count(self, _: str) -> None:
            self.state += 1

    with ActorTestDriver(app, partitions=1) as driver, pytest.raises(UndecodableRecordError, match="the key is null"):
        driver.send(topic, key=None, value="1")


@CONCURRENCY
@pytest.mark.parametrize("placement", ["key", None])
def test_skipped_and_buried(placement: str | None, concurrency: int) -> None:
    world = World(placement=placement, concurrency=concurrency, on_error=OnError(then="skip", dead_letters=True))
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, ("a", "1"), (None, "bad"), ("a", "3"))
        assert sorted(world.seen) == [("a", "1"), ("a", "3")]
        [letter] = driver.outputs(world.letters)
        assert (letter.key, letter.value) == (None, b"bad")


@CONCURRENCY
def test_parked_ones_hold_nothing_up_and_can_be_retried_and_dropped(concurrency: int) -> None:
    world = World(on_error="park", concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, (None, "bad"), (None, "2"), ("a", "3"), (None, "bad"), (None, "bad"), (None, "5"))
        assert sorted(world.seen, key=str) == [("a", "3"), (None, "2"), (None, "5")]
        assert [(key, message.key, message.value) for key, message in world.parked(driver)] == [(b"", None, b"bad")] * 3
        assert len(driver.outputs(world.letters)) == 3
        ids = [message.message_id for _, message in world.parked(driver)]
        drop = {"actor": "work", "what": "message", "command": "drop", "id": ids[1]}
        driver.send(world.topic, key="", value="control", headers={"fa-control": json.dumps(drop).encode()})
        assert [message.message_id for _, message in world.parked(driver)] == [ids[0], ids[2]]
        world.is_mended = True
        retry = {"actor": "work", "what": "message", "command": "retry"}
        driver.send(world.topic, key="", value="control", headers={"fa-control": json.dumps(retry).encode()})
        assert world.parked(driver) == []
        assert world.seen[-2:] == [(None, "bad")] * 2


def test_they_survive_a_crash_between_parking_and_retrying() -> None:
    world = World(on_error="park")
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, (None, "bad"))
        driver.crash()
        world.post(driver, (None, "2"), (None, "bad"))
        assert len(world.parked(driver)) == 2
        assert world.seen == [(None, "2")]


def test_ids_are_remembered() -> None:
    world = World(dedupe_by="id")
    with ActorTestDriver(world.app, partitions=1) as driver:
        for number in ("7", "8", "7"):
            driver.send(world.topic, key=None, value=number, headers={"id": number.encode()})
        assert world.seen == [(None, "7"), (None, "8")]


def test_timers_need_a_key() -> None:
    world = World(timers=True)
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, (None, "1"))
        with pytest.raises(HandlerFailedError, match=r"ctx\.schedule\(\): the message at in\[0\] offset 1 has no key"):
            world.post(driver, (None, "timer"))


def test_effects_need_a_key() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.effect()
    def act(call: Any, value: str) -> None:
        raise AssertionError("never called")

    @app.actor(topic, effects=[act])
    async def work(ctx: Context, value: str) -> None:
        ctx.effect(act, value)

    with (
        ActorTestDriver(app, partitions=1) as driver,
        pytest.raises(HandlerFailedError, match=r"ctx\.effect\(\): .* has no key"),
    ):
        driver.send(topic, key=None, value="1")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_id_counts_for_all_messages_without_a_key(concurrency: int) -> None:
    app = App("once", broker="kafka://127.0.0.1:1")
    topic, out = (app.topic(name, key_type=str, value_type=str) for name in ("in", "out"))

    @app.actor(topic, concurrency=concurrency, dedupe_by=lambda ctx, text: text)
    async def once(ctx: Context, text: str) -> None:
        await asyncio.sleep(0.05)
        ctx.send(out, key=None, value=text)

    with ActorTestDriver(app, partitions=1) as driver:
        for _ in range(3):
            driver.post(topic, value="order-1")
        driver.settle()
        assert [sent.value for sent in driver.outputs(out)] == ["order-1"]
