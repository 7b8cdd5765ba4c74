"""Traces through actors: a span for each message that is handled, in the trace that the message's headers name.

Imported only where an app asks for it: the handler is wrapped when the worker starts, and without that nothing here
runs. What a message leads to carries its span's context in headers (W3C `traceparent`, or whatever propagator is set
up): outputs, tells, answers, timers and questions; a call of an effect carries it in the outbox.

A span tells that a handler ran, not that its work is committed. What is handled again, after an error or a takeover,
gets a span of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from actors._core.logs import error_text, escaping, text_of, traceback_text
from actors._core.outside import EXITS
from actors.errors import Rejected
from actors.ports import Headers
from actors.runtime.handlers.effect import Outcome
from actors.runtime.message.context import Context
from actors.runtime.observe.propagation import Carrier, carry
from actors.runtime.spec import Handler, TracedCall
from actors.runtime.spec import Tracing as Inner

logger = escaping(logging.getLogger(__name__))

SYSTEM = {"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.operation.name": "process"}
"""The attributes that OpenTelemetry's conventions for messaging give to what a consumer does with a message."""


class _FromHeaders(Getter[Headers]):
    """Finds a context in a record's headers."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the values of a header."""
        return [value.decode(errors="replace") for name, value in carrier if name == key and value] or None

    def keys(self, carrier: Headers) -> list[str]:
        """Return the headers' names."""
        return [name for name, _ in carrier]


_from_headers = _FromHeaders()


def current_headers() -> list[tuple[str, bytes]]:
    """Return the headers that carry the current context; none outside of spans."""
    return [(name, value.encode()) for name, value in _carried().items()]


@dataclass(slots=True)
class Tracing(Carrier):
    """Makes the spans of one actor."""

    tracer: trace.Tracer
    actor: str
    group: str
    inner: Inner | None = None

    @classmethod
    def of(cls, actor: str, group: str) -> Tracing:
        """Take the tracer that the process has set up, or sets up later."""
        return cls(trace.get_tracer("faust-actors"), actor, group)

    def headers(self) -> list[tuple[str, bytes]]:
        """Return the headers that carry the current span."""
        return current_headers()

    def wrapped(self, handler: Handler) -> Handler:
        """Return a handler in a span, whose outputs carry it."""

        async def handle(ctx: Context, value: Any) -> Any:
            state = ctx._state
            sent = 0 if state is None else len(state.outputs)
            with self._span(ctx) as span, _told(span):
                result = await handler(ctx, value)
                if state is not None and len(state.outputs) > sent:
                    carry(state, sent, current_headers())
                return result

        handle.__name__ = handle.__qualname__ = getattr(handler, "__name__", "handle")
        return handle

    @contextmanager
    def _span(self, ctx: Context) -> Iterator[Span]:
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.destination.name": ctx.topic,
            "messaging.destination.partition.id": str(ctx.partition),
            "messaging.kafka.offset": ctx.offset,
            "messaging.consumer.group.name": self.group,
            "messaging.message.id": ctx.message_id,
            "messaging.message.body.size": len(getattr(ctx._record, "value", None) or b""),
            "faust_actors.actor": self.actor,
        }
        key = _text(ctx._raw_key)
        if key is not None:
            attributes["messaging.kafka.message.key"] = key
        if ctx.timer is not None:
            attributes["faust_actors.timer"] = ctx.timer
        parent = propagate.extract(ctx.headers, context=contexts.Context(), getter=_from_headers)
        with self._within(parent, f"process {ctx.topic}", SpanKind.CONSUMER, attributes) as span:
            yield span

    @contextmanager
    def _within(
        self, parent: contexts.Context, name: str, kind: SpanKind, attributes: Mapping[str, str | int]
    ) -> Iterator[Span]:
        token = contexts.attach(parent)
        try:
            with self.tracer.start_as_current_span(
                name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
            ) as span:
                yield span
        finally:
            contexts.detach(token)

    async def effect(self, record: TracedCall, attempt: Awaitable[Outcome]) -> Outcome:
        """Make an attempt of an effect in a span of the trace that it was called in."""
        attributes: dict[str, str | int] = {
            "faust_actors.actor": self.actor,
            "faust_actors.attempt": record.attempts + 1,
        }
        parent = propagate.extract(record.trace or {}, context=contexts.Context())
        with self._within(parent, f"effect {record.name}", SpanKind.INTERNAL, attributes) as span:
            outcome = await (attempt if self.inner is None else self.inner.effect(record, attempt))
            if outcome.error is not None:
                if outcome.cause is not None:
                    _record(span, outcome.cause)
                span.set_status(Status(StatusCode.ERROR, outcome.error))
            return outcome


@contextmanager
def _told(span: Span) -> Iterator[None]:
    """Note in a span how its handler ended. A refusal is an answer, not an error."""
    try:
        yield
    except Rejected as error:
        span.set_attribute("faust_actors.rejected", text_of(error))
        raise
    except (asyncio.CancelledError, *EXITS):
        raise
    except BaseException as error:
        span.set_attribute("error.type", type(error).__qualname__)
        _record(span, error)
        span.set_status(Status(StatusCode.ERROR, error_text(error)))
        raise


def _record(span: Span, error: BaseException) -> None:
    """Note an error as `Span.record_exception` does, which fails where the error's text can't be made."""
    stack = traceback_text(error)
    attributes = {"type": type(error).__qualname__, "message": text_of(error), "stacktrace": stack, "escaped": "False"}
    span.add_event("exception", {f"exception.{name}": value for name, value in attributes.items()})


def _carried() -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
