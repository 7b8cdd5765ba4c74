"""Effects outside Kafka: what runs and when, their arguments, and apps on the test driver."""

import asyncio
import re
import threading
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from actors import App, HandlerFailedError, RecordTooLargeError, UsageError
from actors.runtime.clock import SystemClock
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context
from actors.runtime.message.tools import EffectCall
from actors.runtime.outbox.calls import make_key
from actors.testing import ActorTestDriver
from tests.unit.runtime.outbox.effect_bench import Log, bench, effect, play

# --- what runs, and when ---------------------------------------------------------------------------------------------


def plain(text):
    """Put a star in the place of what is called and with what, in an id or a tuple that ends with one."""
    if isinstance(text, tuple):
        return (*text[:-1], plain(text[-1]))
    return re.sub(r"-[0-9a-f]{32}-", "-*-", text)


def test_nothing_runs_before_its_commit_and_nothing_that_was_taken_back():
    async def main():
        log = Log()
        at = bench(log.effect, fails=True)
        at.message(b"a", log.effect, 1)
        at.fails = False
        at.message(b"a", log.effect, 2)
        await at.turns()
        await asyncio.sleep(1)
        assert log.calls == []
        at.commit()
        await at.settle()
        assert log.values == [2]
        assert at.records() == []

    play(main)


def test_the_effects_of_a_key_run_in_order_and_those_of_other_keys_beside_them():
    async def main():
        log = Log(takes_s=2)
        at = bench(log.effect)
        for number in range(3):
            at.message(b"a", log.effect, f"a{number}")
        at.message(b"b", log.effect, "b0")
        at.commit()
        await asyncio.sleep(1)
        at.message(b"a", log.effect, "a3")
        at.commit()
        await at.settle()
        assert log.values == ["a0", "b0", "a1", "a2", "a3"]
        assert log.times == [0, 0, 2, 4, 6]
        assert log.most == 2

    play(main)


def test_what_the_function_is_told():
    async def main():
        log = Log()
        at = bench(log.effect)
        key = at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        [internal] = at.runner.take()
        ctx = Context(at.state, internal.record, None, b"a")
        assert internal.record.value is None
        assert not internal.consume(ctx), "there is no result to handle"
        assert at.overlay.get(make_key(b"a", 1)) is None
        assert log.calls == [EffectCall(key, 1, 1, "work", b"a", "a")]
        assert plain(key) == "in-0-0-*-1"

    play(main)


def test_a_failed_attempt_is_made_again_with_the_same_idempotency_key_after_doubled_waits():
    async def main():
        log = Log(fails=3, first_wait=timedelta(seconds=2), longest_wait=timedelta(seconds=5))
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await at.settle()
        [(_, record)] = at.records()
        assert (record.attempts, record.error, record.parked) == (1, "OSError: no 1", False)
        assert not at.runner.is_busy
        await at.pass_time(60)
        assert [call.attempt for call in log.calls] == [1, 2, 3, 4]
        assert len({call.idempotency_key for call in log.calls}) == 1
        assert log.times == pytest.approx([0, 2, 6, 11], abs=0.02)
        assert at.records() == []

    play(main)


def test_a_wait_ends_in_time_although_the_wall_clock_was_set_back():
    async def main():
        log = Log(fails=1)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await at.settle()
        at.clock.wall_offset_ms = -3_600_000
        at.take_over()
        await at.pass_time(301)
        assert len(log.calls) == 2

    play(main)


def test_a_success_that_was_not_committed_is_made_again_by_the_next_owner_with_a_higher_token():
    async def main():
        log = Log(gives="done")
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        assert await at.turns() == 1
        assert [plain(entry) for entry in at.handled] == [("a", "done", "in-0-0-*-1-result")]
        await at.runner.close()
        at.take_over()
        await at.settle()
        assert [(call.fencing_token, call.attempt) for call in log.calls] == [(1, 1), (2, 1)]
        assert len({call.idempotency_key for call in log.calls}) == 1
        assert [plain(entry) for entry in at.handled] == [("a", "done", "in-0-0-*-1-result")] * 2
        at.take_over()
        await at.settle()
        assert len(log.calls) == 2

    play(main)


def test_an_outcome_that_is_dropped_is_not_made_again_by_the_same_owner():
    async def main():
        log = Log(gives="done")
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        at.fails = True
        with pytest.raises(HandlerFailedError, match="not now"):
            await at.turns()
        at.fails = False
        at.message(b"a", log.effect, 2)
        at.commit()
        await at.settle()
        assert log.values == [1]
        at.take_over()
        await at.settle()
        assert log.values == [1, 1, 2]

    play(main)


def test_a_new_call_in_the_place_of_the_one_that_just_ended_runs():
    async def main():
        log = Log()
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        await at.turns()
        at.message(b"a", log.effect, 2)
        [place] = [key for key, (_, value) in at.overlay.writes.items() if value is not None]
        assert place == make_key(b"a", 1)
        at.commit()
        await at.settle()
        assert log.values == [1, 2]

    play(main)


def test_nothing_runs_before_the_first_input_was_handled():
    async def main():
        log = Log()
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await at.runner.close()
        at.offset = 0
        at.take_over()
        assert at.runner.wait_s() == float("inf")
        assert not at.runner.is_busy
        at.message(b"b", log.effect, 2)
        at.commit()
        await at.settle()
        assert sorted(log.values) == [1, 2]

    play(main)


# --- arguments -------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    name: str
    at: datetime


def test_arguments_come_back_as_their_annotations_say_and_else_as_plain_data():
    async def main():
        seen = []

        async def typed(call, order: Order, *raws: bytes, on: dict[int, str], plain=None, **rest: timedelta):
            seen.append((order, raws, on, plain, rest))

        at = bench(effect(typed))
        order = Order("x", datetime(2024, 5, 1, tzinfo=UTC))
        at.message(b"a", at.effects["typed"], order, b"1", b"2", on={3: "x"}, plain=order, late=timedelta(hours=1))
        at.commit()
        await at.settle()
        plain = {"name": "x", "at": "2024-05-01T00:00:00Z"}
        assert seen == [(order, (b"1", b"2"), {3: "x"}, plain, {"late": timedelta(hours=1)})]

    play(main)


def test_an_unknown_annotation_is_no_hindrance():
    async def main():
        seen = []

        async def later(call, value: "OnlyForTypeCheckers"):  # noqa: F821
            seen.append(value)

        async def other(call, value: threading.Thread):
            seen.append(value)

        at = bench(effect(later), effect(other))
        at.message(b"a", at.effects["later"], {"x": 1})
        at.message(b"a", at.effects["other"], {"x": 2})
        at.commit()
        await at.settle()
        assert seen == [{"x": 1}, {"x": 2}]

    play(main)


def test_what_cannot_be_called():
    async def main():
        async def takes_number(call, number: int): ...

        at = bench(effect(takes_number))
        known = at.effects["takes_number"]
        for args, error in (
            ((object(),), "object is unsupported"),
            (("x",), "Expected `int`, got `str`"),
            ((1, 2), "too many positional"),
            ((), "missing a required argument"),
            (("\ud800",), "surrogates"),
        ):
            with pytest.raises(UsageError, match=rf"ctx.effect\(takes_number\).*{error}"):
                at.message(b"a", known, *args)
        with pytest.raises(UsageError, match=r"ctx.effect\(print\): actor work doesn't list it.*takes_number"):
            at.message(b"a", print, 1)
        with pytest.raises(UsageError, match="doesn't list it"):
            at.message(b"a", Effect(takes_number, "other"), 1)
        assert at.overlay.writes == {}
        at.message(b"a", takes_number, 1)
        assert len(at.overlay.writes) == 1

    play(main)


def test_a_call_leaves_room_for_its_error():
    async def main():
        log = Log(fails=1)
        at = bench(log.effect)
        with pytest.raises(RecordTooLargeError, match="pass its key"):
            at.message(b"a", log.effect, "x" * 95_900)
        at.message(b"a", log.effect, "x" * 95_700)
        at.commit()
        await at.settle()
        assert at.records()[0][1].attempts == 1

    play(main)


def test_a_plain_function_runs_in_a_thread_and_may_give_something_to_await():
    async def main():
        where = []

        def plain(call, value: int):
            where.append(threading.current_thread() is threading.main_thread())
            return f"got {value}"

        async def inner():
            return "awaited"

        def mixed(call):
            return inner()

        at = bench(effect(plain), effect(mixed), clock=SystemClock())
        at.message(b"a", at.effects["plain"], 1)
        at.message(b"a", at.effects["mixed"])
        at.commit()
        await at.settle()
        await at.runner.close()
        assert where == [False]
        assert [value for _, value, _ in at.handled] == ["got 1", "awaited"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attempts": -1}, "attempts"),
        ({"attempts": 1.5}, "attempts"),
        ({"first_wait": timedelta(0)}, "first_wait"),
        ({"first_wait": timedelta(hours=1)}, "longest_wait"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"name": ""}, "name"),
        ({"function": 5}, "function"),
    ],
)
def test_an_effect_that_cannot_be_meant(options, named):
    with pytest.raises(ValueError, match=named):
        Effect(**({"function": print, "name": "x"} | options))


def test_an_effect_can_be_called_like_its_function():
    assert Effect(lambda call, value: (call, value), "x")(None, value=1) == (None, 1)


# --- on the driver ---------------------------------------------------------------------------------------------------


def shop(**options):
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    calls, state = [], {"fails": 0, "handler fails": False}

    @app.effect(attempts=3)
    async def charge(call, order: str):
        calls.append(call)
        await asyncio.sleep(1)
        if state["fails"]:
            state["fails"] -= 1
            raise OSError("bank closed")
        return f"charged {order}" if order != "quiet" else None

    @app.actor(orders, effects=[charge], **options)
    async def order(ctx, value):
        if value.startswith("charged"):
            if state["handler fails"]:
                raise ValueError("not now")
            ctx.send(done, key=ctx.key, value=f"{value} {ctx.message_id}")
            return
        ctx.effect(charge, value)
        if value == "bad":
            raise ValueError("bad order")

    return app, orders, done, calls, state, {"partitions": 1, "effects": {charge: charge}}


def sent(driver, topic):
    return [plain(one.value) for one in driver.outputs(topic)]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_result_is_a_message_to_its_key(concurrency):
    app, orders, done, calls, _, options = shop(concurrency=concurrency)
    with ActorTestDriver(app, **options) as driver:
        for number in range(3):
            driver.post(orders, key="ada", value=f"a{number}")
        driver.post(orders, key="bob", value="quiet")
        driver.settle()
        assert sent(driver, done) == [f"charged a{number} orders-0-{number}-*-1-result" for number in range(3)]
        assert [call.decoded_key for call in calls].count("ada") == 3
        assert len(calls) == 4
        driver.crash(keep_disk=False)
        assert len(calls) == 4


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_message_that_is_taken_back_has_no_effect(concurrency):
    app, orders, _, calls, _, options = shop(concurrency=concurrency, on_error="skip")
    with ActorTestDriver(app, **options) as driver:
        driver.send(orders, key="ada", value="bad")
        driver.send(orders, key="ada", value="good")
        assert [plain(call.idempotency_key) for call in calls] == ["orders-0-1-*-1"]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_retry_goes_on_after_a_crash_without_the_disk(concurrency):
    app, orders, done, calls, state, options = shop(concurrency=concurrency)
    state["fails"] = 2
    with ActorTestDriver(app, **options) as driver:
        driver.send(orders, key="ada", value="x")
        assert [call.attempt for call in calls] == [1]
        driver.crash(keep_disk=False)
        driver.advance(60)
        driver.advance(60)
        assert [(call.attempt, call.fencing_token) for call in calls] == [(1, 1), (2, 2), (3, 2)]
        assert sent(driver, done) == ["charged x orders-0-0-*-1-result"]


def test_an_effect_that_a_crash_cuts_short_is_called_again_by_the_next_owner():
    app, orders, done, calls, _, options = shop()
    with ActorTestDriver(app, **options) as driver:
        driver.post(orders, key="ada", value="x")
        driver._run(asyncio.sleep(0.5))
        assert len(calls) == 1
        driver.crash()
        assert [(call.attempt, call.fencing_token) for call in calls] == [(1, 1), (1, 2)]
        assert len({call.idempotency_key for call in calls}) == 1
        assert sent(driver, done) == ["charged x orders-0-0-*-1-result"]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_result_whose_handler_fails_stops_the_partition_and_is_there_after_a_restart(concurrency):
    app, orders, done, calls, state, options = shop(concurrency=concurrency)
    state["handler fails"] = True
    with ActorTestDriver(app, **options) as driver:
        with pytest.raises(HandlerFailedError, match="not now"):
            driver.send(orders, key="ada", value="x")
        assert len(calls) == 1
        state["handler fails"] = False
        driver.restart()
        assert sent(driver, done) == ["charged x orders-0-0-*-1-result"]
        assert len(calls) == 1, "its call has ended"


def test_a_result_whose_handler_fails_can_be_skipped():
    app, orders, done, calls, state, options = shop(on_error="skip")
    state["handler fails"] = True
    with ActorTestDriver(app, **options) as driver:
        driver.send(orders, key="ada", value="x")
        driver.restart()
        assert len(calls) == 1
        assert sent(driver, done) == []


def test_ids_do_not_grow_where_each_result_begins_the_next_call():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=int)
    keys = []

    @app.effect()
    async def step(call, number: int):
        keys.append(call.idempotency_key)
        return number - 1

    @app.actor(topic, effects=[step])
    async def countdown(ctx, number):
        if number:
            ctx.effect(step, number)

    with ActorTestDriver(app, effects={step: step}) as driver:
        driver.send(topic, key="a", value=60)
    assert len(set(keys)) == 60
    assert max(map(len, keys)) < 300


def test_the_calls_of_keys_that_expire_have_ids_of_their_own():
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)
    keys = []

    @app.effect()
    async def warn(call, what: str):
        keys.append(call.idempotency_key)

    seen = app.store(
        "seen", key_type=str, value_type=str, ttl=timedelta(hours=1), on_expire=lambda ctx, value: ctx.effect(warn, "x")
    )

    @app.actor(topic, stores=[seen], effects=[warn])
    async def see(ctx, value):
        seen.set(ctx.key, value)
        ctx.effect(warn, "seen")

    with ActorTestDriver(app, effects={warn: warn}) as driver:
        for name in ("a", "b"):
            driver.send(topic, key=name, value="x")
        driver.advance(3_700)
        driver.advance(60)
    assert len(keys) == 4
    assert len(set(keys)) == 4
