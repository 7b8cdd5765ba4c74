"""Key-parallel handlers: messages of different keys overlap, those of one key don't, and each is committed once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from actors import Actor, App, ConfigurationError, Context, ForeignKeyError, HandlerFailedError, OnError, receive
from actors.testing import ActorTestDriver


def make(concurrency: int = 4, **options: Any) -> Any:
    app = App("parallel", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    counts = app.store("counts", key_type=str, value_type=int)
    log: list[str] = []

    @app.actor(topic, stores=[counts], concurrency=concurrency, **options)
    async def work(ctx: Context, value: str) -> None:
        name, _, seconds = value.partition(":")
        log.append(f"begin {name}")
        counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
        await asyncio.sleep(float(seconds or 0))
        if name.startswith("bad"):
            raise ValueError(name)
        ctx.send(done, key=ctx.key, value=f"{name} {counts.get(ctx.key)}")
        log.append(f"end {name}")

    return app, topic, done, counts, log


def values(driver: ActorTestDriver, topic: Any) -> list[str]:
    return [sent.value for sent in driver.outputs(topic)]


def test_messages_of_different_keys_overlap():
    app, topic, done, counts, log = make()
    with ActorTestDriver(app, partitions=1) as driver:
        for number, seconds in enumerate((3, 1, 2)):
            driver.post(topic, key=f"k{number}", value=f"m{number}:{seconds}")
        driver.settle()
        assert log == ["begin m0", "begin m1", "begin m2", "end m1", "end m2", "end m0"]
        assert values(driver, done) == ["m1 1", "m2 1", "m0 1"]
        assert driver.items(counts) == {"k0": 1, "k1": 1, "k2": 1}


def test_messages_of_one_key_stay_in_order():
    app, topic, done, counts, log = make()
    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(topic, key="slow", value="s:5")
        for number in range(3):
            driver.post(topic, key="a", value=f"m{number}:1")
        driver.settle()
        assert log == ["begin s", "begin m0", "end m0", "begin m1", "end m1", "begin m2", "end m2", "end s"]
        assert values(driver, done) == ["m0 1", "m1 2", "m2 3", "s 1"]
        assert driver.get(counts, "a") == 3


def test_no_more_run_at_once_than_was_said():
    app, topic, _, _, log = make(concurrency=2)
    with ActorTestDriver(app, partitions=1) as driver:
        for number in range(6):
            driver.post(topic, key=f"k{number}", value=f"m{number}:1")
        driver.settle()
    running = most = 0
    for line in log:
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    assert most == 2


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_is_finished_behind_a_slow_message_is_committed_and_not_handled_again(concurrency: int):
    app, topic, done, counts, log = make()
    with ActorTestDriver(app) as driver:
        driver.post(topic, key="quick", value="before")
        driver.post(topic, key="slow", value="s:100")
        for number in range(5):
            driver.post(topic, key="a", value=f"m{number}")
        driver.post(topic, key="slow", value="t")
        driver.advance(10, settle=False)
        assert values(driver, done) == ["before 1", *(f"m{number} {number + 1}" for number in range(5))]
        assert driver.items(counts) == {"quick": 1, "a": 5}
        log.clear()
        newer, *_ = make(concurrency)
        driver.restart(newer) if concurrency == 1 else driver.crash(settle=False)
        driver.settle()
        assert values(driver, done) == ["s 1", "t 2"]
        assert driver.items(counts) == {"quick": 1, "slow": 2, "a": 5}


def test_what_was_finished_is_known_although_the_next_owner_dies_too():
    app, topic, done, _, _ = make()
    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(topic, key="slow", value="s:100")
        driver.post(topic, key="a", value="m0")
        driver.advance(10, settle=False)
        for _ in range(3):
            driver.crash(keep_disk=False, settle=False)
            driver.post(topic, key="a", value="more")
            driver.advance(10, settle=False)
        driver.settle()
        assert values(driver, done) == ["m0 1", "more 2", "more 3", "more 4", "s 1"]


def test_a_message_that_fails_stops_the_partition_with_all_before_it_committed():
    app, topic, done, counts, _ = make()
    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(topic, key="a", value="m0:3")
        driver.post(topic, key="b", value="bad:1")
        driver.post(topic, key="b", value="m2")
        driver.post(topic, key="c", value="m3")
        with pytest.raises(HandlerFailedError) as raised:
            driver.settle()
        assert raised.value.offset == 1
        assert values(driver, done) == ["m3 1", "m0 1"]
        assert driver.items(counts) == {"a": 1, "c": 1}


def test_a_retry_holds_back_its_key_only():
    app = App("retries", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    log: list[tuple[str, float]] = []
    attempts = 0

    @app.actor(topic, concurrency=8, on_error=OnError(retries=3))
    async def work(ctx: Context, value: str) -> None:
        nonlocal attempts
        log.append((value, asyncio.get_running_loop().time()))
        if value == "flaky" and (attempts := attempts + 1) < 4:
            raise ValueError("not yet")

    with ActorTestDriver(app) as driver:
        for key, value in (("a", "flaky"), ("a", "next"), ("b", "other")):
            driver.post(topic, key=key, value=value)
        driver.settle()
    assert [value for value, _ in log] == ["flaky", "other", "flaky", "flaky", "flaky", "next"]
    times = [at for value, at in log if value == "flaky"]
    assert [round(later - at, 1) for at, later in itertools.pairwise(times)] == [0.1, 0.2, 0.4]


def test_another_key_is_out_of_reach():
    app = App("reach", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    store = app.store("held", key_type=str, value_type=str)

    @app.actor(topic, stores=[store], concurrency=2)
    async def work(ctx: Context, value: str) -> None:
        store.set(value, "x")

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="a")
        with pytest.raises(HandlerFailedError) as raised:
            driver.send(topic, key="a", value="b")
        assert isinstance(raised.value.__cause__, ForeignKeyError)
        assert "concurrency" in str(raised.value)


def test_class_actors_run_in_parallel_too():
    app = App("classes", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=int)

    @app.actor(topic, concurrency=10)
    class Total(Actor[list[int]]):
        def initial_state(self) -> list[int]:
            return []

        @receive
        async def add(self, amount: int) -> None:
            self.state.append(amount)
            await asyncio.sleep(1)

    with ActorTestDriver(app) as driver:
        for number in range(20):
            driver.post(topic, key=f"k{number % 10}", value=number)
        began_s = driver.now_s
        driver.settle()
        assert driver.now_s - began_s < 3
        assert driver.items(Total) == {f"k{number}": [number, number + 10] for number in range(10)}


class Sell:
    """A handler that is awaited, though it is no coroutine function."""

    def __init__(self) -> None:
        self.sold: list[str] = []

    async def __call__(self, ctx: Context, value: str) -> None:
        await asyncio.sleep(0)
        self.sold.append(value)


@pytest.mark.parametrize("is_class", [False, True])
def test_what_a_handler_in_a_thread_returns_is_awaited_and_no_generator(is_class):
    app, sell = App("threads", broker="kafka://127.0.0.1:9"), Sell()
    topic = app.topic("in", key_type=str, value_type=str)

    def work(ctx: Context, value: str) -> Any:
        return (part for part in value) if value == "parts" else sell(ctx, value)

    class Work(Actor[None]):
        @receive
        def work(self, message: str) -> Any:
            return work(self.ctx, message)

    options = {"concurrency": 2, "threads": True, "on_error": OnError(then="park")}
    app.actor(topic, name="work", **options)(Work if is_class else work)
    app.actor(app.topic("more", key_type=str, value_type=str), name="more", **options)(sell)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.tell("work", "a", "hat")
        driver.tell("more", "a", "coat")
        driver.tell("work", "b", "parts")
        assert sell.sold == ["hat", "coat"]
        (parked,) = driver.parked("work")
        assert "returned a generator, of which nothing has run" in parked.error


def test_plain_handlers_run_in_threads():
    app = App("threads", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    seen = app.store("seen", key_type=str, value_type=str)
    names = set()

    @app.actor(topic, stores=[seen], concurrency=4, threads=True)
    def work(ctx: Context, value: str) -> None:
        names.add(threading.current_thread().name)
        seen.set(ctx.key, value)

    with ActorTestDriver(app) as driver:
        for number in range(4):
            driver.post(topic, key=f"k{number}", value=str(number))
        driver.settle()
        assert driver.items(seen) == {f"k{number}": str(number) for number in range(4)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": "8"}, "concurrency='8'"),
        ({"threads": True}, "every handler is async"),
        ({"effects": ["x"]}, "@app.effect"),
        ({"dedupe_ttl": 5}, "dedupe_by"),
    ],
)
def test_options_that_cant_work_are_refused(options: dict[str, Any], words: str):
    app = App("refused", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)

    async def work(ctx: Context, value: str) -> None:
        """Nothing."""

    with pytest.raises(ConfigurationError, match=words):
        app.actor(topic, **options)(work)


def test_a_store_of_the_whole_partition_doesnt_go_with_concurrency():
    app = App("roaming", broker="kafka://127.0.0.1:9")
    topic = app.topic("in", key_type=str, value_type=str)
    store = app.store("all", placement="task")
    with pytest.raises(ConfigurationError, match="placement"):

        @app.actor(topic, stores=[store], concurrency=2)
        async def work(ctx: Context, value: str) -> None:
            """Nothing."""
