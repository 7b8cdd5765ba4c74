"""The test driver: what it sends, what a test sees, effects that aren't faked, crashes."""

from __future__ import annotations

import asyncio

import pytest

from actors import (
    Actor,
    App,
    Context,
    ForeignKeyError,
    HandlerFailedError,
    OnError,
    UndecodableRecordError,
    aggregates,
    query,
    receive,
)
from actors.errors import ReadOnlyQueryError, UsageError
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver

STAMP_MS = 1_600_000_000_123


def an_app() -> App:
    return App("shop", broker="kafka://127.0.0.1:1")


class World:
    """Sums per key; "bad" fails until it is mended; each message is told on with its timestamp plus one."""

    def __init__(self, on_error: str | OnError = "park") -> None:
        self.app = an_app()
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.seen: list[tuple[str, str, int]] = []
        self.is_mended = False
        self.counts = self.app.store("counts", key_type=str, value_type=int)

        @self.app.actor(self.app.topic("log", key_type=str, value_type=str), name="log")
        async def log(ctx: Context, value: str) -> None:
            self.seen.append((ctx.key, value, ctx.timestamp_ms))

        @self.app.actor(self.topic, stores=[self.counts], on_error=on_error)
        async def work(ctx: Context, value: str) -> None:
            if value == "bad" and not self.is_mended:
                raise ValueError("not this one")
            self.counts.set(ctx.key, (self.counts.get(ctx.key) or 0) + 1)
            ctx.tell(log, ctx.key, value, timestamp_ms=ctx.timestamp_ms + 1)

        @self.app.query(work)
        def seen_by(ctx: Context, more: int = 0) -> int:
            return (self.counts.get(ctx.key) or 0) + more

        @self.app.query(work)
        def writes(ctx: Context) -> None:
            self.counts.set(ctx.key, 0)

        self.work, self.seen_by = work, seen_by


def test_the_timestamps_of_sends_and_tells_are_those_that_were_given():
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.topic, key="a", value="x", timestamp_ms=STAMP_MS)
        driver.tell("work", "a", "y", timestamp_ms=STAMP_MS + 10, headers={"tenant": b"t"})
        driver.tell("work", "a", "z")
        assert world.seen[:2] == [("a", "x", STAMP_MS + 1), ("a", "y", STAMP_MS + 11)]
        assert world.seen[2][2] > STAMP_MS + 1_000_000


@pytest.mark.parametrize(
    ("came_ms", "given_ms", "sent_ms"),
    [(STAMP_MS, None, STAMP_MS), (STAMP_MS, 5, 5), (0, None, 0), (-1, None, None)],
)
def test_an_output_has_the_time_of_its_message_or_the_one_that_is_given(came_ms, given_ms, sent_ms):
    app = an_app()
    topic, out = (app.topic(name, key_type=str, value_type=str) for name in ("in", "out"))

    @app.actor(topic)
    async def forward(ctx: Context, value: str) -> None:
        ctx.send(out, key=ctx.key, value=value, timestamp_ms=given_ms)

    with ActorTestDriver(app) as driver:
        # As from a producer that sends no timestamps, which the driver can't be.
        driver._cluster.log(TopicPartition("in", 0)).append(b"a", b"x", timestamp_ms=came_ms, headers=())
        driver.settle()
        [sent] = driver.outputs(out)
        assert sent.timestamp_ms == sent_ms or (sent_ms is None and sent.timestamp_ms > STAMP_MS)


def test_bytes_are_sent_as_they_are():
    world = World(on_error="stop")
    with ActorTestDriver(world.app) as driver:
        driver.send(world.topic, key=b"a", value=b"x", raw=True)
        assert driver.get(world.counts, "a") == 1
        with pytest.raises(UsageError, match="raw=True"):
            driver.send(world.topic, key="a", value=b"x", raw=True)
        with pytest.raises(UndecodableRecordError):
            driver.send(world.topic, key=b"a", value=b"\xff", raw=True)


def test_queries_are_answered_from_the_committed_state():
    world = World()
    with ActorTestDriver(world.app) as driver:
        for key in "abcdef":
            driver.send(world.topic, key=key, value="x")
        assert [driver.query(world.work, world.seen_by, key) for key in "abcxyz"] == [1, 1, 1, 0, 0, 0]
        assert driver.query("work", "seen_by", "a", more=2) == 3
        with pytest.raises(UsageError, match=r"work has no query 'other'; its queries: seen_by, writes"):
            driver.query("work", "other", "a")
        with pytest.raises(ReadOnlyQueryError):
            driver.query("work", "writes", "a")


def test_queries_of_a_class_see_its_state():
    app = an_app()

    @app.actor(app.topic("in", key_type=str, value_type=int))
    class Sum(Actor[int]):
        def initial_state(self) -> int:
            return 0

        @receive
        async def add(self, number: int) -> None:
            self.state += number

        @query
        def total(self) -> int:
            return self.state

    with ActorTestDriver(app) as driver:
        driver.tell(Sum, "a", 5)
        assert driver.query(Sum, Sum.total, "a") == 5
        assert driver.query(Sum, "total", "b") == 0


def test_parked_messages_and_dead_letters_are_seen_by_actor_and_key():
    world = World()
    with ActorTestDriver(world.app) as driver:
        for key, value in [("a", "bad"), ("b", "bad"), ("a", "next"), ("c", "fine")]:
            driver.send(world.topic, key=key, value=value)
        first, second = driver.parked("work", "a")
        assert (first.value, first.attempts, second.value, second.error) == ("bad", 1, "next", None)
        assert "not this one" in (first.error or "")
        assert {letter.key for letter in driver.parked(world.work)} == {"a", "b"}
        assert sorted((letter.key, letter.value) for letter in driver.dead_letters("work")) == [
            ("a", "bad"),
            ("b", "bad"),
        ]
        assert driver.dead_letters("log") == []
        assert len(driver.dead_letters()) == 2
        world.is_mended = True
        driver.retry_parked("work", "a")
        driver.drop_parked("work", "b")
        assert driver.parked("work") == []
        assert driver.items(world.counts) == {"a": 2, "c": 1}
        with pytest.raises(UsageError, match="log parks no"):
            driver.parked("log")
        with pytest.raises(UsageError, match="log parks nothing"):
            driver.retry_parked("log", "a")


def test_dead_letters_that_do_not_decode_are_bytes():
    world = World(OnError(then="skip", dead_letters=True))
    with ActorTestDriver(world.app) as driver:
        driver.send(world.topic, key=b"a", value=b"\xff", raw=True)
        assert [(letter.key, letter.value) for letter in driver.dead_letters("work")] == [("a", b"\xff")]


def with_effect():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)
    calls = []

    @app.effect()
    async def post(call, body: str):
        calls.append(body)

    @app.actor(topic, effects=[post])
    async def work(ctx: Context, value: str) -> None:
        ctx.effect(post, value)

    return app, topic, post, calls


def test_an_effect_that_is_not_faked_fails_the_test_and_says_how_to_fake_it():
    app, topic, post, calls = with_effect()
    with ActorTestDriver(app) as driver:
        with pytest.raises(UsageError, match=r"actor work calls effect post.*effects=\{post: function\}"):
            driver.send(topic, key="a", value="x")
        assert calls == []
    with ActorTestDriver(app, effects={post: post}) as driver:
        driver.send(topic, key="a", value="x")
        assert calls == ["x"]
    faked = []
    with ActorTestDriver(app, effects={post: lambda call, body: faked.append(body)}) as driver:
        driver.send(topic, key="a", value="y")
    assert (calls, faked) == (["x"], ["y"])


def test_a_key_of_another_partition_is_refused_by_default():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)
    counts = app.store("counts", key_type=str, value_type=int)

    @app.actor(topic, stores=[counts])
    async def work(ctx: Context, other: str) -> None:
        counts.set(other, 1)

    with ActorTestDriver(app) as driver:
        for other in "abcdefgh":
            driver.post(topic, key="a", value=other)
        with pytest.raises(HandlerFailedError) as raised:
            driver.settle()
    assert isinstance(raised.value.__cause__, ForeignKeyError)


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("settle", [True, False])
def test_crashes_take_no_virtual_time_however_many(keep_disk: bool, settle: bool):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.post(world.topic, key="a", value="x")
        for _ in range(3):
            driver.crash(keep_disk=keep_disk, settle=settle)
            driver.crash(keep_disk=keep_disk, settle=settle)
        driver.settle()
        driver.restart()
        assert driver.now_s < 1
        assert driver.items(world.counts) == {"a": 1}


class Rows:
    """A table; in the newer version with an aggregate, and with an actor that answers."""

    def __init__(self, *, is_newer: bool) -> None:
        self.app = an_app()
        self.rows = self.app.table(self.app.topic("rows", key_type=str, value_type=str))

        if is_newer:
            self.counts = self.rows.aggregate("counts", by=lambda row: row, aggregate=aggregates.count())

        @self.app.actor(self.rows.topic, stores=[self.rows], on_error="park" if is_newer else "stop")
        async def keep(ctx: Context, row: str | None) -> None: ...

        if not is_newer:
            return
        self.seen = self.app.store("seen", key_type=str, value_type=int)

        @self.app.actor(self.app.topic("more", key_type=str), stores=[self.seen])
        async def see(ctx: Context, number: int) -> int:
            self.seen.set(ctx.key, number)
            return number + 1


def test_what_is_new_in_a_newer_app_begins_empty_and_the_rest_goes_on():
    one, two = Rows(is_newer=False), Rows(is_newer=True)
    with ActorTestDriver(one.app) as driver:
        driver.send(one.rows.topic, key="a", value="x")
        driver.restart(two.app)
        driver.send(two.rows.topic, key="b", value="x")
        assert driver.items(two.rows) == {"a": "x", "b": "x"}
        assert driver.ask("see", "c", 1) == 2
        assert driver.items(two.seen) == {"c": 1}
        # The row that was there is counted when its partition gets a record.
        driver.send(two.rows.topic, key="a", value="x")
        assert driver.items(two.counts) == {"x": 2}


def test_a_store_has_the_subscripts_of_a_dict():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)
    counts = app.store("counts", key_type=str, value_type=int)
    said = []

    @app.actor(topic, stores=[counts])
    async def work(ctx: Context, what: str) -> None:
        try:
            if what == "add":
                counts[ctx.key] += 1
            elif what == "set":
                counts[ctx.key] = 1
            elif what == "delete":
                del counts[ctx.key]
            else:
                list(counts)  # type: ignore[call-overload]
        except (KeyError, TypeError) as error:
            said.append(repr(error))

    with ActorTestDriver(app) as driver:
        for what in ["add", "delete", "set", "add"]:
            driver.send(topic, key="a", value=what)
        assert driver.items(counts) == {"a": 2}
        driver.send(topic, key="a", value="delete")
        driver.send(topic, key="a", value="list")
        assert driver.items(counts) == {}
        assert said == ["KeyError('a')", "KeyError('a')", "TypeError(\"'Store' object is not iterable\")"]


async def test_a_driver_that_ended_gives_its_caller_the_loop_and_the_task_back():
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    app = an_app()

    @app.actor(app.topic("in", key_type=str))
    async def nothing(ctx, value): ...

    with ActorTestDriver(app):
        pass
    assert (asyncio.get_running_loop(), asyncio.current_task()) == (loop, task)
