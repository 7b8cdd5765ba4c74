"""The `Context` of a message: what its handler sees of it, and what it can do beside using stores.

The context variable says which message the running code belongs to. A task that a handler starts inherits it. A context
whose message was handled has no state any more: what such a task wrote would belong to no commit, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, SupportsIndex, TypeVar, TypeVarTuple, Unpack, overload

import msgspec
from mypy_extensions import mypyc_attr

from actors._core.outside import caused
from actors._core.values.ids import message_id
from actors.errors import RecordError, StoreOutsideHandlerError, UsageError
from actors.ports import Headers, InputRecord, Output
from actors.runtime.message.failures import undecodable
from actors.runtime.message.outputs import (
    NO_HEADERS,
    RECORD_OVERHEAD_BYTES,
    TYPE_HEADER,
    OwnHeaders,
    Recipient,
    check_placement,
    checked_headers,
    new_tuple,
    too_large,
    typed_headers,
)
from actors.runtime.message.task_state import TaskState
from actors.runtime.message.tools import (
    Answering,
    AnswerLater,
    EffectCall,
    Message,
    MessageLog,
    PendingEffect,
    Scheduling,
    When,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
DEFAULT_ASK_TIMEOUT = timedelta(seconds=30)


@mypyc_attr(allow_interpreted_subclasses=True)
class Context:
    """One message being handled.

    Attributes:
        key: the message's key, decoded; None for a message without one, which only actors without state by key get.
        topic, partition, offset: where it came from.
        timestamp_ms: its timestamp, Unix milliseconds; -1 if it has none.
        headers: its headers, (name, bytes) in order.
        expired_in: the store, while its `on_expire` is called for a key; unset for messages.

    Examples:
        >>> from actors import App, Context
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders, labels = (app.topic(name, key_type=str, value_type=str) for name in ("orders", "labels"))
        >>> @app.actor(orders)
        ... async def label(ctx: Context, order: str) -> None:
        ...     ctx.send(labels, key=ctx.key, value=f"{order} from {ctx.topic}", headers={"source": b"shop"})
        >>> with ActorTestDriver(app) as driver:
        ...     driver.send(orders, key="ada", value="hat")
        ...     [(sent.key, sent.value) for sent in driver.outputs(labels)]
        [('ada', 'hat from orders')]
    """

    __slots__ = (
        "_asked",
        "_counts",
        "_is_answer_forgotten",
        "_is_answered_later",
        "_raw_key",
        "_record",
        "_source",
        "_state",
        "_tag",
        "_unanswered",
        "expired_in",
        "key",
    )

    def __init__(self, state: TaskState, record: InputRecord, key: Any, raw_key: bytes) -> None:
        self._state: TaskState | None = state
        self._source = state.source
        self._tag = state.message_tag
        self._record = record
        self._raw_key = raw_key
        self.key = key

    expired_in: Any
    _counts: dict[str, int]
    _unanswered: dict[str, list[str]]
    _asked: Any
    _is_answer_forgotten: bool
    _is_answered_later: bool

    @property
    def topic(self) -> str:
        """The input topic."""
        return self._source.topic

    @property
    def partition(self) -> int:
        """The input partition."""
        return self._source.partition

    @property
    def offset(self) -> int:
        """The message's offset."""
        return self._record.offset

    @property
    def timestamp_ms(self) -> int:
        """The message's timestamp in Unix milliseconds; -1 if it has none."""
        return self._record.timestamp

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The message's headers in order."""
        return self._record.headers

    @overload
    def header(self, name: str) -> str | None: ...
    @overload
    def header(self, name: str, type_: type[T], default: T) -> T: ...
    @overload
    def header(self, name: str, type_: type[T], default: None = None) -> T | None: ...
    def header(self, name: str, type_: Any = str, default: Any = None) -> Any:
        """Return a header's value as a type: bytes, or what its text says; the last one's if several have the name.

        Args:
            name: of the header.
            type_: bytes, str, int, float, bool, Decimal, UUID, a date or time as ISO 8601 has it, or an enum.
            default: what is returned where the message has no such header, or one without a value.

        Raises:
            RecordError: the value is none of the type: `on_error` says what becomes of the message.
        """
        value = next((value for own, value in reversed(self.headers) if own == name and value is not None), None)
        if value is None or type_ is bytes:
            return default if value is None else value
        try:
            text = value.decode()
            return text if type_ is str else msgspec.convert(text, type_, strict=False)
        except ValueError as error:
            shown = ValueError(f"header {name} is no {getattr(type_, '__name__', type_)}: {error}: {value!r:.80}")
            raise caused(self.undecodable(shown), error) from error

    @property
    def message_id(self) -> str:
        """The message's id: the same however often the message is handled, and by whichever worker."""
        record, source = self._record, self._source
        own: str | None = getattr(record, "id", None)
        return own or message_id(source.topic, source.partition, record.offset, getattr(record, "tag", self._tag))

    @property
    def timer(self) -> str | None:
        """The name of the timer that sent the message, None if none did."""
        name: str | None = getattr(self._record, "timer", None)
        return name

    @property
    def log(self) -> MessageLog:
        """A logger whose lines have the actor, the input, the offset and the key of the message."""
        return MessageLog(self, "" if self._state is None else self._state.actor)

    @property
    def stream_ms(self) -> int:
        """Stream time in Unix milliseconds: the largest timestamp of the partition's messages so far, this one's too.

        Raises:
            UsageError: the actor has no window store.
        """
        state = self._working("stream_ms")
        if not state.has_windows:
            raise UsageError("ctx.stream_ms: only actors with a window store keep stream time")
        return state.windows.stream_ms

    @property
    def late(self) -> bool:
        """Return whether the message is too late for all windows of its actor's window stores."""
        state = self._working("late")
        return state.has_windows and state.windows.is_late(self)

    @property
    def now_ms(self) -> int:
        """The time in Unix milliseconds by the task's clock, which never goes back: not below what was committed."""
        state = self._working("now_ms")
        return state.tools.now_ms(state.scope.now_ms)

    def next_id(self, series: object = "") -> str:
        """Return an id for the n-th call of a series. Give each branch that runs side by side a series of its own."""
        self._counts = counts = getattr(self, "_counts", {})
        name = str(series)
        number = counts[name] = counts.get(name, 0) + 1
        return f"{self.message_id}-{name}-{number}" if name else f"{self.message_id}-{number}"

    def undecodable(self, error: Exception) -> RecordError:
        """Return the error that says that the message isn't what its actor takes."""
        return undecodable(self._source, self._record, error)

    def send(
        self,
        topic: Any,
        *,
        key: Any = None,
        value: Any = None,
        partition: SupportsIndex | None = None,
        timestamp_ms: SupportsIndex | None = None,
        headers: Headers | Mapping[str, bytes] = (),
    ) -> None:
        """Send a record as a part of this message's commit: it is there if, and only if, the message's writes are.

        Args:
            topic: a topic of `app.topic(...)`, or its name, with which key and value are encoded by their own type.
            key: encoded as the topic says. The record goes where the topic's partitioner puts it, murmur2 by default.
            value: None sends a tombstone.
            partition: overrides the key's partition.
            timestamp_ms: Unix milliseconds; the message's own when left out, or the commit's if the message has none.
            headers: (name, bytes) pairs, or a mapping. Names that begin with `fa-` are reserved.

        Raises:
            RecordTooLargeError: the record is larger than the topic's `max.message.bytes` allows.
            UsageError: the topic doesn't have the partition, or needs a key; headers or timestamp are of another type.
            UnknownTopicError: the broker doesn't have the topic.
            StoreOutsideHandlerError: the message was handled already.
        """
        state = self._state
        if state is None:
            raise StoreOutsideHandlerError("ctx.send() after the message was handled: send before the handler returns")
        target = state.resolve_output(topic)
        raw_key = None if key is None else target.encode_key(key)
        raw_value = None if value is None else target.encode_value(value)
        size = (len(raw_key) if raw_key else 0) + (len(raw_value) if raw_value else 0)
        pairs = NO_HEADERS
        if target.type_headers is not None and not isinstance(headers, OwnHeaders):
            headers = typed_headers(headers, self._record.headers, target.type_headers(value))
        if headers:
            pairs = checked_headers(headers, self._record.headers)
            size += sum(len(name) + len(data or b"") for name, data in pairs)
        if size + RECORD_OVERHEAD_BYTES > target.max_record_bytes:
            raise too_large(target.name, raw_key, size, target.max_record_bytes)
        if partition is not None or timestamp_ms is not None or raw_key is None:
            check_placement(target, raw_key, partition, timestamp_ms)
        if timestamp_ms is None:
            came_ms = self._record.timestamp
            timestamp_ms = came_ms if came_ms >= 0 else None
        place = target.partitioner if partition is None else partition
        state.outputs.append(new_tuple(Output, (target.name, place, raw_key, raw_value, pairs, timestamp_ms)))
        state.output_bytes += size + 64

    def tell(
        self,
        actor: Any,
        key: Any,
        message: Any,
        *,
        timestamp_ms: SupportsIndex | None = None,
        headers: Headers | Mapping[str, bytes] = (),
    ) -> None:
        """Send `message` to the actor of `key`, as a part of this message's commit.

        Args:
            actor: an actor's class, its function, or its name.
            key: which one of them; encoded as the actor's input says.
            message: of a type that the actor takes.
            timestamp_ms: as for `send`.
            headers: as for `send`.

        Raises:
            UsageError: the app has no such actor, or it doesn't take such messages; else as `send`.
        """
        state = self._state
        if state is None:
            raise StoreOutsideHandlerError("ctx.tell() after the message was handled: tell before the handler returns")
        recipient = Recipient(actor)
        target = state.resolve_output(recipient)
        if key is None:
            raise UsageError(f"ctx.tell({target.name}): a message to an actor needs a key")
        if target.type_headers is not None:
            headers = typed_headers(headers, self._record.headers, target.type_headers(message), TYPE_HEADER)
        self.send(recipient, key=key, value=message, timestamp_ms=timestamp_ms, headers=headers)

    @overload
    def schedule(self, method: Callable[[*Ts], Any], /, *args: *Ts, **when: Unpack[When]) -> str: ...
    @overload
    def schedule(self, function: Callable[[Context, *Ts], Any], /, *args: *Ts, **when: Unpack[When]) -> str: ...
    @overload
    def schedule(self, message: Message, **when: Unpack[When]) -> str: ...
    def schedule(  # type: ignore[misc]  # mypy takes `*args: *Ts` for more than `*args: Any`
        self,
        message: Any,
        *args: Any,
        after: timedelta | None = None,
        at: datetime | None = None,
        every: timedelta | None = None,
        name: str | None = None,
        stream_time: bool = False,
    ) -> str:
        """Call a method for this key later: once, or `every` so often. It is durable, and a part of this commit.

        A timer fires once for each time that it is due, in the commit of what its call leads to, however often
        workers die or partitions move. A periodic one whose times passed while no worker ran fires once for all of
        them. In the handler `ctx.timer` is its name.

        Args:
            message: a method of this object that is marked `@timer`; of a function actor, a function marked with its
                `timer`; or a message of a type that this actor takes.
            args: those of the method, which become JSON.
            after: how long from now; with `stream_time`, from the message's own time.
            at: when, a time with a time zone. One that has passed is due at once.
            every: how often, `after` or `at` saying when first; `every` from now when both are left out.
            name: a timer of this key that has the same name is replaced; a name is made up when left out.
            stream_time: measure by the timestamps of the partition's messages in place of the clock: it is due when a
                message with that timestamp, or a later one, was handled.

        Returns:
            The name.

        Raises:
            UsageError: the actor has no `@timer` and wasn't declared with `timers=True`, the arguments contradict each
                other, or the actor has no such method, or doesn't take such messages.
        """
        timers = self._timers("schedule")
        return timers.schedule(self, message, args, after=after, at=at, every=every, name=name, stream_time=stream_time)

    def cancel(self, name: str) -> bool:
        """Remove this key's timer of that name; tell whether there was one.

        Raises:
            UsageError: the actor wasn't declared with `timers=True`.
        """
        return self._timers("cancel").cancel(self, name)

    def scheduled(self, name: str) -> datetime | None:
        """Return when this key's timer of that name is due next, in UTC; None if there is none.

        Raises:
            UsageError: the actor wasn't declared with `timers=True`.
        """
        return self._timers("scheduled").due(self, name)

    @overload
    def effect(
        self,
        function: Callable[[EffectCall, *Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        then: Callable[[R], Any] | Callable[[], Any] | Callable[[Context, R], Any],
    ) -> str: ...
    @overload
    def effect(
        self,
        function: Callable[[EffectCall, *Ts], R],
        /,
        *args: *Ts,
        then: Callable[[R], Any] | Callable[[], Any] | Callable[[Context, R], Any],
    ) -> str: ...
    @overload
    def effect(
        self, function: Callable[Concatenate[EffectCall, P], Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...
    def effect(  # type: ignore[misc]  # as of `schedule`
        self, function: Any, /, *args: Any, then: Any = None, **kwargs: Any
    ) -> str:
        """Call `function(call, *args, **kwargs)` after this message's commit, again until it succeeds.

        The call is recorded with the commit, so it happens if, and only if, the message's writes do; a worker that dies
        meanwhile leaves it to the next owner, so it may happen more than once: `call.idempotency_key` is the same each
        time. The effects of a key are called one after the other, in order. What the function returns goes to `then`;
        without that it is sent to this key as a message, if it isn't None.

        Args:
            function: one of `@app.effect()` that the actor lists in `effects=`.
            args: anything that becomes JSON.
            then: the method of this object, or the function marked with its actor's `timer`, that is called with what
                the function returned, in the commit that ends the call.
            kwargs: as `args`.

        Returns:
            The call's idempotency key.

        Raises:
            UsageError: the actor doesn't list the function, or an argument doesn't become JSON.
        """
        effects = self._working("effect").tools.effects
        if effects is None:
            raise UsageError("ctx.effect(): list the function in @app.actor(..., effects=[...])")
        return effects.call(self, function, args, kwargs, then=then)

    def effects(self, *, limit: int = 100) -> list[PendingEffect]:
        """Return the calls of this key's effects that aren't done, in order; also in a query.

        Args:
            limit: how many at most.

        Raises:
            UsageError: the actor has no effects.
        """
        effects = self._working("effects").tools.effects
        if effects is None:
            raise UsageError("ctx.effects(): the actor was declared without effects=[...]")
        return effects.pending(self, limit)

    def cancel_effect(self, id: str) -> bool:
        """Remove a call of this key that isn't done, with this message's commit; return whether there was one.

        A call that runs goes on to its end. Its result is dropped, and no method is called with it.

        Args:
            id: the call's idempotency key, as `effect` and `effects` return it.

        Raises:
            UsageError: the actor has no effects.
        """
        effects = self._working("cancel_effect").tools.effects
        if effects is None:
            raise UsageError("ctx.cancel_effect(): the actor was declared without effects=[...]")
        return effects.cancel(self, id)

    async def ask(self, actor: Any, key: Any, message: Any, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> Any:
        """Send `message` to the actor of `key`, outside of this message's commit, and wait for its handler's result.

        The question is on its way at once, and what it leads to is committed by the other actor before the answer
        comes, whatever becomes of this message; when this message is handled again, the same question isn't
        handled twice, and its first answer is given again. A question that is equal to one of this message that had
        no answer in time repeats it. What this handler wrote before and after is committed together when it ends.

        Args:
            actor: an actor's class, its function, or its name; its handler's return annotation is the answer's type.
            key: which one of them.
            message: of a type that the actor takes.
            timeout: how long to wait.

        Raises:
            AskTimeoutError: no answer came in time; whether the other actor handles the message is unknown.
            AskRejectedError: its handler raised `Rejected`.
            AskFailedError: its handler failed, and the message was skipped or parked.
            AskCycleError: that key waits for an answer itself, and this message is a part of it.
            UsageError: the actor answers nothing, or this one was declared without `concurrency=`.
        """
        asks = self._working("ask").tools.asks
        if asks is None:
            raise UsageError("ctx.ask(): no actor of this app answers: annotate what a handler returns")
        return await asks.ask(self, actor, key, message, timeout)

    def forget_answer(self) -> None:
        """Keep no answer to this question, for what only reads: if it is asked again, it is handled again.

        Call it before `answer_later`; in an actor that gives no answers it raises `UsageError`.
        """
        self._answers("forget_answer").forget(self)

    def answer_later(self) -> AnswerLater | None:
        """Return a handle to answer this question in a later message or timer of this key: keep it in the state.

        What the handler returns then goes nowhere. The same question, asked again meanwhile, isn't handled again.

        Returns None if the message is no question: nobody waits for an answer.

        Raises:
            UsageError: the actor gives no answers to such messages.
        """
        return self._answers("answer_later").later(self)

    def answer(self, later: AnswerLater | None, value: Any) -> bool:
        """Answer a question that an earlier message of this key put off, as a part of this message's commit.

        Args:
            later: what `answer_later` gave; for None nothing happens.
            value: of the type that the asked handler returns; a `Rejected` becomes `AskRejectedError` for who asked.

        Returns:
            Whether it was open: a second answer changes nothing.

        Raises:
            UsageError: it is another key's question, or of a type of message that the actor no longer answers.
        """
        return later is not None and self._answers("answer").answer_now(self, later, value)

    def _is_own(self, actor: Any, key: Any) -> bool:
        """Return whether the message is handled by that actor, at that key."""
        state = self._working("schedule")
        target = state.resolve_output(Recipient(actor))
        return target.actor == state.actor and target.encode_key(key) == self._raw_key

    def _answers(self, call: str) -> Answering:
        answers = self._working(call).tools.answers
        if answers is None:
            raise UsageError(f"ctx.{call}(): the actor answers nothing: annotate what a handler returns")
        return answers

    def _timers(self, call: str) -> Scheduling:
        timers = self._working(call).tools.timers
        if timers is None:
            raise UsageError(f"ctx.{call}(): declare the actor with @app.actor(..., timers=True)")
        return timers

    def _working(self, call: str) -> TaskState:
        if self._state is None:
            raise StoreOutsideHandlerError(f"ctx.{call} after the message was handled: use it before that")
        return self._state


current_message: ContextVar[Context] = ContextVar("actors_message")
enter_message = current_message.set


def is_handling() -> bool:
    """Return whether the caller runs on behalf of a message that is being handled."""
    ctx = current_message.get(None)
    return ctx is not None and ctx._state is not None
