"""The replay of actors with several inputs: the records of all of them in one order, against what a driver holds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from actors import App, Context
from actors.ports import InputRecord, TopicPartition
from actors.replay.replay import STATE, UNKNOWN, Replayed, Replayer
from actors.runtime.message.internal_messages import InternalRecord
from actors.testing import ActorTestDriver


class Order(msgspec.Struct, tag=True):
    amount: int


class Payment(msgspec.Struct, tag=True):
    paid: int


class World:
    """Orders and payments in one state: a list, so that the order of the messages shows."""

    def __init__(self, **options: Any) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1", store="memory://")
        self.orders = app.topic("orders", key_type=str, value_type=Order)
        self.payments = app.topic("payments", key_type=str, value_type=Payment)
        self.state = app.store("state", key_type=str, value_type=list)

        @app.actor(self.orders, self.payments, stores=[self.state], **options)
        async def join(ctx: Context, value: Order) -> None:
            self.add(ctx, value.amount)
            if options.get("timers"):
                ctx.schedule(Order(1000 + value.amount), after=timedelta(seconds=1), name="later")

        @app.on(join, self.payments)
        async def paid(ctx: Context, value: Payment) -> None:
            self.add(ctx, -value.paid)

        self.join = join

    def add(self, ctx: Context, number: int) -> None:
        if number == -13:
            raise ValueError("thirteen")
        self.state.set(ctx.key, [*self.state.get(ctx.key, []), [number, ctx.now_ms]])

    def replayed(self, driver: ActorTestDriver, **options: Any) -> list[Replayed]:
        logs = [driver._cluster.fetch(TopicPartition(name, 0), 0, 1 << 30)[0] for name in ("orders", "payments")]
        return list(Replayer.of(self.app, "join").run(0, merged(logs), partition_count=1, **options))

    def items(self, rows: list[Replayed]) -> dict[str, Any]:
        decode = self.state.decode_value
        return {str(row.key, "utf-8"): decode(row.value) for row in rows if row.kind == STATE and row.store == "state"}


def merged(logs: list[list[InputRecord]]) -> Iterator[tuple[int, InputRecord]]:
    """The order of the runtime, from the highest timestamp so far of each input."""

    def ranked(place: int, log: list[InputRecord]) -> Iterator[tuple[int, int, int, InputRecord]]:
        highest = 0
        for record in log:
            highest = max(highest, record.timestamp)
            yield highest, place, record.offset, record

    ways = heapq.merge(*(ranked(place, log) for place, log in enumerate(logs)))
    return ((place, record) for _, place, _, record in ways)


def post_all(world: World, driver: ActorTestDriver) -> None:
    """Records whose timestamps go back and are equal, all there before the first is handled."""
    driver.crash(settle=False)
    at_ms = driver._clock.wall_ms()
    for topic, value, after_ms in (
        (world.payments, Payment(1), 10),
        (world.payments, Payment(2), 30),
        (world.payments, Payment(3), 5),
        (world.orders, Order(1), 10),
        (world.orders, Order(2), 20),
        (world.orders, Order(3), 30),
        (world.orders, Order(4), 30),
        (world.payments, Payment(4), 31),
    ):
        driver.post(topic, key="a", value=value, timestamp_ms=at_ms + after_ms)
    driver.settle()


def test_all_inputs_are_replayed_in_the_order_of_the_workers() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        post_all(world, driver)
        held = [number for number, _ in driver.get(world.state, "a")]
        assert held == [1, -1, 2, 3, 4, -2, -3, -4]
        rows = world.replayed(driver)
    assert [number for number, _ in world.items(rows)["a"]] == held
    assert rows[-1].source_offset == 8


def test_timers_fire_between_records_of_all_inputs() -> None:
    world = World(timers=True)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        driver.advance(0.5)
        driver.send(world.payments, key="a", value=Payment(1))
        driver.advance(1)
        driver.send(world.payments, key="a", value=Payment(2))
        held = driver.get(world.state, "a")
        assert [number for number, _ in held] == [1, -1, 1001, -2]
        rows = world.replayed(driver)
    assert world.items(rows) == {"a": held}


def test_what_is_unknown_names_its_input_and_records_before_the_starts_are_skipped() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        driver.send(world.payments, key="a", value=Payment(1))
        driver.send(world.payments, key="a", value=Payment(2))
        rows = world.replayed(driver, starts=[1, 1])
        assert [number for number, _ in world.items(rows)["a"]] == [-2]
    bad = InternalRecord(0, 1_000, b"a", msgspec.json.encode(Payment(13)), [])
    rows = list(Replayer.of(world.app, "join").run(0, [(1, bad)], partition_count=1))
    (unknown,) = [row for row in rows if row.kind == UNKNOWN]
    assert unknown.value.startswith(b"payments: ")
