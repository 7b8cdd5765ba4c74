"""Answers that are given later than the handler returns, on the test driver."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, AnswerLater, AskRejectedError, AskTimeoutError, HandlerFailedError, Rejected, receive
from actors.runtime.requests.requests import DEADLINE
from actors.testing import ActorTestDriver
from tests.unit.runtime.requests.test_asks import an_app, asked, driver_topic, replies


class Wait(msgspec.Struct, tag="wait"):
    name: str
    for_s: float | None = None


class Open(msgspec.Struct, tag="open"):
    say: str | None
    refuse: bool = False


class Late(msgspec.Struct, tag="late"):
    name: str


class Door(msgspec.Struct):
    """The names that came, and those who wait."""

    names: list[str] = []
    waiting: list[AnswerLater] = []


def doors(**options: Any):
    """`Gate` answers all who wait when it is opened, or when their time is over."""
    app = an_app()

    @app.actor(app.topic("gates", key_type=str), timers=True, **options)
    class Gate(Actor[Door]):
        @receive
        async def wait(self, message: Wait) -> str | None:
            later = self.ctx.answer_later()
            self.state.names.append(message.name)
            if later is not None:
                self.state.waiting.append(later)
            if message.name == "broken":
                raise ValueError("broken")
            if message.for_s is not None:
                self.ctx.schedule(Late(message.name), after=timedelta(seconds=message.for_s))
            return "what is returned goes nowhere"

        @receive
        async def open(self, message: Open) -> int:
            value = Rejected("closed for today") if message.refuse else message.say
            given = sum(self.ctx.answer(later, value) for later in self.state.waiting)
            assert not any(self.ctx.answer(later, "twice") for later in self.state.waiting)
            self.state.waiting = []
            return given

        @receive
        async def late(self, message: Late) -> None:
            if self.state.waiting:
                self.ctx.answer(self.state.waiting.pop(0), f"{message.name} is late")

    return app, Gate


def wait(name: str = "a") -> dict[str, str]:
    return {"type": "wait", "name": name}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_answer_comes_with_the_commit_of_the_message_that_gives_it(concurrency):
    app, gate = doors(concurrency=concurrency)
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        for number in (b"1", b"2"):
            driver.send(topic, key="g", value=wait(), headers=asked(number))
        driver.send(topic, key="other", value=wait(), headers=asked(b"3"))
        driver.tell(gate, "g", Wait("told, so that nobody waits"))
        assert replies(driver) == []
        driver.crash(keep_disk=False)
        assert driver.ask(gate, "g", Open("hello")) == 2
        assert [reply for reply in replies(driver) if reply[0] in b"123"] == [
            (b"1", b"ok", b"hello"),
            (b"2", b"ok", b"hello"),
        ]
        assert driver.ask(gate, "g", Open("nobody left")) == 0


def test_a_timer_answers_too_and_the_asker_waits_for_it():
    app, gate = doors()
    with ActorTestDriver(app) as driver:
        assert driver.ask(gate, "g", Wait("me", for_s=5.0)) == "me is late"
        assert driver.now_s >= 5.0


def test_a_question_that_comes_again_is_not_handled_and_its_answer_goes_to_the_new_address():
    app, gate = doors()
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        for partition in (3, 5):
            reply_to = b"asking-replies/%d/me" % partition
            driver.send(topic, key="g", value=wait(), headers=asked(b"q", reply_to=reply_to))
        assert driver.get(gate, "g").names == ["a"]
        assert driver.ask(gate, "g", Open(None)) == 1
        logs = driver._cluster.topic("asking-replies").partitions
        assert [bool([r for r in logs[n].history if r.is_committed and ("fa-ask", b"q") in r.headers]) for n in (3, 5)]
        assert not any(("fa-ask", b"q") in record.headers for record in logs[3].history)
        driver.send(topic, key="g", value=wait(), headers=asked(b"q"))
        assert driver.get(gate, "g").names == ["a"]
        assert [reply for reply in replies(driver) if reply[0] == b"q"] == [(b"q", b"ok", None)] * 2


def test_an_open_question_is_remembered_as_long_as_anybody_waits():
    app, gate = doors(answer_ttl=timedelta(seconds=10))
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        deadline = b"%d" % (driver._clock.wall_ms() + 60_000)
        driver.send(topic, key="g", value=wait(), headers=asked(b"q", **{DEADLINE: deadline}))
        driver.advance(50)
        driver.send(topic, key="g", value=wait(), headers=asked(b"q", **{DEADLINE: deadline}))
        assert driver.get(gate, "g").names == ["a"]
        driver.advance(11)
        # What is forgotten is still answered, at the address that the state has.
        assert driver.ask(gate, "g", Open("x")) == 1


def test_a_refusal_later_is_a_rejection_where_it_was_asked():
    app, gate = doors()
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="g", value=wait(), headers=asked(b"q"))
        driver.tell(gate, "g", Open(None, refuse=True))
        assert replies(driver) == [(b"q", b"rejected", b'{"reason":"closed for today","type":"Rejected"}')]


def test_a_handler_that_fails_owes_nothing():
    app, gate = doors(on_error="skip")
    topic = driver_topic(app, gate)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="g", value=wait("broken"), headers=asked(b"q"))
        assert [status for _, status, _ in replies(driver)] == [b"failed"]
        assert driver.get(gate, "g") is None
        assert driver.ask(gate, "g", Open("x")) == 0


def test_nobody_answers_in_time():
    app, gate = doors()
    with ActorTestDriver(app) as driver, pytest.raises(AskTimeoutError):
        driver.ask(gate, "g", Wait("me"), timeout=timedelta(seconds=2))


def test_the_answer_later_is_json_and_opens_no_other_keys_question():
    app = an_app()
    kept: list[Any] = []

    @app.actor(app.topic("in", key_type=str, value_type=str), concurrency=2)
    async def act(ctx, what) -> str:
        await asyncio.sleep(0)
        if what == "later":
            kept.append(msgspec.json.decode(msgspec.json.encode(ctx.answer_later()), type=AnswerLater))
        else:
            ctx.answer(kept[0] if what == "answer" else None, "given")
        return "done"

    topic = driver_topic(app, act)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value="later", headers=asked(b"\xff"))
        driver.send(topic, key="a", value="nothing")
        driver.send(topic, key="a", value="answer")
        assert replies(driver) == [(b"\xff", b"ok", b"given")]
        with pytest.raises(HandlerFailedError, match="isn't a question to key 'b'"):
            driver.send(topic, key="b", value="answer")


def test_an_actor_that_answers_nothing_says_so():
    app = an_app()

    @app.actor(app.topic("in", key_type=str, value_type=str))
    def act(ctx, what):
        ctx.answer_later()

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match="annotate what a handler returns"):
        driver.send(driver_topic(app, act), key="a", value="x")


def test_a_refusal_reaches_who_waits_for_it():
    app, gate = doors()

    @app.actor(app.topic("asking", key_type=str, value_type=str), concurrency=2)
    async def ask(ctx, _):
        with pytest.raises(AskRejectedError, match="closed"):
            await ctx.ask(gate, "g", Wait("me"))
        seen.append("refused")

    seen: list[str] = []
    with ActorTestDriver(app) as driver:
        driver.post(driver_topic(app, ask), key="x", value="go")
        driver.advance(1, settle=False)
        driver.tell(gate, "g", Open(None, refuse=True))
        assert seen == ["refused"]


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_an_answer_that_is_forgotten_is_not_kept_and_the_question_is_handled_again(is_later, is_forgotten):
    app = an_app()
    handled: list[str] = []
    kept: list[Any] = []

    @app.actor(app.topic("in", key_type=str, value_type=str))
    def act(ctx, what) -> str:
        handled.append(what)
        if what == "question":
            if is_forgotten:
                ctx.forget_answer()
            if is_later:
                kept.append(msgspec.json.decode(msgspec.json.encode(ctx.answer_later()), type=AnswerLater))
        elif kept:
            ctx.answer(kept.pop(), "much")
        return "much"

    topic = driver_topic(app, act)
    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(topic, key="a", value="question", headers=asked(b"q"))
            driver.send(topic, key="a", value="answer")
        assert replies(driver) == [(b"q", b"ok", b"much")] * 2
        assert handled.count("question") == (2 if is_forgotten else 1)
        store = next(store for store in app.definition_of(act).stores if store.name.endswith("-answers"))
        assert driver.items(store) == ({} if is_forgotten else {b"q": b"omuch"})


def test_an_open_question_is_not_handled_again_though_its_answer_is_forgotten():
    app = an_app()
    handled: list[str] = []

    @app.actor(app.topic("in", key_type=str, value_type=str))
    def act(ctx, what) -> str:
        handled.append(what)
        ctx.forget_answer()
        ctx.answer_later()
        return ""

    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(driver_topic(app, act), key="a", value="question", headers=asked(b"q"))
        assert handled == ["question"]
