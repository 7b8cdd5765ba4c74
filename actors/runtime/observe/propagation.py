"""Headers that are passed on from each message to what it leads to: `App(propagate_headers=…)`.

Imported only where an app asks for it: the handler is wrapped when the worker starts, and without that nothing here
runs. Outputs, tells, answers, timers and questions get the headers; a call of an effect carries them in the outbox.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from actors.ports import ActorReply, ActorRequest, Requests
from actors.runtime.handlers.effect import Outcome
from actors.runtime.message.context import Context, current_message
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES
from actors.runtime.message.task_state import TaskState
from actors.runtime.spec import ActorSpec, Handler, TracedCall, Tracing

Pairs = list[tuple[str, bytes]]


class Carrier:
    """Adds headers to what an actor's messages lead to.

    Attributes:
        inner: one that adds others, and was there before.
    """

    inner: Tracing | None

    def headers(self) -> Pairs:
        """Return the headers that what runs now passes on."""
        raise NotImplementedError

    def wrapped(self, handler: Handler) -> Handler:
        """Return a handler whose outputs have the headers."""
        raise NotImplementedError

    def around(self, spec: ActorSpec) -> ActorSpec:
        """Return the actor with the headers on all that its messages lead to."""
        encode, self.inner = spec.encode_message, spec.tracing

        def encode_message(message: Any) -> tuple[bytes, Pairs]:
            if encode is None:
                raise AssertionError(f"actor {spec.name} takes no messages but records")
            value, headers = encode(message)
            return value, _with(headers, self.headers())

        return replace(
            spec.with_handlers(self.wrapped),
            encode_message=None if encode is None else encode_message,
            tracing=self,
        )

    def asks(self, asks: Requests) -> Requests:
        """Return a client that sends questions with the headers."""
        return _Asks(asks if self.inner is None else self.inner.asks(asks), self.headers)

    def carried(self) -> dict[str, str]:
        """Return the headers of what runs now, bytes as Latin-1, to be kept."""
        inner = {} if self.inner is None else self.inner.carried()
        return inner | {name: value.decode("latin-1") for name, value in self.headers()}

    def effect(self, record: TracedCall, attempt: Awaitable[Outcome]) -> Awaitable[Outcome]:
        """Return an attempt of an effect that passes on what its call carries."""
        return attempt if self.inner is None else self.inner.effect(record, attempt)

    def passing(self) -> Any:
        """Return the one that passes on the headers that the app names; None if there is none."""
        return None if self.inner is None else self.inner.passing()


@dataclass(slots=True)
class Propagation(Carrier):
    """Passes on those headers of a message that have one of these names."""

    names: frozenset[str]
    inner: Tracing | None = None

    def headers(self) -> Pairs:
        """Return those of the message that is handled, or of the call of an effect."""
        carried = _of_effect.get()
        if carried is not None:
            return carried
        ctx = current_message.get(None)
        return [] if ctx is None or ctx._state is None else self._of(ctx)

    def wrapped(self, handler: Handler) -> Handler:
        """Return a handler whose outputs have the headers."""

        async def handle(ctx: Context, value: Any) -> Any:
            state = ctx._state
            sent = 0 if state is None else len(state.outputs)
            result = await handler(ctx, value)
            if state is not None:
                carry(state, sent, self._of(ctx))
            return result

        handle.__name__ = handle.__qualname__ = getattr(handler, "__name__", "handle")
        return handle

    async def effect(self, record: TracedCall, attempt: Awaitable[Outcome]) -> Outcome:
        """Make an attempt of an effect, whose result passes on the headers of its call."""
        texts = record.trace or {}
        pairs = [(name, text.encode("latin-1")) for name, text in texts.items() if name in self.names]
        token = _of_effect.set(pairs)
        try:
            return await (attempt if self.inner is None else self.inner.effect(record, attempt))
        finally:
            _of_effect.reset(token)

    def passing(self) -> Propagation:
        """Return this one."""
        return self

    def _of(self, ctx: Context) -> Pairs:
        return [(name, value) for name, value in ctx.headers if name in self.names and value is not None]


_of_effect: ContextVar[Pairs | None] = ContextVar("actors_effect_headers", default=None)


@dataclass(frozen=True, slots=True)
class _Asks:
    """Questions that carry headers of the message that asks."""

    asks: Requests
    headers: Callable[[], Pairs]

    async def ask(self, question: ActorRequest, timeout_s: float) -> ActorReply:
        """Ask with the headers."""
        return await self.asks.ask(replace(question, headers=_with(question.headers, self.headers())), timeout_s)


def _with(headers: Sequence[tuple[str, bytes]], more: Pairs) -> Pairs:
    names = {name for name, _ in headers}
    return [*headers, *(pair for pair in more if pair[0] not in names)]


def carry(state: TaskState, sent: int, headers: Pairs) -> None:
    """Add headers to what a message sent, unless a record has some of its own, or would be too large with them."""
    if len(state.outputs) == sent or not headers:
        return
    for place in range(sent, len(state.outputs)):
        output = state.outputs[place]
        pairs = _with(output.headers, headers)
        size = sum(len(name) + len(value or b"") for name, value in pairs)
        before = sum(len(name) + len(value or b"") for name, value in output.headers)
        rest = len(output.key or b"") + len(output.value or b"")
        limit = state.resolve_output(output.topic).max_record_bytes
        if rest + size + RECORD_OVERHEAD_BYTES <= limit:
            state.outputs[place] = output._replace(headers=pairs)
            state.output_bytes += size - before
