"""Records in another partition than their key's: noticed before their handler is called, and what becomes of them."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from zlib import crc32

import pytest

from actors import Actor, App, ConfigurationError, Context, ForeignKeyError, HandlerFailedError, receive
from actors._core.partitioner import CRC32, MURMUR2, PARTITIONERS
from actors._core.task.completed import CompletedOffsets
from actors.client import StateClient, _Stores
from actors.errors import MisplacedRecordError
from actors.ports import RefusedRecord, TopicPartition
from actors.runtime.inputs.inbox import PlacedRecords
from actors.runtime.inputs.progress import InputProgress
from actors.testing import ActorTestDriver

PARTITIONS = 3
CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 4])
ALL = pytest.mark.parametrize("name", ["murmur2", "crc32", "function"])


def by_length(key: bytes, partitions: int) -> int:
    return len(key) % partitions


def declared(name: str) -> Any:
    return by_length if name == "function" else name


def home(name: str, key: str) -> int:
    return by_length(key.encode(), PARTITIONS) if name == "function" else PARTITIONERS[name].home(key.encode(), 3)


class World:
    """An actor that counts by key."""

    def __init__(self, partitioner: Any = None, *, placement: Any = "key", is_stateless: bool = False, **options: Any):
        self.app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = self.app.topic("in", key_type=str, value_type=str, partitioner=partitioner)
        self.out = self.app.topic("out", key_type=str, value_type=str)
        self.counts = self.app.store("counts", key_type=str, value_type=int, placement=placement)
        self.seen: list[str] = []

        @self.app.actor(self.topic, stores=[] if is_stateless else [self.counts], **options)
        async def work(ctx: Context, value: str) -> None:
            self.seen.append(value)
            if not is_stateless:
                self.counts.set(ctx.key, self.counts.get(ctx.key, 0) + 1)

    def driver(self) -> ActorTestDriver:
        return ActorTestDriver(self.app, partitions=PARTITIONS)


def key_in(partition: int, name: str = "murmur2", *, elsewhere_by: str | None = None) -> str:
    """A key that a partitioner puts there, and another one somewhere else."""
    keys = ("k" * length + str(number) for number in range(1_000) for length in (1, 2, 3))
    return next(
        key
        for key in keys
        if home(name, key) == partition and (elsewhere_by is None or home(elsewhere_by, key) != partition)
    )


@CONCURRENCY
def test_the_partition_stops_in_front_of_the_first_and_all_before_it_is_committed(concurrency: int) -> None:
    world, right = World(concurrency=concurrency), key_in(1)
    wrong = key_in(1, "crc32", elsewhere_by="murmur2")
    with world.driver() as driver:
        for key, value in ((right, "1"), (right, "2"), (wrong, "3"), (right, "4"), (wrong, "5")):
            driver.post(world.topic, key=key, value=value, partition=1)
        with pytest.raises(MisplacedRecordError) as caught:
            driver.settle()
        driver.advance(5, settle=False)
        assert world.seen == ["1", "2"]
        assert driver.get(world.counts, right) == 2
        assert driver.get(world.counts, wrong) is None
        task = next(task for task in driver._worker.tasks if task.partition == 1)
        assert task.meters.committed_offsets["in"] == 2
        assert task.meters.misplaced == 1
    error = caught.value
    assert (error.topic, error.partition, error.offset, error.key) == ("in", 1, 2, wrong.encode())
    text = str(error)
    assert f"it is in partition 1, and its key belongs in partition {home('murmur2', wrong)}" in text
    assert "crc32 puts this key where it is" in text
    assert 'misplaced="warn"' in text


@CONCURRENCY
def test_later_batches_are_not_handled_either(concurrency: int) -> None:
    world, right = World(concurrency=concurrency), key_in(1)
    with world.driver() as driver:
        driver.post(world.topic, key=key_in(0), value="1", partition=1)
        driver.advance(1, settle=False)
        for number in range(30):
            driver.post(world.topic, key=right, value=str(number), partition=1)
            driver.advance(0.1, settle=False)
        assert world.seen == []
        driver.post(world.topic, key=key_in(0), value="other", partition=0)
        driver.advance(1, settle=False)
        assert world.seen == ["other"]


@CONCURRENCY
def test_a_warning_and_a_count_are_enough_if_so_declared(concurrency: int, caplog: pytest.LogCaptureFixture) -> None:
    world, right, wrong = World(misplaced="warn", concurrency=concurrency), key_in(1), key_in(0)
    with caplog.at_level(logging.WARNING), world.driver() as driver:
        for key, value in ((right, "1"), (wrong, "2"), (wrong, "3"), (right, "4")):
            driver.post(world.topic, key=key, value=value, partition=1)
        driver.settle()
        assert sorted(world.seen) == ["1", "2", "3", "4"]
        task = next(task for task in driver._worker.tasks if task.partition == 1)
        assert task.meters.misplaced == 2
    assert caplog.text.count("its key belongs in partition 0") == 1


@ALL
def test_the_declared_partitioner_counts(name: str) -> None:
    world = World(declared(name))
    with world.driver() as driver:
        for partition in range(PARTITIONS):
            driver.send(world.topic, key=key_in(partition, name), value=name, partition=partition)
        assert world.seen == [name] * PARTITIONS
        with pytest.raises(MisplacedRecordError, match="its key belongs in partition 2"):
            driver.send(world.topic, key=key_in(2, name), value="wrong", partition=0)


@pytest.mark.parametrize(
    "options",
    [
        {"dedupe_by": "id"},
        {"timers": True},
        {"concurrency": 2, "dedupe_by": "id"},
    ],
)
def test_what_is_kept_by_key_is_not_only_stores(options: dict[str, Any]) -> None:
    world = World(is_stateless=True, **options)
    with world.driver() as driver, pytest.raises(MisplacedRecordError):
        driver.send(world.topic, key=key_in(0), value="1", partition=1)


@pytest.mark.parametrize(
    "options", [{"is_stateless": True}, {"placement": "task"}, {"is_stateless": True, "on_error": "park"}]
)
def test_actors_that_keep_nothing_by_key_take_keys_anywhere(options: dict[str, Any]) -> None:
    world = World(**options)
    with world.driver() as driver:
        driver.send(world.topic, key=key_in(0), value="1", partition=1)
        assert world.seen == ["1"]


def test_states_of_classes_and_answers_are_kept_by_key() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    states, asked = (app.topic(name, key_type=str, value_type=str) for name in ("states", "asked"))

    @app.actor(states)
    class Count(Actor[int]):
        @receive
        def count(self, _: str) -> None:
            self.state += 1

    @app.actor(asked)
    def reply(ctx: Context, value: str) -> str:
        return value

    with ActorTestDriver(app, partitions=PARTITIONS) as driver, pytest.raises(MisplacedRecordError):
        driver.send(states, key=key_in(0), value="1", partition=1)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver, pytest.raises(MisplacedRecordError):
        driver.send(asked, key=key_in(0), value="1", partition=1)


def test_librdkafka_puts_the_empty_key_anywhere() -> None:
    world = World("crc32")
    with world.driver() as driver:
        for partition in range(PARTITIONS):
            driver.send(world.topic, key="", value="1", partition=partition)
    with World().driver() as driver, pytest.raises(MisplacedRecordError):
        driver.send(world.topic, key="", value="1", partition=(MURMUR2.home(b"", 3) + 1) % 3)


def test_a_command_for_a_parked_message_goes_where_that_is() -> None:
    world = World(misplaced="stop", on_error="park")
    with world.driver() as driver:
        told = b'{"actor": "work", "what": "message", "command": "retry"}'
        driver.send(world.topic, key=key_in(0), value="x", partition=1, headers={"fa-control": told})
        assert world.seen == []


@CONCURRENCY
def test_a_commands_header_brings_no_message_into_another_partition(concurrency: int) -> None:
    world = World(misplaced="stop", concurrency=concurrency)
    with world.driver() as driver:
        driver.send(world.topic, key=key_in(0), value="x", partition=1, headers={"fa-control": b"x"})
        assert world.seen == []
        with pytest.raises(MisplacedRecordError):
            driver.send(world.topic, key=key_in(0), value="x", partition=1, headers={"fa-controls": b"x"})
    assert world.seen == []


def test_a_function_that_raises_stops_the_partition_only() -> None:
    def picky(key: bytes, partitions: int) -> int:
        if key == b"bad":
            raise KeyError("bad")
        return 0

    world = World(picky)
    with world.driver() as driver:
        driver.post(world.topic, key="a", value="1", partition=0)
        driver.post(world.topic, key="bad", value="2", partition=0)
        with pytest.raises(MisplacedRecordError, match=r"partitioner .*picky raised KeyError: 'bad'"):
            driver.settle()
        assert driver.get(world.counts, "a") == 1


# --- where records, questions and keys go -----------------------------------------------------------------------------


@ALL
def test_sends_tells_asks_and_placement_checks_go_by_the_declared_partitioner(name: str) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    start = app.topic("start", key_type=str, value_type=str)
    told = app.topic("told", key_type=str, value_type=str, partitioner=declared(name))
    sent = app.topic("sent", key_type=str, value_type=str, partitioner=declared(name))
    totals = app.store("totals", key_type=str, value_type=int)
    answers: list[str] = []

    @app.actor(told, stores=[totals])
    async def total(ctx: Context, value: str) -> str:
        if value == "foreign":
            totals.set(key_in((ctx.partition + 1) % PARTITIONS, name), 1)
        totals.set(ctx.key, totals.get(ctx.key, 0) + 1)
        totals.set(key_in(ctx.partition, name), 0)
        return f"{value} in {ctx.partition}"

    @app.actor(start, concurrency=2)
    async def begin(ctx: Context, value: str) -> None:
        for number in range(6):
            ctx.send(sent, key=f"key-{number}", value=value)
            ctx.send("sent", key=f"name-{number}", value=value)
            ctx.tell(total, f"key-{number}", value)
            answers.append(await ctx.ask(total, f"asked-{number}", value))

    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        driver.send(start, key="go", value="v")
        records = driver.outputs(sent)
        assert len(records) == 12
        assert all(one.partition == home(name, one.key) for one in records)
        assert answers == [f"v in {home(name, f'asked-{number}')}" for number in range(6)]
        assert {driver.get(totals, f"key-{number}") for number in range(6)} == {1}
        assert driver.ask(total, "outside", "w") == f"w in {home(name, 'outside')}"
        with pytest.raises(HandlerFailedError) as caught:
            driver.send(told, key="k", value="foreign")
        assert isinstance(caught.value.__cause__, ForeignKeyError)


def test_published_stores_go_by_their_topics_partitioner() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    source = app.topic("in", key_type=str, value_type=str)
    published = app.topic("published", key_type=str, value_type=str, partitioner="crc32")
    store = app.store("held", key_type=str, value_type=str, publish=published)

    @app.actor(source, stores=[store])
    async def keep(ctx: Context, value: str) -> None:
        store.set(ctx.key, value)

    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for number in range(8):
            driver.send(source, key=f"key-{number}", value="v")
        records = driver.outputs(published)
        assert len(records) == 8
        assert all(one.partition == crc32(one.key.encode()) % PARTITIONS for one in records)


async def test_what_faust_sends_goes_by_the_declared_partitioner() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str, partitioner="crc32")
    found: list[Any] = []

    class Asks:
        async def partitions_of(self, name: str) -> int:
            assert name == "in"
            return 7

    class Producer:
        async def send_and_wait(self, topic: str, key: bytes, value: bytes, *, partition: int, **_: Any) -> None:
            found.append(partition)

    app._asks = Asks()  # type: ignore[assignment]
    for one in (topic, topic.derive_topic()):
        fut = one.as_future_message(key=b"ada", value=b"v")
        sent: Any = one
        sent._get_producer = lambda: _given(Producer())
        sent._finalize_message = lambda fut, ret: _given(None)
        await sent.publish_message(fut, wait=True)
    assert found == [crc32(b"ada") % 7] * 2


async def _given(value: Any) -> Any:
    return value


def test_declarations_that_cannot_be_meant() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"app.topic\('in'\): partitioner='random'"):
        app.topic("in", partitioner="random")
    topic = app.topic("in", partitioner="crc32")
    app.topic("in", value_type=bytes)
    assert app.partitioner_for("in") is CRC32
    app.topic("in", partitioner="murmur2")
    with pytest.raises(ConfigurationError, match="partitioner=crc32 and partitioner=murmur2: a topic has one"):
        app.partitioner_for("in")
    with pytest.raises(ConfigurationError, match="misplaced='skip': it is one of stop, warn"):
        app.actor(topic, name="work", misplaced="skip")(lambda ctx, value: None)  # type: ignore[arg-type]


# --- which records are looked at --------------------------------------------------------------------------------------


class Clock:
    """Stands still."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Record:
    """What is looked at of a record."""

    def __init__(self, offset: int, key: bytes | None) -> None:
        self.offset, self.timestamp, self.key = offset, offset, key
        self.headers: tuple[Any, ...] = ()


def placed(progress: CompletedOffsets, misplaced: str = "stop") -> PlacedRecords:
    from types import SimpleNamespace as Given

    spec: Any = Given(partition_count=PARTITIONS, misplaced=misplaced)
    of = InputProgress(0, TopicPartition("in", 1), Given(partitioner=MURMUR2), progress, Given(), 0)  # type: ignore[arg-type]
    meters: Any = Given(misplaced=0)
    return PlacedRecords(spec, of, meters, Clock())


RIGHT, WRONG = key_in(1).encode(), key_in(0).encode()


@pytest.mark.parametrize("wrong", [0, 1, 500, 999])
def test_all_records_are_looked_at(wrong: int) -> None:
    checks = placed(CompletedOffsets(0))
    for _ in range(3):
        assert len(checks.checked([Record(n, RIGHT) for n in range(1_000)])) == 1_000  # type: ignore[arg-type]
        checks._clock.now_s += 60  # type: ignore[attr-defined]
    records: Any = [Record(n, WRONG if n == wrong else RIGHT) for n in range(1_000)]
    found = checks.checked(records)
    assert [one.offset for one in found] == list(range(wrong + 1))
    assert isinstance(found[-1], RefusedRecord)
    assert found[:-1] == records[:wrong]
    assert checks.checked(records) == ()


def test_what_is_finished_already_and_what_has_no_key_stops_nothing() -> None:
    checks = placed(CompletedOffsets(10, {12}))
    records: Any = [Record(9, WRONG), Record(10, None), Record(12, WRONG), Record(13, RIGHT)]
    assert checks.checked(records) == records
    assert len(checks.checked([Record(14, RIGHT), Record(15, WRONG), Record(16, RIGHT)])) == 2  # type: ignore[list-item]


def test_timers_fire_where_their_key_is(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str, partitioner="crc32")
    seen: list[tuple[int, str]] = []

    @app.actor(topic, timers=True)
    async def work(ctx: Context, value: str) -> None:
        seen.append((ctx.partition, value))
        if value == "set":
            ctx.schedule("fired", after=timedelta(seconds=5))

    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        driver.send(topic, key="ada", value="set")
        driver.advance(10)
        assert seen == [(crc32(b"ada") % PARTITIONS, "set"), (crc32(b"ada") % PARTITIONS, "fired")]


@pytest.mark.parametrize(
    ("said", "home"),
    [("crc32", crc32(b"ada") % 7), ("murmur2", MURMUR2.home(b"ada", 7)), ("f", None)],
)
async def test_clients_follow_owners_of_partitioners_that_they_know(said: str, home: int | None) -> None:
    about = {"store": "s", "actor": "a", "placement": "key", "partitions": 7, "keys": "text", "partitioner": said}
    client = StateClient("http://127.0.0.1:1")
    routes = {("a", number): f"http://127.0.0.1:{number + 1}" for number in range(7)}
    client._stores = _Stores({"s": about}, routes)
    assert await client._route("s", "ada") == (None if home is None else f"http://127.0.0.1:{home + 1}")
