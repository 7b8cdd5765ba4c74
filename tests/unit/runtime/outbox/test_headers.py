"""The framework's own headers: what is passed on, what is refused, and what a dead letter in the input does."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from actors import Actor, App, Context, HandlerFailedError, OnError, receive
from actors.runtime.requests.requests import ASK, CHAIN, DEADLINE, REPLY_TO
from actors.testing import ActorTestDriver

QUESTION = {ASK: b"q1", REPLY_TO: b"headers-replies/0/me", CHAIN: b"[]", DEADLINE: b"%d" % (1 << 50)}
ANSWER_TTL = timedelta(hours=1)
TRACE = {"traceparent": b"00-1", "tenant": b"t"}


class World:
    """`front` passes its headers on to `back` with `way`; both answer."""

    def __init__(self, way: Any, **options: Any) -> None:
        self.app = App("headers", broker="kafka://127.0.0.1:1")
        self.inbox = self.app.topic("front", key_type=str, value_type=str)
        self.out = self.app.topic("out", key_type=str, value_type=str)
        self.seen: list[dict[str, bytes]] = []
        self.fails = False
        world = self

        @self.app.actor(self.app.topic("back", key_type=str, value_type=str))
        def back(ctx: Context, value: str) -> str:
            world.seen.append(dict(ctx.headers))
            return value

        @self.app.actor(self.inbox, **options)
        def front(ctx: Context, value: str) -> str:
            if world.fails:
                raise ValueError("not now")
            way(world, ctx, value)
            return value

        self.back = back


def tell(world: World, ctx: Context, value: str) -> None:
    ctx.tell(world.back, ctx.key, value, headers=ctx.headers)


def send(world: World, ctx: Context, value: str) -> None:
    ctx.send(world.app.topic("back", key_type=str, value_type=str), key=ctx.key, value=value, headers=dict(ctx.headers))


@pytest.mark.parametrize("way", [tell, send])
def test_headers_that_are_passed_on_make_no_question_of_a_message(way: Any) -> None:
    world = World(way)
    with ActorTestDriver(world.app) as driver:
        for value in ("one", "two"):
            driver.ask("front", "a", value)
        # The same question under the same id in both actors, as a copy of its headers would make it.
        driver.ask("back", "a", "three")
        driver.send(world.inbox, key="a", value="four", headers=QUESTION | TRACE)
        driver.send(world.inbox, key="b", value="five", headers=QUESTION | {ASK: b"q2"} | TRACE)
    del world.seen[2]
    assert world.seen == [{}, {}, TRACE, TRACE]


@pytest.mark.parametrize("header", [(ASK, b"q"), ("fa-control", b"{}"), ("fa-error", b"e"), ("fa-new", b"")])
def test_a_reserved_header_that_did_not_come_with_the_message_is_refused(
    header: tuple[str, bytes], caplog: Any
) -> None:
    world = World(lambda world, ctx, value: ctx.send(world.out, key="a", value=value, headers=[header]))
    with ActorTestDriver(world.app) as driver:
        driver.send(world.inbox, key="a", value="v", headers={ASK: b"another", REPLY_TO: b"x"})
        assert f"'{header[0]}' can't be set" in caplog.text
        assert driver.outputs(world.out) == []


def test_what_describes_a_dead_letter_and_a_type_is_passed_on() -> None:
    world = World(lambda world, ctx, value: ctx.send(world.out, key="a", value=value, headers=ctx.headers))
    described = {"fa-error": b"e", "fa-origin": b"t/0/1", "fa-attempts": b"1", "fa-actor": b"x", "fa-type": b"T"}
    with ActorTestDriver(world.app) as driver:
        driver.send(world.inbox, key="a", value="v", headers=described | QUESTION)
        [sent] = driver.outputs(world.out)
        assert dict(sent.headers) == described


def test_a_message_that_is_told_with_the_headers_of_another_type_has_its_own() -> None:
    app = App("types", broker="kafka://127.0.0.1:1")
    got: list[object] = []

    @app.actor(app.topic("in", key_type=str))
    class Both(Actor[None]):
        @receive
        async def number(self, message: int) -> None:
            self.ctx.tell(Both, self.key, "text", headers=self.ctx.headers)

        @receive
        async def text(self, message: str) -> None:
            got.append((message, list(self.ctx.headers)))

    with ActorTestDriver(app) as driver:
        driver.tell(Both, "a", 1)
    assert got == [("text", [("fa-type", b"str")])]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("then", ["park", "skip"])
def test_a_dead_letter_of_a_question_in_the_input_is_handled_once(then: Any, is_late: bool) -> None:
    handled: list[str] = []
    world = World(
        lambda world, ctx, value: handled.append(value),
        on_error=OnError(then=then, dead_letters=True) if then == "skip" else OnError(then=then),
        answer_ttl=ANSWER_TTL,
    )
    letters = world.app.topic("headers-dead-letters", key_type=str, value_type=str)
    with ActorTestDriver(world.app) as driver:
        world.fails = True
        driver.send(
            world.inbox, key="a", value="v", headers=QUESTION | {DEADLINE: b"%d" % (driver._clock.wall_ms() + 1000)}
        )
        [letter] = driver.outputs(letters)
        assert dict(letter.headers)[ASK] == b"q1"
        world.fails = False
        if then == "park":
            # While it is parked, it would wait behind itself.
            drop = {"actor": "front", "what": "message", "command": "drop", "id": None}
            driver.send(world.inbox, key="a", value="", headers={"fa-control": json.dumps(drop).encode()})
        if is_late:
            # Nobody waits any more, and no answer is kept.
            driver.advance(2 * ANSWER_TTL.total_seconds())
        for _ in range(2):
            driver.send(world.inbox, key="a", value="v", headers=letter.headers)
        assert handled == ["v"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"headers": {"x-\ud800": b""}}, "isn't Unicode text"),
        ({"timestamp_ms": 1 << 63}, "a whole number below 2"),
    ],
)
def test_what_has_no_form_on_the_wire_is_the_handlers_error(sent: dict[str, Any], why: str) -> None:
    app = App("wire", broker="kafka://127.0.0.1:1")
    topic, out = (app.topic(name, key_type=str, value_type=str) for name in ("in", "out"))

    @app.actor(topic)
    async def send(ctx: Context, text: str) -> None:
        ctx.send(out, key=ctx.key, value=text, **sent)

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=why):
        driver.send(topic, key="a", value="1")


@pytest.mark.parametrize("way", [tell, send])
def test_a_header_without_a_value_is_passed_on_as_it_came(way: Any) -> None:
    world = World(way)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.inbox, key="a", value="x", headers=[("empty", None), ("tenant", b"t")])
        assert world.seen == [{"empty": None, "tenant": b"t"}]
