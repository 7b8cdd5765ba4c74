"""Ask and answer on the test driver: what is handled once, what comes back, and what can't be."""

import asyncio
import contextlib
import json
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import (
    Actor,
    App,
    AskFailedError,
    AskRejectedError,
    AskTimeoutError,
    ConfigurationError,
    HandlerFailedError,
    OnError,
    RecordTooLargeError,
    Rejected,
    UsageError,
    receive,
)
from actors.declare.values.codecs import resolve
from actors.errors import BrokerUnavailableError
from actors.ports import ActorReply, ActorRequest
from actors.runtime.requests.replies import ReplyTypes
from actors.runtime.requests.requests import ASK, CHAIN, DEADLINE, REPLY_TO, STATUS, Waiting
from actors.testing import ActorTestDriver
from tests.sim.fakes.network import with_faults

SECOND = timedelta(seconds=1)


class Add(msgspec.Struct, tag="add"):
    amount: int


class Look(msgspec.Struct, tag="look"):
    pass


class Count(msgspec.Struct):
    count: int = 0


class Total(msgspec.Struct):
    key: str
    count: int


class Fetch(msgspec.Struct, tag="fetch"):
    """Ask `of` for `amount`; wait so many seconds after the answer."""

    of: str
    amount: int = 1
    then_wait_s: float = 0.0
    timeout_s: float = 30.0


def an_app():
    return App("asking", broker="kafka://127.0.0.1:1")


def counters(**options: Any):
    """`Counter` answers; `Asker` asks it, and keeps and sends what it got."""
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str), app.topic("orders", key_type=str)
    results = app.topic("results", key_type=str)
    seen = {"handled": [], "slow_s": 0.0}

    @app.actor(inbox, **options)
    class Counter(Actor[Count]):
        @receive
        async def add(self, message: Add) -> Total:
            seen["handled"].append((self.key, message.amount))
            self.state.count += message.amount
            await asyncio.sleep(seen["slow_s"])
            if message.amount == 13:
                raise Rejected("thirteen")
            if message.amount == 99:
                raise ValueError("ninety-nine")
            return Total(self.key, self.state.count)

        @receive
        def look(self, message: Look) -> int | None:
            return self.state.count or None

    @app.actor(orders, concurrency=4)
    class Asker(Actor[list]):
        @receive
        async def fetch(self, message: Fetch) -> None:
            timeout = timedelta(seconds=message.timeout_s)
            try:
                total = await self.ctx.ask(Counter, message.of, Add(message.amount), timeout=timeout)
            except AskTimeoutError:
                self.state.append("timeout")
                return
            await asyncio.sleep(message.then_wait_s)
            self.state.append(total.count)
            self.ctx.send(results, key=self.key, value=total.count)

    return app, Counter, Asker, seen, results


def asked(question_id: bytes, *, reply_to: bytes = b"asking-replies/3/me", **headers: bytes) -> dict[str, bytes]:
    return {ASK: question_id, REPLY_TO: reply_to, **headers}


def replies(driver: ActorTestDriver) -> list[tuple[bytes, bytes, bytes | None]]:
    """(id, status, value) of all answers that were sent, by partition and offset."""
    topic = driver._cluster.topic("asking-replies")
    found = []
    for log in topic.partitions:
        for record in log.history:
            headers = dict(record.headers)
            if record.is_committed and ASK in headers:
                found.append((headers[ASK], headers[STATUS], record.value))
    return found


# --- what comes back --------------------------------------------------------------------------------------------------


def test_an_answer_is_what_the_handler_returned_in_its_type():
    app, counter, _, _, _ = counters()
    with ActorTestDriver(app, partitions=3) as driver:
        assert driver.ask(counter, "a", Look()) is None
        assert driver.ask(counter, "a", Add(5)) == Total("a", 5)
        assert driver.ask("Counter", "a", Add(2)) == Total("a", 7)
        assert driver.ask(counter, "a", Look()) == 7
        driver.tell(counter, "a", Add(1))
        assert driver.get(counter, "a") == Count(8)


def test_function_actors_answer_too_also_raw_bytes_and_empty_ones():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=bytes)

    @app.actor(topic)
    def backwards(ctx, value) -> bytes | None:
        return None if value == b"null" else value[::-1]

    with ActorTestDriver(app) as driver:
        assert driver.ask(backwards, "a", b"abc") == b"cba"
        assert driver.ask(backwards, "a", b"") == b""
        assert driver.ask(backwards, "a", b"null") is None
        driver.send(topic, key="a", value=b"told, so that the answer goes nowhere")
        assert len(replies(driver)) == 3


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_handler_asks_another_actor(partitions):
    app, _, asker, seen, results = counters()
    with ActorTestDriver(app, partitions=partitions) as driver:
        driver.tell(asker, "x", Fetch("a", 5))
        driver.tell(asker, "x", Fetch("a", 6))
        assert [sent.value for sent in driver.outputs(results)] == [5, 11]
        assert driver.get(asker, "x") == [5, 11]
        assert seen["handled"] == [("a", 5), ("a", 6)]


def test_rejected_and_failed_have_their_own_errors_and_leave_nothing():
    app, counter, _, _, _ = counters(on_error=OnError(then="skip"))
    with ActorTestDriver(app) as driver:
        driver.ask(counter, "a", Add(1))
        with pytest.raises(AskRejectedError, match="Add to actor Counter, key 'a': rejected: thirteen"):
            driver.ask(counter, "a", Add(13))
        with pytest.raises(AskFailedError, match="ValueError: ninety-nine"):
            driver.ask(counter, "a", Add(99))
        assert driver.ask(counter, "a", Look()) == 1


def test_an_answer_that_is_too_large_is_a_failure_that_says_so():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)

    @app.actor(topic)
    def much(ctx, size) -> str:
        return "x" * size

    with ActorTestDriver(app) as driver:
        assert len(driver.ask(much, "a", 1_000_000)) == 1_000_000
        with pytest.raises(AskFailedError, match=r"the answer of 1100001 bytes doesn't fit into max\.message"):
            driver.ask(much, "a", 1_100_000)
        with pytest.raises(AskFailedError, match="doesn't fit"):
            # So close to the limit that only what goes with it makes it too large.
            driver.ask(much, "a", 1_048_500)


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_question_that_comes_again_gets_its_first_answer_and_is_not_handled():
    app, counter, _, seen, _ = counters()
    topic = app.definition_of(counter).topic
    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(topic, key="a", value={"type": "add", "amount": 5}, headers=asked(b"q1"))
            driver.send(topic, key="a", value={"type": "add", "amount": 13}, headers=asked(b"q2"))
        driver.crash(keep_disk=False)
        driver.send(topic, key="a", value={"type": "add", "amount": 5}, headers=asked(b"q1"))
        driver.post(topic, key="a", value={"type": "add", "amount": 7}, headers=asked(b"q3"))
        driver.post(topic, key="a", value={"type": "add", "amount": 7}, headers=asked(b"q3"))
        driver.settle()
        assert seen["handled"] == [("a", 5), ("a", 13), ("a", 7)]
        first, second, third = (
            b'{"key":"a","count":5}',
            b'{"reason":"thirteen","type":"Rejected"}',
            b'{"key":"a","count":12}',
        )
        both = [(b"q1", b"ok", first), (b"q2", b"rejected", second)]
        assert replies(driver) == [
            *both,
            *both,
            (b"q1", b"ok", first),
            (b"q3", b"ok", third),
            (b"q3", b"ok", third),
        ]


def test_a_question_that_failed_is_handled_again_by_an_operators_retry_only():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)
    world = {"is_mended": False}
    handled = []

    @app.actor(topic, on_error="park")
    def pay(ctx, amount) -> int:
        handled.append(amount)
        if not world["is_mended"]:
            raise ValueError("not now")
        return amount

    @app.actor(app.topic("other", key_type=str, value_type=int), on_error="skip")
    def skips(ctx, amount) -> int:
        handled.append(amount)
        raise ValueError("never")

    retry = {"actor": "pay", "what": "message", "command": "retry", "id": None}
    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(driver_topic(app, skips), key="a", value=1, headers=asked(b"q1"))
        deadline = b"%d" % (driver._clock.wall_ms() + 1000)
        driver.send(topic, key="a", value=2, headers=asked(b"q2", **{DEADLINE: deadline}))
        assert handled == [1, 2]
        assert [status for _, status, _ in replies(driver)] == [b"failed"] * 3
        driver.advance(3600)
        world["is_mended"] = True
        driver.send(topic, key="a", value=0, headers={"fa-control": json.dumps(retry).encode()})
        assert handled == [1, 2, 2]
        driver.send(topic, key="a", value=2, headers=asked(b"q2"))
        assert handled == [1, 2, 2]
        assert replies(driver)[3:] == [(b"q2", b"ok", b"2")] * 2


def test_a_question_that_comes_again_after_the_answers_time_is_handled_again():
    app, counter, _, seen, _ = counters(answer_ttl=timedelta(minutes=10))
    topic = app.definition_of(counter).topic
    with ActorTestDriver(app) as driver:
        for seconds in (0, 590, 20):
            driver.advance(seconds)
            driver.send(topic, key="a", value={"type": "add", "amount": 5}, headers=asked(b"q1"))
        assert len(seen["handled"]) == 2


def test_an_asker_that_dies_between_answer_and_commit_asks_the_same_again():
    app, counter, asker, seen, results = counters()
    with ActorTestDriver(app, partitions=2) as driver:
        driver.post(driver_topic(app, asker), key="x", value={"type": "fetch", "of": "a", "then_wait_s": 500.0})
        driver.advance(100, settle=False)
        assert driver.get(counter, "a") == Count(1)
        driver.crash(settle=False)
        driver.advance(100, settle=False)
        driver.crash(keep_disk=False)
        assert [sent.value for sent in driver.outputs(results)] == [1]
        assert seen["handled"] == [("a", 1)]
        assert [reply[0] for reply in replies(driver)] == [replies(driver)[0][0]] * 3


def driver_topic(app: App, actor: Any) -> Any:
    return app.definition_of(actor).topic


def test_a_handler_that_takes_another_way_gets_no_other_questions_answer():
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=str), app.topic("orders", key_type=str, value_type=str)
    way = {"text": "first"}
    got = []

    @app.actor(inbox)
    def echo(ctx, text) -> str:
        return text

    @app.actor(orders, concurrency=2)
    async def ask(ctx, _):
        got.append(await ctx.ask(echo, "e", way["text"]))
        await asyncio.sleep(50)

    with ActorTestDriver(app) as driver:
        driver.post(orders, key="x", value="go")
        driver.advance(10, settle=False)
        way["text"] = "second"
        driver.crash()
        assert got == ["first", "second"]


def test_what_was_seen_by_its_own_id_is_answered_with_none_and_its_own_question_with_its_answer():
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)
    handled = []

    @app.actor(topic, dedupe_by="payment")
    def pay(ctx, amount) -> int:
        handled.append(amount)
        return amount

    with ActorTestDriver(app) as driver:
        for question in (b"q1", b"q2", b"q1"):
            driver.send(topic, key="a", value=5, headers=asked(question, payment=b"p"))
        assert handled == [5]
        assert replies(driver) == [(b"q1", b"ok", b"5"), (b"q2", b"ok", None), (b"q1", b"ok", b"5")]


def test_a_question_is_asked_again_while_no_broker_answers():
    app, counter, _, seen, _ = counters()
    with with_faults(ActorTestDriver(app)) as driver:
        # The driver's own requests are those of no process.
        driver._network.planned["", "ListOffsets"] = "lost"
        driver._network.planned["", "Produce"] = "answer lost"
        assert driver.ask(counter, "a", Add(5)) == Total("a", 5)
        assert driver._network.planned == {}
        assert seen["handled"] == [("a", 5)]
        driver._network.cut_off.add("")
        with pytest.raises(AskTimeoutError, match=r"within 20 s \(.*NoAnswer"):
            driver.ask(counter, "a", Add(5), timeout=20 * SECOND)


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_late_answer_is_dropped():
    app, _, asker, seen, _ = counters()
    seen["slow_s"] = 5.0
    with ActorTestDriver(app) as driver:
        driver.tell(asker, "x", Fetch("a", 1, timeout_s=2.0))
        seen["slow_s"] = 0.0
        driver.tell(asker, "x", Fetch("a", 10))
        assert driver.get(asker, "x") == ["timeout", 11]
        assert len(replies(driver)) == 2


@pytest.mark.parametrize("timeout", [asyncio.timeout, None])
def test_a_question_that_is_asked_again_after_a_timeout_is_handled_once(timeout):
    app, counter, _, seen, _ = counters()
    seen["slow_s"] = 5.0

    @app.actor(app.topic("persistent", key_type=str), concurrency=4)
    class Persistent(Actor[list]):
        @receive
        async def fetch(self, message: Fetch) -> None:
            for _ in range(10):
                if len(self.state) < 2:
                    try:
                        async with timeout(2) if timeout else contextlib.nullcontext():
                            within = (20 if timeout else 2) * SECOND
                            total = await self.ctx.ask(counter, message.of, Add(message.amount), timeout=within)
                    except (AskTimeoutError, TimeoutError):
                        continue
                    self.state.append(total.count)

    with ActorTestDriver(app) as driver:
        driver.tell(Persistent, "x", Fetch("a", 5))
        driver.crash()
        driver.settle()
        assert driver.get(Persistent, "x") == [5, 10]
        assert driver.get(counter, "a") == Count(10)


def test_nothing_in_time_is_a_timeout_that_says_what_it_was():
    app, counter, _, seen, _ = counters()
    seen["slow_s"] = 5.0
    with ActorTestDriver(app) as driver:
        begin_s = driver.now_s
        with pytest.raises(AskTimeoutError, match="Add to actor Counter, key 'a': no answer within 2 s"):
            driver.ask(counter, "a", Add(1), timeout=2 * SECOND)
        assert driver.now_s - begin_s == pytest.approx(2.0, abs=0.1)
        driver.settle()
        assert driver.get(counter, "a") == Count(1)


def test_a_question_for_whose_answer_nobody_waits_any_more_is_not_handled(caplog):
    app, counter, _, seen, _ = counters()
    topic = driver_topic(app, counter)
    with ActorTestDriver(app) as driver, caplog.at_level(logging.INFO):
        late, early = (b"%d" % (driver._clock.wall_ms() + ms) for ms in (-1, 60_000))
        for number, deadline in enumerate((late, early, b"tomorrow", b"9" * 5000)):
            headers = asked(b"q", **{DEADLINE: deadline})
            driver.send(topic, key="a", value={"type": "add", "amount": number}, headers=headers)
            driver.advance(2)
        assert seen["handled"] == [("a", 1)]
        assert replies(driver) == [(b"q", b"ok", b'{"key":"a","count":1}')] * 3
    assert "inbox offset 0: question b'q' is too old" in caplog.text


# --- what can't be ----------------------------------------------------------------------------------------------------


def test_who_may_not_ask_and_what_gives_no_answer():
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=str)

    @app.actor(inbox)
    def answers(ctx, number) -> int:
        return number

    @app.actor(orders, concurrency=2)
    async def asks(ctx, what) -> None:
        if what == "silent":
            await ctx.ask(asks, "other", "hello")
        elif what == "keyless":
            await ctx.ask(answers, None, 1)
        else:
            await ctx.ask("nobody", "k", 1)

    other = app.topic("other", key_type=str, value_type=str)

    @app.actor(other)
    async def alone(ctx, what):
        await ctx.ask(answers, "k", 1)

    for topic, what, text in (
        (orders, "silent", "actor asks gives no answer to str"),
        (orders, "keyless", "needs a key"),
        (orders, "nobody", "is no actor of this app"),
        (other, "any", "declare it with @app.actor"),
    ):
        with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=text):
            driver.send(topic, key="a", value=what)
    with ActorTestDriver(app) as driver, pytest.raises(UsageError, match="gives no answer"):
        driver.ask(asks, "a", "x")


def test_a_question_that_is_too_large_is_refused_where_it_is_asked():
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=str), app.topic("orders", key_type=str, value_type=int)

    @app.actor(inbox)
    def length(ctx, text) -> int:
        return len(text)

    @app.actor(orders, concurrency=2)
    async def asks(ctx, size):
        await ctx.ask(length, "k", "x" * size)

    with ActorTestDriver(app) as driver:
        driver.send(orders, key="a", value=1_000_000)
        with pytest.raises(HandlerFailedError) as caught:
            driver.send(orders, key="a", value=1_100_000)
        assert isinstance(caught.value.__cause__, RecordTooLargeError)


async def test_app_ask_is_not_for_handlers():
    app, counter, _, _, _ = counters()
    topic = app.topic("more", key_type=str, value_type=int)

    @app.actor(topic)
    async def asks(ctx, _):
        await app.ask(counter, "a", Look())

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"use ctx\.ask"):
        driver.send(topic, key="a", value=1)
    await app.close_asks()
    await app.close_asks()


@pytest.mark.parametrize(
    "reply_to", [b"", b"results/0/me", b"asking-replies/8/me", b"asking-replies/x/me", b"asking-replies/" + b"9" * 5000]
)
def test_an_answer_goes_nowhere_but_to_the_topic_of_answers(reply_to, caplog):
    app, counter, _, seen, results = counters()
    with ActorTestDriver(app) as driver:
        value = {"type": "add", "amount": 5}
        driver.send(driver_topic(app, counter), key="a", value=value, headers=asked(b"q1", reply_to=reply_to))
        assert seen["handled"] == [("a", 5)]
        assert driver.outputs(results) == []
        assert replies(driver) == []
        driver.send(driver_topic(app, counter), key="a", value=value, headers=asked(b"q1"))
        assert len(replies(driver)) == len(seen["handled"]) == 1
    assert "isn't a partition of asking-replies" in caplog.text


def test_an_answers_type_that_is_not_to_be_found_is_refused_at_the_start():
    app = an_app()

    @app.actor(app.topic("in", key_type=str))
    def answers(ctx, value) -> "Unheard":  # noqa: F821
        return value

    with pytest.raises(ConfigurationError, match=r"actor answers: what .*answers returns .*Unheard"):
        ActorTestDriver(app).__enter__()


def test_only_annotated_handlers_answer():
    def nothing(ctx, value): ...
    def none(ctx, value) -> None: ...
    def text(ctx, value) -> "None": ...
    def something(ctx, value) -> "list[int]": ...

    for function in (nothing, none, text):
        assert ReplyTypes.of("a", function, resolve) is None
    types = ReplyTypes.of("a", something, resolve)
    assert types is not None
    codec = types.codec_for("whatever")
    assert codec is not None
    assert codec.decode(codec.encode([1, 2])) == [1, 2]
    app, counter, asker, _, _ = counters()
    assert [store.name for store in app.definition_of(counter).stores] == ["Counter", "Counter-answers"]
    assert [store.name for store in app.definition_of(asker).stores] == ["Asker"]


# --- the questions of a process ---------------------------------------------------------------------------------------


class Reply:
    offset, timestamp = 0, 0

    def __init__(self, key: bytes, question: bytes, status: bytes = b"ok", value: bytes | None = b"1") -> None:
        self.key, self.value = key, value
        self.headers = [(ASK, question), (STATUS, status)]


def question(name: str) -> ActorRequest:
    return ActorRequest(name, "t", 0, b"k", b"v", ())


async def test_only_answers_to_own_open_questions_are_taken_and_the_first_of_each():
    waiting = Waiting("me")
    with waiting.question(question("q1")) as one, waiting.question(question("q1")) as twin:
        with waiting.question(question("q2")) as two:
            waiting.deliver(Reply(b"you", b"q1", value=b"for you"))
            waiting.deliver(Reply(b"me", b"q9", value=b"to nothing"))
            waiting.deliver(Reply(b"me", b"q1"))
            waiting.deliver(Reply(b"me", b"q1", b"failed"))
            reply = Reply(b"me", b"q2", value=None)
            reply.headers.append((ASK, None))
            waiting.deliver(reply)
            assert one.result() == twin.result() == ActorReply("ok", b"1")
            assert not two.done()
        assert len(waiting) == 2
    assert len(waiting) == 0


async def test_too_many_questions_at_a_time_wait_for_their_turn():
    waiting = Waiting("me", limit=1)
    with (
        waiting.question(question("q1")),
        pytest.raises(BrokerUnavailableError, match="1 questions of this process wait"),
        waiting.question(question("q2")),
    ):
        pass
    with waiting.question(question("q2")) as again:
        waiting.fail(ValueError("closed"))
        assert isinstance(again.exception(), ValueError)


@pytest.mark.parametrize("long", [ASK, REPLY_TO, CHAIN, DEADLINE])
def test_a_question_with_a_header_that_is_too_long_is_the_actors_bad_record_at_most(long, caplog):
    app = an_app()
    topic, skips = app.topic("in", key_type=str, value_type=int), OnError(then="skip", dead_letters=True)

    @app.actor(topic, on_error=skips)
    def fine(ctx, number) -> int:
        return number

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value=1, headers={**asked(b"q1"), long: b"[" * 2_000_000})
        driver.send(topic, key="a", value=2, headers=asked(b"q2"))
        assert [question for question, _, _ in replies(driver)][-1] == b"q2"
        assert driver.ask(fine, "b", 3) == 3
    assert ("can't be answered" in caplog.text) == (long == ASK)


def test_a_reason_that_is_larger_than_the_topic_of_answers_takes_is_cut(monkeypatch):
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=int)

    @app.actor(topic, on_error=OnError(then="skip"))
    def fails(ctx, number) -> int:
        raise ValueError("x" * 2_000_000)

    with ActorTestDriver(app) as driver:
        monkeypatch.setattr("actors.runtime.requests.requests.MAX_REASON_BYTES", 3_000_000)
        with pytest.raises(AskFailedError, match="xxx"):
            driver.ask(fails, "a", 1)
