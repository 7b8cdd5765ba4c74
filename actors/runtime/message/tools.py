"""The tools of a message beside stores: timers, effects, requests, replies, a logger.

The protocols say what a message's context needs of them; their rooms implement them. A parameter `ctx` is the message's
`Context`, which is declared above this module.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, TypedDict, Unpack
from uuid import UUID

import msgspec

from actors.errors import show_bytes
from actors.ports import Clock, Headers, Requests
from actors.runtime.clock import Timestamps
from actors.runtime.meters import LateMeter


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    """A `faust.Record`, or a class of a codec of the user's that has this method."""

    def to_representation(self) -> Any:
        """Return what is encoded."""


_Plain: TypeAlias = str | bytes | float | date | time | timedelta | Decimal | UUID | Enum | None
_Many: TypeAlias = Mapping[Any, Any] | Sequence[Any] | AnySet[Any]
Message: TypeAlias = msgspec.Struct | _Dataclass | _Model | _Plain | _Many
"""A message, as type checkers tell it from a function."""


class When(TypedDict, total=False):
    """The options of `Context.schedule`."""

    after: timedelta | None
    at: datetime | None
    every: timedelta | None
    name: str | None
    stream_time: bool


class AnswerLater(msgspec.Struct, frozen=True):
    """A question whose answer is still owed: opaque, and JSON, so that it can be kept in the state of its key.

    Attributes:
        question: its id.
        reply_to: where the answer goes unless it was asked again.
        key: the key that was asked.
        kind: the type of message that it was.
        is_kept: whether the answer is kept, for when the question is asked again after it.
    """

    question: bytes
    reply_to: bytes
    key: bytes
    kind: str
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class EffectCall:
    """Which call of an effect a function is called for: its first argument.

    A call may be made again although it succeeded, when a worker dies before that is committed, and a worker that has
    lost its partition may still be in the middle of a call when the new owner begins it.

    Attributes:
        idempotency_key: the same each time that this call is made. Hand it on to whom the function calls.
        fencing_token: the epoch of the partition's owner. A later owner's is higher, so a service that keeps the
            highest that it saw can refuse a worker that lost its partition.
        attempt: counted from 1. An attempt that a worker's death cut short isn't counted.
        actor: the actor's name.
        key: the key of the message whose handler recorded the call, as bytes.
        decoded_key: the same as the handler saw it.
        headers: those that the call carries: what the app propagates, and the context of a trace.
    """

    idempotency_key: str
    fencing_token: int
    attempt: int
    actor: str
    key: bytes
    decoded_key: Any
    headers: Headers = ()


class PendingEffect(msgspec.Struct, frozen=True):
    """A call that isn't done yet, as `ctx.effects()` lists it.

    Attributes:
        effect: the effect's name.
        id: the call's idempotency key, as `ctx.effect` returned it.
        attempts: how many failed.
        next_ms: the next one isn't made before, Unix milliseconds; 0 for as soon as those before it are done.
        error: why the last one failed, None if none did.
        is_parked: whether it waits for an operator.
    """

    effect: str
    id: str
    attempts: int
    next_ms: int
    error: str | None
    is_parked: bool


class Scheduling(Protocol):
    """The timers of an actor."""

    def schedule(self, ctx: Any, message: Any, args: tuple[Any, ...], **when: Unpack[When]) -> str:
        """Schedule a timer as `Context.schedule` does."""

    def cancel(self, ctx: Any, name: str) -> bool:
        """Cancel a timer as `Context.cancel` does."""

    def due(self, ctx: Any, name: str) -> datetime | None:
        """Return when a timer is due as `Context.scheduled` does."""


class Listing(Protocol):
    """The effects of an actor that aren't done."""

    def pending(self, ctx: Any, limit: int) -> list[PendingEffect]:
        """Return the calls of the key as `Context.effects` does."""


class Calling(Listing, Protocol):
    """The effects of an actor."""

    def call(
        self, ctx: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, then: Any = None
    ) -> str:
        """Call an effect as `Context.effect` does."""

    def cancel(self, ctx: Any, id: str) -> bool:
        """Remove a call as `Context.cancel_effect` does."""

    def call_in(self, running: Any) -> str | None:
        """Return the id of the call that an asyncio task makes; None if it makes none."""


class Asking(Protocol):
    """The requests of an actor."""

    async def ask(
        self, ctx: Any, actor: Any, key: Any, message: Any, timeout: timedelta, *, id: str | None = None
    ) -> Any:
        """Ask as `Context.ask` does. With an `id` of its own the request takes no number of the message's."""

    @property
    def asks(self) -> Requests:
        """The client for the requests; it outlives the task."""

    def wall_ms(self) -> int:
        """Return the time that deadlines are compared with, Unix milliseconds."""


class Answering(Protocol):
    """The replies of an actor."""

    def forget(self, ctx: Any) -> None:
        """Forget an answer as `Context.forget_answer` does."""

    def later(self, ctx: Any) -> AnswerLater | None:
        """Return a later answer as `Context.answer_later` does."""

    def answer_now(self, ctx: Any, later: AnswerLater, value: Any) -> bool:
        """Answer as `Context.answer` does."""


class Publishing(Protocol):
    """The read-model topic of a store."""

    def check(self, raw_key: bytes, raw_value: bytes) -> int:
        """Return about how many bytes the record of a write takes; raise if the topic doesn't take it."""


class Ordering(Protocol):
    """Records that wait for their turn: `actors.runtime.inputs.time_order`."""

    def keep(self, ctx: Any) -> bool:
        """Keep a record until its turn; return whether it comes in time."""

    def count_late(self, ctx: Any, *, is_warned: bool) -> None:
        """Count a record that comes too late."""

    def late_record(self, ctx: Any) -> Exception:
        """Return the error of a record that comes too late."""


@dataclass(slots=True)
class Tools:
    """An actor's tools beside stores, as far as they are declared; `clock`, `timestamps` are there in every worker.

    `published` is by store. `latest_ms` is the latest time that a handler was told, which the next commit keeps. `late`
    has by store the records that came too late.
    """

    clock: Clock | None = None
    timers: Scheduling | None = None
    effects: Calling | None = None
    asks: Asking | None = None
    answers: Answering | None = None
    published: Mapping[str, Publishing] = field(default_factory=dict)
    latest_ms: int = 0
    late: dict[str, LateMeter] = field(default_factory=dict)
    timestamps: Timestamps | None = None
    order: Ordering | None = None

    def count_late_for(self, store: str, ctx: Any, stream_ms: int, *, is_warned: bool = False) -> None:
        """Count a message that came too late for a store."""
        record, meter = ctx._record, self.late.setdefault(store, LateMeter())
        meter.count += 1
        meter.source, meter.offset, meter.key, meter.at_ms = ctx._source, record.offset, record.key, record.timestamp
        meter.stream_ms, meter.is_warned = stream_ms, is_warned
        meter.handled_at_ms = 0 if self.clock is None else self.clock.wall_ms()

    def now_ms(self, least_ms: int) -> int:
        """Return the partition's time, which isn't below `least_ms` and never goes back."""
        wall_ms = 0 if self.clock is None else self.clock.wall_ms()
        self.latest_ms = max(self.latest_ms, least_ms, wall_ms)
        return self.latest_ms


PLACE = "place"
"""The attribute of a log record that has the beginning of its text, for formatters that show the place by itself."""


class MessageLog(logging.LoggerAdapter[logging.Logger]):
    """Logs for a message, to the logger `actors.handlers.{actor}`.

    Each log record has the attributes `actor`, `topic`, `partition`, `offset` and `key`, and its text begins with them.
    The actor is "" for a message that was handled already.
    """

    def __init__(self, ctx: Any, actor: str) -> None:
        key = None if ctx._record.key is None else ctx._raw_key
        text = None if key is None else key.decode("utf-8", errors="backslashreplace")
        place = {"actor": actor, "topic": ctx.topic, "partition": ctx.partition, "offset": ctx.offset, "key": text}
        super().__init__(logging.getLogger(f"actors.handlers.{actor}".rstrip(".")), place)
        self._place = (
            f"actor {actor or '(handled)'}, {ctx.topic}[{ctx.partition}] offset {ctx.offset} key {show_bytes(key)}: "
        )

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a line as `logging.Logger.log` does."""
        if not self.isEnabledFor(level):
            return
        options["extra"] = {**(options.get("extra") or {}), **(self.extra or {}), PLACE: self._place}
        options["stacklevel"] = options.get("stacklevel", 1) + 1
        # Without arguments the text isn't formatted.
        place = self._place.replace("%", "%%") if args else self._place
        self.logger.log(level, f"{place}{msg}", *args, **options)
