"""Traces on the test driver, with OpenTelemetry's SDK and its exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from actors import App, Context, OnError, Rejected
from actors._faust.tracing import trace_headers
from actors.replay.replay import DONE, Replayer
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.outbox.calls import EffectRecord
from actors.testing import ActorTestDriver

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01".encode()
NO_WAIT = OnError(then="park", retries=2, first_wait=timedelta(milliseconds=1), longest_wait=timedelta(milliseconds=1))


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """A provider can be set once in a process; nothing else here traces."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def names(spans: InMemorySpanExporter) -> list[str]:
    return [span.name for span in spans.get_finished_spans()]


def one(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Give trace, span, and the parent's span."""
    assert span.context is not None
    parent = None if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", parent


class World:
    """`first` sends what it gets to `second`, which may fail, set a timer, call an effect, or ask `third`."""

    def __init__(self, *, tracing: bool = True, concurrency: int = 1) -> None:
        app = self.app = App("shop", broker="kafka://127.0.0.1:1", tracing=tracing)
        self.input = app.topic("in", key_type=str, value_type=str)
        self.middle = app.topic("middle", key_type=str, value_type=str)
        self.questions = app.topic("questions", key_type=str, value_type=str)
        self.out = app.topic("out", key_type=bytes, value_type=bytes)
        self.fails = 0

        @app.effect()
        async def charge(call: Any, what: str) -> str | None:
            if call.attempt == 1 and what == "twice":
                raise OSError("the till is closed")
            return "charged"

        self.charge = charge

        @app.actor(self.input, concurrency=concurrency)
        async def first(ctx: Context, value: str) -> None:
            ctx.tell("second", ctx.key, value)

        @app.actor(self.questions, concurrency=2)
        async def third(ctx: Context, value: str) -> str:
            return value.upper()

        @app.actor(self.middle, on_error=NO_WAIT, timers=True, effects=[charge], concurrency=4)
        async def second(ctx: Context, value: str) -> None:
            await self.act(ctx, value)

        self.third = third

    async def act(self, ctx: Context, value: str) -> None:
        """Do what a message says, and send it on."""
        if value == "refuse":
            raise Rejected("no")
        if value == "fail" and self.fails:
            self.fails -= 1
            raise ValueError("can't")
        if value == "later":
            ctx.schedule("woken", after=timedelta(seconds=1))
        if value.startswith("effect"):
            ctx.effect(self.charge, value.partition(" ")[2])
        if value == "ask":
            value = await ctx.ask(self.third, ctx.key, "x")
        if value == "own":
            ctx.send(self.out, key=b"k", value=b"v", headers={"traceparent": b"mine"})
        ctx.send(self.out, key=ctx.key.encode(), value=value.encode(), headers={"x": b"1"})


@pytest.mark.parametrize("concurrency", [1, 3])
def test_input_output_and_the_next_actor_are_one_trace(spans: InMemorySpanExporter, concurrency: int):
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.input, key="a", value="hello", headers={"traceparent": TRACEPARENT})
        (sent,) = driver.outputs(world.out)
    first, second = one(spans, "process in"), one(spans, "process middle")
    assert ids(first)[0] == ids(second)[0] == TRACE
    assert ids(first)[2] == PARENT
    assert ids(second)[2] == ids(first)[1]
    headers = dict(sent.headers)
    assert headers["x"] == b"1"
    assert headers["traceparent"].decode() == f"00-{TRACE}-{ids(second)[1]}-01"


def test_a_span_says_which_message_it_is_of(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.input, key="a", value="0")
        driver.send(world.input, key="a", value="hello")
    found = [span for span in spans.get_finished_spans() if span.name == "process in"][1]
    assert found.kind is SpanKind.CONSUMER
    assert found.parent is None
    assert found.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 1,
        "messaging.kafka.message.key": "a",
        "messaging.consumer.group.name": "shop-actors",
        "messaging.message.id": "in-0-1",
        "messaging.message.body.size": 5,
        "faust_actors.actor": "first",
    }
    assert found.status.status_code is StatusCode.UNSET


def test_an_error_is_recorded_and_each_attempt_has_its_span(spans: InMemorySpanExporter):
    world = World()
    world.fails = 2
    with ActorTestDriver(world.app) as driver:
        driver.send(world.input, key="a", value="fail", headers={"traceparent": TRACEPARENT})
        (sent,) = driver.outputs(world.out)
    attempts = [span for span in spans.get_finished_spans() if span.name == "process middle"]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert {ids(span)[0] for span in attempts} == {TRACE}
    assert len({ids(span)[1] for span in attempts}) == 3
    assert len({ids(span)[2] for span in attempts}) == 1
    assert attempts[0].attributes is not None
    assert attempts[0].attributes["error.type"] == "ValueError"
    assert attempts[0].status.description == "ValueError: can't"
    assert [event.name for event in attempts[0].events] == ["exception"]
    assert ids(attempts[2])[1].encode() in dict(sent.headers)["traceparent"]


def test_a_refusal_is_no_error(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.middle, key="a", value="refuse")
    found = one(spans, "process middle")
    assert found.status.status_code is StatusCode.UNSET
    assert found.attributes is not None
    assert found.attributes["faust_actors.rejected"] == "no"


def test_a_timer_goes_on_in_the_trace_that_set_it(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.middle, key="a", value="later", headers={"traceparent": TRACEPARENT})
        driver.crash()
        driver.advance(2)
    set_by, woken = [span for span in spans.get_finished_spans() if span.name == "process middle"]
    assert ids(woken)[0] == TRACE
    assert ids(woken)[2] == ids(set_by)[1]
    assert woken.attributes is not None
    assert "faust_actors.timer" in woken.attributes


def test_an_effect_and_what_it_gave_are_in_the_trace_also_after_a_kill(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app, partitions=1, effects={world.charge: world.charge}) as driver:
        driver.send(world.middle, key="a", value="effect twice", headers={"traceparent": TRACEPARENT})
        driver.crash()
        driver.advance(10)
    called, result = [span for span in spans.get_finished_spans() if span.name == "process middle"]
    failed, succeeded = [span for span in spans.get_finished_spans() if span.name == "effect charge"]
    assert {ids(span)[0] for span in (called, failed, succeeded, result)} == {TRACE}
    assert ids(failed)[2] == ids(succeeded)[2] == ids(called)[1]
    assert ids(result)[2] == ids(succeeded)[1]
    assert (failed.status.status_code, succeeded.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [event.name for event in failed.events] == ["exception"]


def test_a_question_is_handled_in_the_trace_of_who_asks(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.middle, key="a", value="ask", headers={"traceparent": TRACEPARENT})
        (sent,) = driver.outputs(world.out)
        assert sent.value == b"X"
    asker, asked = one(spans, "process middle"), one(spans, "process questions")
    assert ids(asked)[0] == TRACE
    assert ids(asked)[2] == ids(asker)[1]


def test_a_record_that_has_a_context_keeps_it(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.middle, key="a", value="own")
        own, other = driver.outputs(world.out)
    assert own.headers == [("traceparent", b"mine")]
    assert dict(other.headers)["traceparent"].startswith(b"00-")


def test_a_record_that_would_be_too_large_goes_without(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.middle, key="a", value="x" * (1_048_588 - 257 - 3))
        (sent,) = driver.outputs(world.out)
    assert [name for name, _ in sent.headers] == ["x"]


def test_a_damaged_context_begins_a_trace_of_its_own(spans: InMemorySpanExporter):
    world = World()
    with ActorTestDriver(world.app) as driver:
        driver.send(world.input, key="a", value="x", headers={"traceparent": b"\xff\x00 no"})
    assert one(spans, "process in").parent is None


def test_a_replay_is_not_traced(spans: InMemorySpanExporter):
    world = World()
    record = InternalRecord(0, 1_000, b"a", b"hello", [("traceparent", TRACEPARENT)])
    rows = list(Replayer.of(world.app, "first").run(0, [(0, record)], partition_count=1))
    assert rows[-1].kind == DONE
    assert names(spans) == []


def test_without_the_setting_nothing_is_traced_or_imported(spans: InMemorySpanExporter):
    world = World(tracing=False)
    with ActorTestDriver(world.app) as driver:
        driver.send(world.input, key="a", value="hello", headers={"traceparent": TRACEPARENT})
        (sent,) = driver.outputs(world.out)
    assert names(spans) == []
    assert sent.headers == [("x", b"1")]
    code = "import sys, actors, actors.testing; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("tracing", [True, False])
def test_messages_from_outside_of_handlers_carry_the_callers_span(spans: InMemorySpanExporter, tracing: bool):
    app = World(tracing=tracing).app
    assert trace_headers(app) == []
    with trace.get_tracer("test").start_as_current_span("a request") as span:
        found = dict(trace_headers(app))
        own = span.get_span_context()
    assert list(found) == (["traceparent"] if tracing else [])
    # The flags behind it are the SDK's affair.
    expected = f"00-{own.trace_id:032x}-{own.span_id:016x}-".encode()
    assert all(value.startswith(expected) for value in found.values())


def test_an_effect_that_isnt_traced_is_kept_as_it_ever_was():
    record = EffectRecord(id="i", name="n", args=[], kwargs={})
    assert msgspec.json.decode(msgspec.json.encode(record)) == {
        "id": "i",
        "name": "n",
        "args": [],
        "kwargs": {},
        "attempts": 0,
        "next_ms": 0,
        "error": None,
        "parked": False,
    }
