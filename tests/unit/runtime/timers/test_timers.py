"""Durable timers: on stores by hand, against a model, and on the test driver."""

import math
from bisect import bisect_left
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace

import pytest

from actors import App, HandlerFailedError, RecordTooLargeError, Rejected, Store, UsageError
from actors.ports import TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.message.context import Context
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.task_state import TaskState
from actors.runtime.spec import ActorSpec, InputSpec
from actors.runtime.timers.timers import MESSAGES_AT_ONCE, Timers
from actors.testing import ActorTestDriver
from stores._core.overlay import MessageScope, Overlay, OverlayReader, with_metadata
from stores._core.record import Position
from stores.memory import MemoryStore

NOW, MS, SECOND, HOUR = timedelta(), timedelta(milliseconds=1), timedelta(seconds=1), timedelta(hours=1)
START_MS = 1_700_000_000_000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
STORE = Store("x-timers", encode_key=bytes, decode_key=bytes, encode_value=bytes, decode_value=bytes, placement="task")


def encode(message):
    if not isinstance(message, str):
        raise UsageError(f"not a message: {message!r}")
    return message.encode(), [("type", b"str")]


PARTS = {"stores": (STORE,), "changelogs": {}, "encode_message": encode, "timers": STORE}
SPEC = ActorSpec(name="x", inputs=(InputSpec("in", print, bytes.decode, bytes.decode),), partition_count=1, **PARTS)


class Task:
    """A partition's timers as a tenure drives them, step by step; their clock too."""

    def __init__(self, base=None):
        self.ms, self.base, self.offset = START_MS, base or MemoryStore(), 0
        self.take_over()

    def take_over(self):
        self.scope, at = MessageScope(epoch=1), TopicPartition("in", 0)
        self.overlay = Overlay(self.base, self.scope)
        self.state = TaskState("x", at, at, 0, 1, self.scope, {STORE: self.overlay}, {"x-timers": 10_000}, None, [])
        self.timers = Timers(SPEC, self.state, clock=self, timestamps=Timestamps(self, SPEC.max_ahead_ms))

    def wall_ms(self):
        return self.ms

    def ctx(self, key="a", *, state=None, timestamp_ms=START_MS):
        self.offset += 1
        record = SimpleNamespace(offset=self.offset, timestamp=timestamp_ms)
        return Context(state or self.state, record, key, key.encode())

    def schedule(self, message="m", *, key="a", **options):
        self.timers.schedule(self.ctx(key), message, **options)
        self.scope.release()

    def cancel(self, name, *, key="a"):
        was_there = self.timers.cancel(self.ctx(key), name)
        self.scope.release()
        return was_there

    def private(self):
        scope = MessageScope(epoch=1)
        return replace(self.state, scope=scope, overlays={STORE: Overlay(OverlayReader(self.overlay), scope)})

    def commit(self):
        self.timers.before_commit()
        writes = self.overlay.freeze()
        self.base.apply([(key, with_metadata(entry)) for key, entry in writes.items()], Position(1, 1, 1, 1, "id"))
        self.overlay.settle()

    def take(self, *, after=NOW):
        self.ms += after // MS
        return self.timers.take()

    def fire(self, *, after=NOW, each=None):
        """Handle what one take gives; give the message and the timer of what the handler is called for."""
        fired = []
        for internal in self.take(after=after):
            internal_record = internal.record
            ctx = Context(self.state, internal_record, None, internal_record.key or b"")
            if internal.consume(ctx) and internal_record.value is not None:
                fired.append((internal_record.value.decode(), internal_record.timer))
                if each is not None:
                    each(ctx)
            self.scope.release()
            internal.handled()
        return fired

    def rows(self):
        return [key for key, _ in self.overlay.items()]


class DeepStore(MemoryStore):
    """Steps over what was deleted, as RocksDB does until it compacts, and counts the steps."""

    steps, _rows = 0, ()

    def apply(self, writes, position):
        writes = list(writes)
        super().apply(writes, position)
        self._rows = sorted({*self._rows, *(key for key, _ in writes)})

    def scan(self, start=None, end=None, *, reverse=False):
        return self._walk(self._rows, start or b"", end)

    def _walk(self, rows, start, end):
        for at in range(bisect_left(rows, start), len(rows)):
            if end is not None and rows[at] >= end:
                return
            self.steps += 1
            raw = self.get(rows[at])
            if raw is not None:
                yield rows[at], raw


def test_a_timer_is_due_at_its_time_once_with_its_message():
    task = Task()
    task.schedule("hello", after=10 * SECOND, name="t")
    assert not task.take(after=9 * SECOND)
    assert task.timers.wait_s() == 1.0
    task.ms += 1_000
    assert task.timers.wait_s() == 0.0
    task.scope.source_offset = 41
    (internal,) = task.take()
    record, identity = internal.record, internal.record.id
    assert record == InternalRecord(41, START_MS + 10_000, b"a", b"hello", [("type", b"str")], id=identity, timer="t")
    assert (identity[:11], len(identity)) == ("in-0-timer-", 27)
    assert (internal.what, internal.consume(task.ctx())) == ("timer 't'", True)
    task.scope.release()
    internal.handled()
    assert task.rows() == []
    assert not task.take(after=HOUR)
    assert task.timers.wait_s() == math.inf


def test_a_time_is_rounded_up_and_one_that_has_passed_is_due_at_once_and_clocks_never_go_back():
    task = Task()
    task.scope.now_ms = START_MS + 1
    task.schedule("c", after=timedelta(microseconds=1))
    task.schedule("b", at=START + timedelta(milliseconds=1, microseconds=1))
    task.schedule("a", at=START - HOUR)
    assert [message for message, _ in task.fire()] == ["a"]
    task.scope.now_ms += 1
    assert sorted(message for message, _ in task.fire()) == ["b", "c"]


def test_names_and_ids_are_the_same_whenever_a_message_is_handled_again():
    task = Task()
    ctx = task.ctx()
    assert len({task.timers.schedule(ctx, "m", after=after * SECOND) for after in (1, 2)}) == 2
    for key in "bc":
        task.schedule(key=key, name="ü" * 125, after=SECOND)
    task.commit()
    ids = [internal.record.id for internal in task.take(after=HOUR)]
    assert len(set(ids)) == 4
    task.take_over()
    assert [internal.record.id for internal in task.take()] == ids


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "say when"),
        ({"after": SECOND, "at": START}, "leave one of both out"),
        ({"at": datetime(2030, 1, 1)}, "with a time zone"),
        ({"after": -SECOND}, "can't be negative"),
        ({"after": 5}, "a duration is a timedelta"),
        ({"every": timedelta(microseconds=999)}, "has to be 1 ms or more"),
        ({"after": SECOND, "name": ""}, "isn't empty"),
        ({"after": SECOND, "name": 7}, "not 7"),
        ({"after": SECOND, "name": "ü" * 126}, "takes 252 bytes, 250 is the most"),
        ({"after": SECOND, "name": "\ud800"}, "isn't Unicode text"),
        ({"after": SECOND, "message": 7}, "not a message: 7"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_and_leave_nothing(options, text):
    task = Task()
    with pytest.raises(UsageError, match=text):
        task.schedule(**options)
    assert task.rows() == []


def test_a_periodic_timer_is_cancelled_in_its_own_handler():
    task = Task()
    task.schedule("tick", every=SECOND, name="t")
    cancelled = []
    task.fire(after=SECOND, each=lambda ctx: cancelled.append(task.timers.cancel(ctx, "t")))
    assert cancelled == [True]
    assert task.rows() == []
    assert task.fire(after=HOUR) == []


@pytest.mark.parametrize("again", [None, {"after": NOW}, {"after": SECOND}, {"at": START + SECOND}])
def test_a_timer_in_hand_that_is_cancelled_or_scheduled_again_fires_as_it_was_last_scheduled(again):
    task = Task()
    task.schedule("old", after=SECOND, name="t")
    (internal,) = task.take(after=SECOND)
    if again is None:
        assert task.cancel("t")
    else:
        task.schedule("new", name="t", **again)
    before = task.rows()
    assert not internal.consume(task.ctx())
    assert task.rows() == before
    internal.handled()
    assert task.fire(after=SECOND) == ([] if again is None else [("new", "t")])
    assert task.rows() == []


def test_a_handler_may_schedule_its_own_timer_again_for_the_same_time():
    task = Task()
    task.schedule("m", at=START, name="t")
    left = iter(range(2))

    def again(ctx):
        if next(left, None) is not None:
            task.timers.schedule(ctx, "m", at=START, name="t")

    assert [task.fire(each=again) for _ in range(4)] == [[("m", "t")]] * 3 + [[]]
    assert task.timers.wait_s() == math.inf


def test_a_turn_that_is_taken_back_or_dropped_comes_again():
    task = Task()
    task.schedule("m", every=SECOND, name="t")
    task.commit()
    (internal,) = task.take(after=SECOND)
    assert task.take() == []
    assert internal.consume(task.ctx())
    task.scope.rollback()
    internal.handled()
    (internal,) = task.take()
    internal.handled()
    assert task.fire() == [("m", "t")]


def test_a_message_too_large_for_the_store_leaves_the_timer_that_was_there():
    task = Task()
    task.schedule("old", after=SECOND, name="t")
    with pytest.raises(RecordTooLargeError, match="changelog of store x-timers"):
        task.schedule("m" * 10_000, after=HOUR, name="t")
    task.scope.release()
    assert task.fire(after=SECOND) == [("old", "t")]


def test_a_timer_that_is_merged_after_a_look_into_the_store_still_fires():
    task = Task()
    state = task.private()
    task.timers.schedule(task.ctx(state=state), "m", after=NOW, name="t")
    assert task.take() == []
    assert task.timers.wait_s() == math.inf
    task.overlay.absorb(state.overlays[STORE].writes)
    task.commit()
    assert (task.timers.wait_s(), task.fire()) == (0.0, [("m", "t")])


def test_a_turn_beside_other_messages_sees_what_its_key_left_unmerged():
    task = Task()
    task.schedule("old", after=SECOND, name="t")
    (internal,) = task.take(after=SECOND)
    state = task.private()
    task.timers.schedule(task.ctx(state=state), "new", after=SECOND, name="t")
    assert not internal.consume(task.ctx(state=state))
    task.overlay.absorb(state.overlays[STORE].writes)
    internal.handled()
    task.commit()
    assert task.fire(after=SECOND) == [("new", "t")]


def test_stream_time_goes_by_the_messages_alone_and_a_successor_knows_it():
    task = Task()
    task.timers.schedule(task.ctx(timestamp_ms=5_000), "m", after=10 * SECOND, name="t", stream_time=True)
    task.scope.release()
    task.ms += 3_600_000
    for timestamp_ms in (5_000, 14_999, 3_000):
        task.timers.saw(timestamp_ms)
        assert task.timers.wait_s() == math.inf
        task.commit()
        task.take_over()
    assert task.take() == []
    task.timers.saw(15_000)
    task.timers.saw(3_000)
    task.commit()
    task.take_over()
    assert task.timers.wait_s() == 0.0
    (internal,) = task.take()
    assert (internal.record.timestamp, internal.record.timer) == (15_000, "t")


def test_stream_time_is_written_only_when_it_moved_or_a_timer_first_went_by_it():
    task = Task()
    task.timers.saw(1_000)
    task.commit()
    assert task.rows() == [b"t"]
    task.schedule(after=SECOND, stream_time=True)
    task.timers.before_commit()
    assert b"t" in task.overlay.writes
    task.commit()
    task.timers.saw(500)
    task.timers.before_commit()
    assert task.overlay.writes == {}
    task.take_over()
    task.timers.saw(2_000)
    task.timers.before_commit()
    assert list(task.overlay.writes) == [b"t"]
    assert task.scope.undo == []


def test_a_message_measures_from_its_own_time_and_a_turn_by_the_clock_from_stream_time():
    task = Task()
    task.timers.saw(50_000)
    task.timers.schedule(task.ctx(timestamp_ms=45_000), "late", after=15 * SECOND, stream_time=True)
    internal = Context(task.state, InternalRecord(1, START_MS, b"a", b"m"), "a", b"a")
    task.timers.schedule(internal, "of a turn", after=20 * SECOND, name="t", stream_time=True)
    task.timers.saw(59_999)
    assert task.fire() == []
    task.timers.saw(60_000)
    assert [message for message, _ in task.fire()] == ["late"]
    task.timers.saw(70_000)
    assert [message for message, _ in task.fire()] == ["of a turn"]


def test_a_periodic_timer_by_stream_time_fires_once_for_a_jump_and_may_change_its_clock():
    task = Task()
    task.schedule("m", every=SECOND, name="t", stream_time=True)
    task.timers.saw(START_MS + 10_500)
    assert task.fire() == [("m", "t")]
    assert task.fire() == []
    task.timers.saw(START_MS + 11_000)
    assert task.fire() == [("m", "t")]
    task.schedule("w", at=START + 12 * SECOND, name="t")
    assert len(task.rows()) == 2
    task.timers.saw(START_MS + 90_000)
    assert task.fire() == []
    assert task.fire(after=12 * SECOND) == [("w", "t")]
    assert task.rows() == []


def test_so_many_are_taken_at_once_and_none_twice():
    task = Task()
    for number in range(MESSAGES_AT_ONCE + 7):
        task.schedule(str(number), after=number * MS)
    task.schedule("s", at=START, stream_time=True)
    task.timers.saw(START_MS)
    first, second = task.take(after=HOUR), task.take()
    assert [int(internal.record.value) for internal in first] == list(range(MESSAGES_AT_ONCE))
    assert [one.record.value for one in second] == [b"%d" % (MESSAGES_AT_ONCE + n) for n in range(7)] + [b"s"]
    task.schedule("before", at=START - HOUR)
    assert [internal.record.value for internal in task.take()] == [b"before"]
    assert task.timers.wait_s() == math.inf


def test_one_due_timer_among_10_000_costs_few_steps():
    task = Task(base := DeepStore())
    for number in range(10_000):
        task.schedule(key=str(number), after=(number + 1) * SECOND, name="t")
    task.commit()
    assert len(task.rows()) == 20_000
    task.take_over()
    base.steps = 0
    assert len(task.fire(after=SECOND)) == 1
    assert task.timers.wait_s() == 1.0
    assert 0 < base.steps <= 5


@pytest.mark.parametrize("every", [None, timedelta(days=1)])
def test_the_tombstones_of_what_fired_are_not_walked_over_again(every):
    task = Task(base := DeepStore())
    for number in range(300):
        task.schedule(key=str(number), after=(number + 1) * SECOND, every=every)
    task.commit()
    base.steps = 0
    for _ in range(300):
        assert len(task.fire(after=SECOND)) == 1
        task.commit()
    # The entry that is due and the next one; from the begin of the index it would be 300 * 300 / 2.
    assert 300 <= base.steps <= 300 * 4
    task.schedule("earlier", after=SECOND)
    assert [message for message, _ in task.fire(after=SECOND)] == ["earlier"]


def damage(overlay, key, how):
    entry = b"n" + key[9:]
    if how == "listed twice":
        overlay.set(b"w" + (START_MS + 500).to_bytes(8) + key[9:], b"")
    elif how == "entry":
        overlay.set(entry, b"{")
    else:
        overlay.delete(entry)
    if how == "address":
        overlay.delete(key)
        overlay.set(key[:9] + b"\x00\x00\x00\x09a", b"")


@pytest.mark.parametrize("how", ["entry", "no entry", "address", "listed twice"])
def test_what_is_damaged_is_removed_with_an_error_and_the_others_fire(caplog, how):
    task = Task()
    task.schedule("m", after=SECOND, name="t")
    (key,) = (key for key in task.rows() if key[:1] == b"w")
    damage(task.overlay, key, how)
    task.schedule("good", after=2 * SECOND, name="good")
    task.commit()
    task.take_over()
    assert task.fire(after=2 * SECOND) == [("m", "t")] * (how == "listed twice") + [("good", "good")]
    assert caplog.text.count("it is removed, and no message is sent for it") == 1
    assert task.rows() == []


def fire(timers, now_ms):
    """Do what a take does, on a dict: key and name to due time, period and message."""
    due = sorted((one[0], len(key), key, name) for (key, name), one in timers.items() if one[0] <= now_ms)
    fired = []
    for at_ms, _, key, name in due:
        _, every_ms, message = timers.pop((key, name))
        fired.append((message, name))
        while every_ms and at_ms <= now_ms:
            at_ms += every_ms
            timers[key, name] = (at_ms, every_ms, message)
    return fired


@pytest.mark.parametrize("seed", range(20))
def test_timers_do_what_a_dict_would(seed):
    random, task, timers, committed, count = Random(seed), Task(), {}, {}, 0
    for step in range(400):
        key, name, kept = random.choice(["a", "b", "ab"]), random.choice(["c", "bc", "x"]), random.random() < 0.8
        action = random.choice(["schedule", "schedule", "cancel", "fire", "fire", "commit", "die"])
        if action == "schedule":
            after_ms, every_ms = random.choice([0, 1, 7, 50]), random.choice([None, 5, 30])
            every = None if every_ms is None else every_ms * MS
            task.timers.schedule(task.ctx(key), f"m{step}", after=after_ms * MS, every=every, name=name)
            if kept:
                timers[key, name] = (task.ms + after_ms, every_ms, f"m{step}")
        elif action == "cancel":
            assert task.timers.cancel(task.ctx(key), name) == ((key, name) in timers)
            if kept:
                timers.pop((key, name), None)
        elif action == "fire":
            task.ms += random.choice([0, 1, 10, 40])
            expected, wait_s = fire(timers, task.ms), task.timers.wait_s()
            assert not expected or wait_s == 0.0
            assert task.fire() == expected
            assert task.timers.wait_s() > 0.0
            count += len(expected)
        elif action == "commit":
            task.commit()
            committed = dict(timers)
        else:
            task.take_over()
            timers = dict(committed)
        if kept:
            task.scope.release()
        else:
            task.scope.rollback()
    assert count > 20


def an_app(handler, **options):
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    said = app.topic("said", key_type=str, value_type=str)

    @app.actor(orders, timers=True, name="order", **options)
    async def order(ctx, message):
        await handler(ctx, message)
        ctx.send(said, key=ctx.key, value=f"{ctx.timer}: {message}")

    return app, orders, said, app.stores["order-timers"]


def values(driver, topic):
    return [(sent.key, sent.value) for sent in driver.outputs(topic)]


EITHER = pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=["in order", "side by side"])


@EITHER
def test_a_timer_survives_kills_fires_at_a_takeover_and_is_cancelled(options):
    async def handle(ctx, message):
        if message == "new":
            ctx.schedule("unpaid", after=HOUR, name="once")
            ctx.schedule("tick", every=HOUR, name="t")
        elif message == "paid":
            assert ctx.cancel("t")
            assert not ctx.cancel("once")

    app, orders, said, store = an_app(handle, **options)
    with ActorTestDriver(app, partitions=2) as driver:
        driver.send(orders, key="ada", value="new")
        driver.send(orders, key="bob", value="new")
        driver.crash(keep_disk=False)
        driver.advance(3_000)
        assert sorted(values(driver, said)) == [("ada", "None: new"), ("bob", "None: new")]
        driver._kill()
        driver.advance(10_000, settle=False)
        driver.restart()
        driver.advance(1)
        fired = [(key, text) for key in ("ada", "bob") for text in ("once: unpaid", "t: tick")]
        assert sorted(values(driver, said)) == fired
        driver.crash(keep_disk=False)
        driver.send(orders, key="ada", value="paid")
        driver.send(orders, key="bob", value="paid")
        driver.advance(10_000)
        assert sorted(values(driver, said)) == [("ada", "None: paid"), ("bob", "None: paid")]
        assert driver.items(store).keys() == {b"t"}


@EITHER
def test_timers_due_at_once_fire_after_the_message_also_from_a_timer(options):
    async def handle(ctx, message):
        left = int(message)
        if left:
            ctx.schedule(str(left - 1), after=NOW, name=f"n{left - 1}")

    app, orders, said, _ = an_app(handle, **options)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="3")
        driver.advance(5)
        assert values(driver, said) == [("ada", text) for text in ("None: 3", "n2: 2", "n1: 1", "n0: 0")]


@EITHER
def test_a_handler_that_fails_leaves_its_timer_which_fires_when_it_can(options):
    fails = [True]

    async def handle(ctx, message):
        if message == "new":
            ctx.schedule("tick", after=HOUR, name="t")
        elif fails[0]:
            raise ValueError("not now")

    app, orders, said, store = an_app(handle, **options)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="new")
        with pytest.raises(HandlerFailedError, match="not now"):
            driver.advance(3_700)
        assert len(driver.items(store).keys() - {b"t"}) == 2
        fails[0] = False
        driver.restart()
        driver.advance(1)
        assert values(driver, said) == [("ada", "None: new"), ("ada", "t: tick")]


@EITHER
@pytest.mark.parametrize("error", [ValueError("broken"), Rejected("no")], ids=["skipped", "rejected"])
def test_a_timer_whose_message_is_given_up_is_done_with(options, error):
    async def handle(ctx, message):
        ctx.schedule("tick", after=HOUR)
        if message == "tick":
            raise error

    app, orders, said, store = an_app(handle, on_error="skip", **options)
    with ActorTestDriver(app) as driver:
        driver.send(orders, key="ada", value="new")
        driver.advance(3_700)
        assert values(driver, said) == [("ada", "None: new")]
        assert driver.items(store).keys() == {b"t"}


@EITHER
def test_stream_time_on_the_driver(options):
    async def handle(ctx, message):
        if message == "new":
            ctx.schedule("window closed", after=60 * SECOND, name="w", stream_time=True)

    app, orders, said, _ = an_app(handle, **options)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value="new")
        driver.advance(300)
        driver.crash()
        driver.send(orders, key="bob", value="hello")
        driver.advance(1)
        assert [text for _, text in values(driver, said)] == ["None: new", "None: hello", "w: window closed"]


def test_a_damaged_timer_stops_nobody(caplog):
    async def handle(ctx, message):
        if message == "damage":
            store.set(b"w" + bytes(8) + b"?", b"")

    app, orders, said, store = an_app(handle)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value="damage")
        driver.crash()
        driver.advance(60)
        driver.send(orders, key="ada", value="fine")
        assert values(driver, said) == [("ada", "None: damage"), ("ada", "None: fine")]
        assert driver.items(store).keys() == {b"t"}
    assert "orders[0], store order-timers" in caplog.text
