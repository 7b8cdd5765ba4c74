"""Records whose producer wants to do harm: they are handled by `on_error` at most, and the others go on."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, Context, OnError, receive
from actors.coordination import coordination
from actors.runtime.message.outputs import ACTOR_HEADER, ATTEMPTS_HEADER, ERROR_HEADER, ORIGIN_HEADER
from actors.runtime.quarantine.quarantine import CONTROL_HEADER
from actors.runtime.requests.replies import MAX_HEADER_BYTES
from actors.runtime.requests.requests import ASK, CHAIN, DEADLINE, REPLY_TO, STATUS
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_HEADER

HEADERS = (
    CONTROL_HEADER, ASK, REPLY_TO, CHAIN, DEADLINE, STATUS, METADATA_HEADER, "id", "traceparent", "tracestate",
    ERROR_HEADER, ORIGIN_HEADER, ATTEMPTS_HEADER, ACTOR_HEADER, "", "\x00", "x" * 10_000, "\u202e", "%s%n",
)  # fmt: skip
DIGITS = b"9" * 5_000
PAYLOADS: dict[str, bytes | None] = {
    "null": None,
    "empty": b"",
    "not UTF-8": b'{"actor": "\xff"}',
    "lone surrogate": b'{"actor": "\\ud800"}',
    "surrogates in a chain": b'[["plain", 0, "\\ud800"]]',
    "infinite": b'[["plain", Infinity, "k"]]',
    "too large": b'[["plain", 1e999, "k"]]',
    "not a number": b'[["plain", NaN, "k"]]',
    "nested": b'{"actor": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "cut": b"[" * 50_000,
    "digits": DIGITS,
    "digits in a chain": b'[["plain", ' + DIGITS + b', "k"]]',
    "other digits": "\u0663\u0663".encode(),
    "negative": b"-1",
    "long": b"x" * 100_000,
    "binary": bytes(range(256)),
    "write metadata": struct.pack(">BQqq", 1, 2**64 - 1, -1, -1),
    "control of others": b'{"actor": "nobody", "what": "message", "command": "drop"}',
    "control of nothing": b'{"actor": "plain", "what": "message", "command": "retry", "id": "\\u0000"}',
    "an address": b"shop-replies/999999999999/x/../..",
    "a trace": b"00-" + b"f" * 32 + b"-" + b"0" * 16 + b"-01",
    "terminal": b"\x1b]0;x\x07\n2026-01-01 ERROR forged",
}
VALUES = (
    b"", b"null", b"NaN", b"1e999", b"-0.0", b"true", b"[]", b"{}", b'"', b"\xff", b'"\\ud800"', DIGITS, b"[" * 50_000,
    b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b"\x00\xff\xff\xff\xff", bytes(range(256)),
    b'{"type": null}', b'{"type": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", None,
)  # fmt: skip
TYPED = (
    b'{"type": "add"}', b'{"type": "add", "count": null}', b'{"type": "add", "count": 1e999}',
    b'{"type": "add", "count": ' + DIGITS + b"}", b'{"type": "add", "count": 1, "at": "P99999999999999999999D"}',
    b'{"type": "add", "count": 1, "type": "add", "count": 2}', b'{"type": "add", "count": 1, "when": "9999-99-99"}',
    b'{"type": "add", "count": 1, "id": "\\ud800", "when": "0000-00-00T00:00:00Z"}',
    b'{"type": "clear", "data": {"\\udfff": [[[[]]]]}}', b'{"type": "clear", "data": {"a": 1' + b"0" * 400 + b"}}",
)  # fmt: skip
REQUESTS = (
    b'{"v": 1, "type": "acquire", "owner": "", "ttl_ms": -1}', b'{"v": 99999999999999999999999, "type": "look"}',
    b'{"v": 1, "type": "put", "data": "\\ud800"}', b'{"v": 1, "type": "watch", "after": -9, "wait_ms": 1e300}',
    b'{"v": 1, "type": "watch", "after": 9' + b"9" * 400 + b', "wait_ms": 43200000}', b'{"v": 1, "type": "tick"}',
    b'{"v": 1, "type": "acquire", "owner": "a", "ttl_ms": 9223372036854775807, "permits": -1, "wait_ms": 1}',
    b'{"v": 1, "type": "acquire", "owner": "a", "ttl_ms": 86400000, "wait_ms": 43200000, "data": "\\u0000\\u202e"}',
    b'{"v": 1, "type": "renew", "owner": "a", "ttl_ms": 86400000, "token": -' + b"9" * 400 + b"}",
    b'{"v": 1, "type": "put", "data": "x", "expected": ' + b"9" * 400 + b"}", b'{"v": 1, "type": "new"}',
)  # fmt: skip
TIMES_MS = (-1, 0, -(2**63), 2**63 - 1, 10**15)
FAR_MS = 10**14
POLICIES = {
    "skip": OnError(then="skip", dead_letters=True),
    "park": OnError(then="park", retries=1, first_wait=timedelta(milliseconds=1)),
    "stop": OnError(),
}


class Add(msgspec.Struct, tag="add"):
    count: int
    at: timedelta = timedelta()
    when: datetime | None = None
    id: str = ""


class Clear(msgspec.Struct, tag="clear"):
    data: dict[str, Any] = {}


class Named(msgspec.Struct):
    name: str


class Flagged(msgspec.Struct):
    flag: bool


class World:
    """An app with what reads headers and values: questions, timers, parking, tagged and named messages."""

    def __init__(self, on_error: OnError, concurrency: int = 1) -> None:
        self.on_error = on_error
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.plain = app.topic("plain", key_type=str)
        self.typed = app.topic("typed", key_type=str)
        self.named = app.topic("named", key_type=str)
        self.scalars = app.topic("scalars", key_type=int, value_type=float)
        self.seen: set[tuple[str, str]] = set()
        counts = app.store("counts", key_type=str, value_type=int)

        @app.actor(app.topic("other", key_type=str, value_type=str), on_error=on_error)
        async def other(ctx: Context, value: str) -> str:
            return value

        @app.actor(self.plain, stores=[counts], dedupe_by="id", timers=True, on_error=on_error, concurrency=concurrency)
        async def plain(ctx: Context, value: Any) -> str:
            counts.set(ctx.key, counts.get(ctx.key, 0) + 1)
            if concurrency > 1:
                await ctx.ask(other, ctx.key, "hello")
            else:
                ctx.tell(other, ctx.key, "hello")
            if ctx.timer is None:
                ctx.schedule("tick", after=timedelta(seconds=1), name="by the clock")
                ctx.schedule("tock", after=timedelta(seconds=1), name="by the input", stream_time=True)
            self.seen.add(("plain", ctx.key))
            return "done"

        @app.actor(self.typed, on_error=on_error)
        class Counter(Actor[int]):
            @receive
            def add(counter, message: Add) -> int:  # noqa: N805  the world is `self`
                self.seen.add(("typed", counter.key))
                return message.count

            @receive
            def clear(counter, message: Clear) -> None:  # noqa: N805
                counter.forget()

        @app.actor(self.named, on_error=on_error)
        class Names(Actor[int]):
            @receive
            def name(names, message: Named) -> None:  # noqa: N805
                self.seen.add(("named", names.key))

            @receive
            def flag(names, message: Flagged) -> None:  # noqa: N805
                self.seen.add(("named", names.key))

        @app.actor(self.scalars, on_error=on_error, concurrency=concurrency)
        async def scalars(ctx: Context, value: float) -> None:
            self.seen.add(("scalars", str(ctx.key)))

        coordination(app)
        # What is sent afterwards, and is handled whatever came before it.
        self.sound: dict[Any, tuple[bytes, dict[str, bytes]]] = {
            self.plain: (b'"sound"', {}),
            self.typed: (b'{"type": "add", "count": 1}', {}),
            self.named: (b'{"name": "x"}', {"fa-type": b"Named"}),
            self.scalars: (b"1.5", {}),
        }

    def post(self, driver: ActorTestDriver, topic: Any, key: bytes | None, value: bytes | None, **more: Any) -> None:
        driver.post(topic, key=key, value=value, raw=True, **more)

    def check(self, driver: ActorTestDriver) -> None:
        """See that every actor handles its next records, in each partition."""
        driver.settle()
        self.seen.clear()
        for topic, (value, headers) in self.sound.items():
            for number in range(6):
                self.post(driver, topic, str(7_000 + number).encode(), value, headers=headers)
        driver.settle()
        wanted = {(str(topic.get_topic_name()), str(7_000 + number)) for topic in self.sound for number in range(6)}
        assert self.seen >= wanted


@pytest.fixture(params=[("skip", 4), ("park", 1)], ids=str)
def world(request: pytest.FixtureRequest) -> World:
    policy, concurrency = request.param
    return World(POLICIES[policy], concurrency)


@pytest.mark.parametrize("world", [("skip", 4), ("park", 1), ("stop", 1)], indirect=True, ids=str)
def test_headers_hurt_at_most_their_own_record(world: World) -> None:
    with ActorTestDriver(world.app, partitions=2) as driver:
        for topic, (value, headers) in world.sound.items():
            for number, (name, payload) in enumerate((name, raw) for name in HEADERS for raw in PAYLOADS.values()):
                if name == ASK and len(payload or b"") > MAX_HEADER_BYTES and world.on_error.then == "stop":
                    # A question that can't be answered is a record that can't be read.
                    continue
                question = [(ASK, b"q%d" % number), (REPLY_TO, b"shop-replies/0/me")] if number % 2 else []
                pairs: Any = [*headers.items(), *question, (name, payload)]
                world.post(driver, topic, str(number).encode(), value, headers=pairs)
        world.check(driver)
        driver.crash()
        world.check(driver)


def test_values_hurt_at_most_their_own_record(world: World) -> None:
    topics = {world.plain: (), world.typed: TYPED, world.named: (), world.scalars: ()}
    topics |= {world.app.topic("shop-coordination"): REQUESTS}
    with ActorTestDriver(world.app, partitions=2) as driver:
        for topic, own in topics.items():
            for number, value in enumerate((*VALUES, *own)):
                for name in ("", "Named", "Flagged"):
                    headers = [("fa-type", name.encode())] if name else []
                    world.post(driver, topic, str(number).encode(), value, headers=headers)
                    question = [(ASK, b"q%d" % number), (REPLY_TO, b"shop-replies/0/me")]
                    world.post(driver, topic, b"one", value, headers=headers + question)
                # Each as a key too.
                world.post(driver, topic, value, b"1.5")
        for topic, (value, headers) in world.sound.items():
            if world.on_error.then == "skip":
                world.post(driver, topic, b"9" * 1_000_000, value, headers=headers)
        driver.advance(3600)
        world.check(driver)
        driver.crash(keep_disk=False)
        world.check(driver)


@pytest.mark.parametrize("world", [("skip", 1), ("stop", 4)], indirect=True, ids=str)
def test_timestamps_hurt_at_most_their_own_record(world: World) -> None:
    with ActorTestDriver(world.app, partitions=2) as driver:
        for topic, (value, headers) in world.sound.items():
            for number, at_ms in enumerate(TIMES_MS):
                if at_ms > FAR_MS and topic is world.plain and world.on_error.then == "stop":
                    # Its timers go by stream time, so the record is an error.
                    continue
                world.post(driver, topic, str(number).encode(), value, headers=headers, timestamp_ms=at_ms)
                driver.settle()
        driver.advance(10)
        world.check(driver)
