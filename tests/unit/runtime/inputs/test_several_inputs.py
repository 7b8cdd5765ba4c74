"""Actors with several inputs, on the test driver: one state, one commit, order by timestamps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, HandlerFailedError, OnError, receive
from actors._core.task.commit import parse_mark
from actors._core.task.lifecycle import State
from actors.errors import InputGrownError
from actors.ports import Identity, TopicPartition
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES, decode_metadata
from tests.sim.fakes.cluster import SimKafka


class Order(msgspec.Struct, tag=True):
    amount: int


class Payment(msgspec.Struct, tag=True):
    paid: int


class World:
    """An app whose actor notes what its handlers get, by key, in the order in which it comes."""

    def __init__(self, **options: Any) -> None:
        self.app = app = App("shop", store="memory://")
        self.orders = app.topic("orders", key_type=str, value_type=Order)
        self.payments = app.topic("payments", key_type=str, value_type=Payment)
        self.out = app.topic("out", key_type=str, value_type=str)
        self.state = app.store("state")
        self.seen: list[tuple[str, int, str]] = []

        @app.actor(self.orders, self.payments, stores=[self.state], **options)
        async def join(ctx: Context, value: Order | Payment) -> None:
            self.seen.append((ctx.topic, ctx.offset, ctx.message_id))
            number = value.amount if isinstance(value, Order) else -value.paid
            if number == 13:
                raise ValueError("thirteen")
            self.state.set(ctx.key, [*self.state.get(ctx.key, []), number])
            ctx.send(self.out, key=ctx.key, value=f"{ctx.topic} {number}")

        self.join = join


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=str)
def test_messages_of_all_inputs_meet_in_one_state(options: dict[str, Any]) -> None:
    world = World(**options)
    with ActorTestDriver(world.app) as driver:
        for number in range(1, 6):
            driver.send(world.orders, key="a", value=Order(number))
            driver.send(world.payments, key="a", value=Payment(number))
        assert driver.get(world.state, "a") == [sign * n for n in range(1, 6) for sign in (1, -1)]
        driver.crash()
        driver.send(world.payments, key="a", value=Payment(9))
        assert driver.get(world.state, "a")[-1] == -9
        driver.crash(keep_disk=False)
        driver.send(world.orders, key="a", value=Order(7))
        assert driver.get(world.state, "a")[-2:] == [-9, 7]
        assert len(driver.outputs(world.out)) == len(world.seen) == 12


def test_messages_go_in_the_order_of_their_timestamps_and_of_equal_ones_in_that_of_declaration() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.crash(settle=False)
        for topic, value, timestamp_ms in (
            (world.payments, Payment(1), 10),
            (world.payments, Payment(2), 30),
            (world.payments, Payment(3), 5),
            (world.orders, Order(1), 10),
            (world.orders, Order(2), 20),
            (world.orders, Order(3), 40),
        ):
            driver.post(topic, key="a", value=value, timestamp_ms=timestamp_ms)
        driver.settle()
        # Of an input the order is that of the offsets, whatever the timestamps.
        assert driver.get(world.state, "a") == [1, -1, 2, -2, -3, 3]


def test_records_of_an_open_transaction_arent_waited_for() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        cluster, source = driver._cluster, TopicPartition("payments", 0)
        epoch = cluster.transactions.init_producer_id("other", 900.0)

        async def begin() -> None:
            cluster.produce_in_transaction("other", epoch, source, [(b"a", b'{"type":"Payment","paid":1}', ())])

        driver._run(begin())
        for number in range(5):
            driver.post(world.orders, key="a", value=Order(number))
            driver.advance(1, settle=False)
        assert [topic for topic, *_ in world.seen] == ["orders"] * 5

        async def end() -> None:
            cluster.transactions.end("other", epoch, commit=True)

        driver._run(end())
        driver.settle()
        assert world.seen[-1][0] == "payments"


def test_a_commit_has_the_offsets_of_all_inputs_with_marks_of_one_transaction() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.post(world.orders, key="a", value=Order(1))
        driver.post(world.payments, key="a", value=Payment(1))
        driver.post(world.payments, key="a", value=Payment(2))
        driver.settle()
        found = [driver._cluster.group.committed(TopicPartition(topic, 0)) for topic in ("orders", "payments")]
        assert [committed.offset for committed in found if committed is not None] == [1, 2]
        marks = [parse_mark(committed.metadata) for committed in found if committed is not None]
        assert len({(mark.epoch, mark.transaction, mark.nonce) for mark in marks if mark is not None}) == 1
        assert len({mark.topics.input_id for mark in marks if mark is not None and mark.topics is not None}) == 2


def test_what_is_written_says_which_input_it_came_from_and_so_does_the_position() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        driver.send(world.orders, key="b", value=Order(1))
        driver.send(world.payments, key="a", value=Payment(1))
        (files,) = [files for files in driver._disk.files() if files.store == "state"]
        written = {key: decode_metadata(raw[:METADATA_BYTES]) for key, raw in files.data.items()}
        assert sorted((one.input, one.source_offset) for one in written.values()) == [(0, 1), (1, 0)]
        position = files.position()
        assert position is not None
        assert position.offsets == (2, 1)


def test_an_actor_with_one_input_writes_what_earlier_releases_read() -> None:
    app = App("shop", store="memory://")
    orders, state = app.topic("orders", key_type=str, value_type=str), app.store("state")

    @app.actor(orders, stores=[state])
    async def count(ctx: Context, value: str) -> None:
        state.set(ctx.key, value)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value="x")
        (files,) = driver._disk.files()
        assert {raw[0] for raw in files.data.values()} == {1}
        position = files.position()
        assert position is not None
        assert position.more_offsets == ()


def test_a_function_handles_one_input_and_the_actors_own_the_others() -> None:
    world, got = World(), []

    @world.app.on(world.join, world.payments)
    async def paid(ctx: Context, payment: Payment) -> None:
        got.append((ctx.topic, payment.paid))
        world.state.set(ctx.key, ["paid", payment.paid])

    with ActorTestDriver(world.app) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        driver.send(world.payments, key="a", value=Payment(2))
        assert (world.seen[0][0], got) == ("orders", [("payments", 2)])
        assert driver.get(world.state, "a") == ["paid", 2]


def test_a_class_takes_types_of_any_of_its_topics() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, value_type=Order)
    payments = app.topic("payments", key_type=str, value_type=Payment)

    class Account(msgspec.Struct):
        total: int = 0

    @app.actor(orders, payments)
    class Accounts(Actor[Account]):
        @receive
        async def order(self, message: Order) -> None:
            self.state.total += message.amount

        @receive
        async def payment(self, message: Payment) -> None:
            self.state.total -= message.paid

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="a", value=Order(10))
        driver.send(payments, key="a", value=Payment(3))
        assert driver.get(Accounts, "a").total == 7


def test_messages_that_cant_be_handled_name_their_input_and_stop_the_task() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        with pytest.raises(HandlerFailedError) as raised:
            driver.send(world.payments, key="a", value=Payment(-13))
        assert (raised.value.topic, raised.value.offset) == ("payments", 0)
        assert driver.get(world.state, "a") == [1]


def test_parked_messages_of_all_inputs_wait_in_one_line_and_are_retried_as_what_they_were() -> None:
    world = World(on_error=OnError(then="park"))
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.payments, key="a", value=Payment(-13))
        driver.send(world.orders, key="a", value=Order(1))
        driver.send(world.payments, key="b", value=Payment(2))
        assert [(one.topic, one.offset, one.value, one.error is None) for one in driver.parked(world.join, "a")] == [
            ("payments", 0, Payment(-13), False),
            ("orders", 0, Order(1), True),
        ]
        [letter] = driver.dead_letters(world.join)
        assert dict(letter.headers)["fa-origin"] == b"payments/0/0"
        world.seen.clear()
        driver.retry_parked(world.join, "a")
        assert world.seen[0] == ("payments", 0, "payments-0-0")
        driver.drop_parked(world.join, "a")
        assert driver.parked(world.join) == []
        assert driver.get(world.state, "b") == [-2]


def test_a_message_is_seen_once_whichever_input_it_comes_from() -> None:
    world = World(dedupe_by="id")
    with ActorTestDriver(world.app) as driver:
        driver.send(world.orders, key="a", value=Order(1), headers=[("id", b"1")])
        driver.send(world.payments, key="a", value=Payment(1), headers=[("id", b"1")])
        driver.send(world.payments, key="a", value=Payment(2), headers=[("id", b"2")])
        assert driver.get(world.state, "a") == [1, -2]


def test_timers_go_to_the_first_inputs_handler() -> None:
    app = App("shop", store="memory://")
    orders = app.topic("orders", key_type=str, value_type=Order)
    payments = app.topic("payments", key_type=str, value_type=Payment)
    fired = []

    @app.actor(orders, payments, timers=True)
    async def join(ctx: Context, value: Order) -> None:
        fired.append((ctx.topic, ctx.timer, value.amount))

    @app.on(join, payments)
    async def paid(ctx: Context, payment: Payment) -> None:
        ctx.schedule(Order(payment.paid), after=timedelta(seconds=5), name="late")

    with ActorTestDriver(app) as driver:
        driver.send(payments, key="a", value=Payment(3))
        driver.advance(6)
        assert fired == [("orders", "late", 3)]


async def soon(call: Callable[[], Any]) -> None:
    """Call what needs a running loop."""
    call()


def declared(*topics: str, partitioner: str | None = None) -> App:
    app = App("shop", store="memory://")
    inputs = [app.topic(name, key_type=str, value_type=str) for name in topics]
    if partitioner is not None:
        inputs[-1].partitioner = app.topic("x", partitioner=partitioner).partitioner

    @app.actor(*inputs)
    async def join(ctx: Context, value: str) -> None: ...

    return app


def test_a_topic_is_listed_once() -> None:
    with pytest.raises(ConfigurationError, match="topic orders is listed twice"):
        declared("orders", "payments", "orders")


GROWN = ["orders", "payments"]


def grow(driver: ActorTestDriver, name: str) -> None:
    """Give a topic a third partition, as an operator does."""
    cluster: Any = driver._cluster
    SimKafka.grow_topic(cluster, name, 3)


@pytest.mark.parametrize("learns", ["from the client", "from the leader", "in a takeover"])
@pytest.mark.parametrize("name", GROWN)
def test_whichever_input_grows_under_a_worker_the_tasks_stop_and_nothing_is_lost(name: str, learns: str) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        worker: Any = driver._worker
        process: Any = driver._process
        grow(driver, name)
        given = list(worker._source.source.partitions)
        if learns == "in a takeover":
            for number in range(2):
                worker.lost(TopicPartition("orders", number), "it is looked for again")
        elif learns == "from the client":
            worker.grown({name: 3})
        else:
            given.append(TopicPartition(name, 2))
        if learns != "in a takeover":
            process.spawn(soon(lambda: worker.assigned(Identity("driver", 1), given)), name="assigned")
        why = f"topic {name}, .* was given more partitions than 2, it has 3: keys"
        with pytest.raises(InputGrownError, match=why) as told:
            driver.send(world.payments, key="a", value=Payment(1))
        assert "than their state" in str(told.value)
        assert "page 'Snapshots', 'Another cluster, another number of partitions'" in str(told.value)
        driver._run(asyncio.sleep(1.0))
        assert [task.state for task in worker.tasks] == [State.REFUSED] * 2
        assert world.seen == [("orders", 0, world.seen[0][2])]


@pytest.mark.parametrize("name", GROWN)
def test_whichever_input_has_grown_a_task_that_takes_over_is_refused(name: str) -> None:
    """As of a worker that learned of its inputs' partitions before."""
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        driver._kill()
        grow(driver, name)
        driver._start()
        with pytest.raises(InputGrownError, match=f"topic {name}, .* was given more partitions than 2, it has 3: keys"):
            driver.send(world.payments, key="a", value=Payment(1))
        assert len(world.seen) == 1


@pytest.mark.parametrize("name", GROWN)
def test_whichever_input_has_grown_a_worker_doesnt_start_again(name: str) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=2) as driver:
        driver.send(world.orders, key="a", value=Order(1))
        grow(driver, name)
        counts = ", ".join(f"{one} {3 if one == name else 2}" for one in GROWN)
        with pytest.raises(
            ConfigurationError, match=rf"different numbers of partitions \({counts}\).*page 'Snapshots'"
        ):
            driver.restart()


def test_inputs_of_an_actor_without_state_are_given_partitions_together() -> None:
    app = declared("orders", "payments")
    with ActorTestDriver(app, partitions=2) as driver:
        driver._kill()
        grow(driver, "payments")
        driver._start()
        with pytest.raises(InputGrownError, match=r"in its other inputs, orders\. .*Have all inputs with one number"):
            driver.settle()
        with pytest.raises(ConfigurationError) as told:
            driver.restart()
        assert "state" not in str(told.value)


def test_inputs_have_one_partitioner() -> None:
    app = declared("orders", "payments", partitioner="crc32")
    with pytest.raises(ConfigurationError, match="orders murmur2, payments crc32"), ActorTestDriver(app):
        pass


def test_only_inputs_behind_the_first_get_handlers_of_their_own() -> None:
    world = World()
    with pytest.raises(ConfigurationError, match="behind the first, payments, not for topic orders"):
        world.app.on(world.join, world.orders)
    world.app.on(world.join, world.payments)(lambda ctx, value: None)
    with pytest.raises(ConfigurationError, match="topic payments has a handler already"):
        world.app.on(world.join, world.payments)(lambda ctx, value: None)


def test_two_actors_dont_share_an_input() -> None:
    world = World()
    with pytest.raises(ConfigurationError, match="topic payments is the input of actor join"):
        world.app.actor(world.payments, name="other")(lambda ctx, value: None)
