"""The answering side of requests: what an actor answers with, what it has answered, what it still owes."""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, SimpleNamespace
from typing import Any, Protocol

import msgspec

from actors._core.logs import escaping
from actors.errors import (
    ConfigurationError,
    RecordError,
    RecordTooLargeError,
    Rejected,
    UndecodableRecordError,
    UsageError,
    show_bytes,
)
from actors.ports import ActorReply, InputRecord, Output, TopicPartition
from actors.runtime.message.context import Context
from actors.runtime.message.failures import newer_entry
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.outputs import ORIGIN_HEADER, RECORD_OVERHEAD_BYTES
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from actors.runtime.message.tools import AnswerLater
from actors.runtime.requests.requests import (
    ASK,
    CONTENT_BYTES,
    CONTENT_MARK,
    DEADLINE,
    FAILED,
    NOBODY,
    OK,
    REJECTED,
    REPLY_TO,
    REUSED,
    STATUS,
    Refusal,
)

logger = escaping(logging.getLogger(__name__))

_STATUS_OF = {b"o": OK, b"n": OK, b"r": REJECTED, b"f": FAILED}
_NONE, _FAILED, _REJECTED, _PENDING = b"n", b"f", b"r", b"p"
_KNOWN = (*_STATUS_OF, _PENDING)
_CONTENT = b"c"
_MARK, _NOBODY = CONTENT_MARK.encode(), NOBODY.encode()
_MAX_DIGITS = 18
MAX_HEADER_BYTES = 1_000
"""A question's id, and where its answer goes: both come back in the answer and are kept with it."""

_REUSED = "the id of the question was used before, for a question with another content: use another id"

Handler = Callable[[Context, Any], Awaitable[Any]]


class ReplyCodec(Protocol):
    """How answers become bytes and back; neither takes None."""

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """Return the function that makes bytes."""

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """Return the function that reads them."""


_MISSING = object()
_NOTHING: Any = SimpleNamespace(encode=lambda _: b"", decode=lambda _: None)
"""The codec of the answer of a handler that returns nothing."""


class ReplyTypes:
    """The types of an actor's answers by the type of the message, from its handlers' return annotations.

    The answer of a handler that returns nothing is None: that the message was handled.
    """

    def __init__(
        self, actor: str, handlers: Mapping[Any, Callable[..., Any]], resolve: Callable[[Any], ReplyCodec]
    ) -> None:
        self._actor = actor
        self._handlers = handlers
        self._resolve = resolve
        self._codecs: dict[Any, ReplyCodec | None] = {}

    @classmethod
    def of(
        cls, actor: str, declared: Any, resolve: Callable[[Any], ReplyCodec], *, is_asked: bool = False
    ) -> ReplyTypes | None:
        """Return the types of a function or class, None if no handler returns a value, unless `is_asked`.

        `resolve` gives a type's codec; it is called when the first message of the type comes.
        """
        methods: Mapping[Any, Any] = getattr(declared, "receivers", {object: declared})
        handlers = {type_: method for type_, method in methods.items() if _annotation(method) is not _MISSING}
        is_asked = is_asked or any(_annotation(method) is not None for method in handlers.values())
        return cls(actor, handlers, resolve) if is_asked else None

    def check(self) -> None:
        """Look whether all types can be had.

        Raises:
            ConfigurationError: an annotation can't be resolved.
        """
        for type_ in self._handlers:
            self._codec(type_)

    def codec_for(self, message: Any) -> ReplyCodec | None:
        """Return the codec of the answer to a message, None if there is no answer to such messages."""
        return self.codec_for_type(type(message))

    def codec_for_type(self, type_: type[Any]) -> ReplyCodec | None:
        """Return the codec of the answer to messages of a class, None if there is no answer to such messages."""
        try:
            return self._codecs[type_]
        except KeyError:
            base = next((base for base in type_.__mro__ if base in self._handlers), None)
            codec = self._codecs[type_] = None if base is None else self._codec(base)
            return codec

    def kind_of(self, message: Any) -> str | None:
        """Return the name of the type that says how a message is answered, None if there is no answer to such."""
        base = next((base for base in type(message).__mro__ if base in self._handlers), None)
        return None if base is None else _kind(base)

    def codec_of(self, kind: str) -> ReplyCodec | None:
        """Return the codec of the answer to messages of a type that `kind_of` named."""
        type_ = next((type_ for type_ in self._handlers if _kind(type_) == kind), None)
        return None if type_ is None else self._codec(type_)

    def decoder_for(self, message: Any) -> Callable[[bytes], Any] | None:
        """Return the reader of answers to a message, None if there is no answer to such messages."""
        codec = self.codec_for(message)
        return None if codec is None else codec.decode

    def _codec(self, type_: Any) -> ReplyCodec:
        handler = self._handlers[type_]
        function = inspect.unwrap(handler)
        annotated = SimpleNamespace(__annotations__={"return": _annotation(handler)})
        try:
            hints = typing.get_type_hints(annotated, globalns=getattr(function, "__globals__", {}))
        except NameError as error:
            raise ConfigurationError(
                f"actor {self._actor}: what {function.__qualname__} returns is annotated with a name that isn't to be "
                f"found ({error}): import it where the handler is defined, not only for type checks"
            ) from error
        return _NOTHING if hints["return"] is NoneType else self._resolve(hints["return"])


def _kind(type_: Any) -> str:
    return str(getattr(type_, "__qualname__", type_))


def _annotation(handler: Callable[..., Any]) -> Any:
    """Return a handler's return annotation as it stands there, None if it returns nothing."""
    annotation = getattr(inspect.unwrap(handler), "__annotations__", {}).get("return", _MISSING)
    return None if annotation in (None, NoneType, "None") else annotation


@dataclass(frozen=True, slots=True)
class _RequestHeaders:
    """The headers of a message that is a question."""

    id: bytes
    reply_to: bytes
    deadline_ms: int | None

    @property
    def key(self) -> bytes:
        """The key of its answer in the store: the id without the digest of the content."""
        return self.id[: -len(self.content) - 1] if self.content else self.id

    @property
    def content(self) -> bytes:
        """The digest of its content, empty for a question whose id depends on the content."""
        return self.id[-CONTENT_BYTES:] if self.id[-CONTENT_BYTES - 1 : -CONTENT_BYTES] == _MARK else b""

    def entry(self, answer: bytes) -> bytes:
        """Return what the store has of an answer."""
        return _CONTENT + self.content + answer if self.content else answer

    def answer_in(self, entry: bytes | None) -> tuple[bytes | None, bool]:
        """Return the answer in an entry, and whether it is of a question with another content."""
        if entry is None or not entry.startswith(_CONTENT):
            return entry, False
        return entry[1 + CONTENT_BYTES :], entry[1 : 1 + CONTENT_BYTES] != self.content

    @classmethod
    def of(cls, record: InputRecord) -> _RequestHeaders | None:
        """Return the headers, None for a message that isn't a question, or not one that can be answered."""
        if not record.headers:
            return None
        headers = dict(record.headers)
        id, reply_to = headers.get(ASK), headers.get(REPLY_TO) or b""
        if not id or len(id) > MAX_HEADER_BYTES:
            return None
        deadline = headers.get(DEADLINE) or b""
        is_number = deadline.isdigit() and len(deadline) <= _MAX_DIGITS
        # An address that is too long isn't one.
        reply_to = reply_to if len(reply_to) <= MAX_HEADER_BYTES else b""
        return cls(id, reply_to, int(deadline) if is_number else None)


def answer_of(entry: bytes) -> ActorReply | None:
    """Return the answer in an entry of the store of answers, None while the question is open.

    Raises:
        NewerVersionError: a newer program wrote it.
    """
    answer = entry[1 + CONTENT_BYTES :] if entry.startswith(_CONTENT) else entry
    if answer[:1] not in _KNOWN:
        raise newer_entry("an answer", answer)
    if answer.startswith(_PENDING):
        return None
    return ActorReply(_STATUS_OF[answer[:1]], None if answer.startswith(_NONE) else answer[1:])


def _check(record: InputRecord, source: TopicPartition) -> None:
    """Refuse a question whose answer couldn't carry its id.

    Raises:
        UndecodableRecordError: it is.
    """
    size = max((len(raw or b"") for name, raw in record.headers if name == ASK), default=0)
    if size > MAX_HEADER_BYTES:
        raise UndecodableRecordError.about(
            record,
            source,
            f"it is a question that can't be answered: its id, in the header {ASK}, has {size} bytes, "
            f"more than {MAX_HEADER_BYTES}",
        )


class Replies:
    """Answers the questions that come to an actor.

    Answers are kept in `store`, and go to `reply_topic` whatever a question says otherwise.
    """

    def __init__(self, store: Store[bytes, bytes], types: ReplyTypes, reply_topic: str) -> None:
        self._store = store
        self._types = types
        self._reply_topic = reply_topic

    def around(self, handler: Handler) -> Handler:
        """Return a handler that answers questions; what it returns for other messages goes nowhere.

        It has to be around `deduplicated`: a question whose message was seen before, under another question, is
        answered with None, and one that comes again gets its own first answer.
        """

        async def handle(ctx: Context, message: Any) -> None:
            request = _RequestHeaders.of(ctx._record)
            if request is None:
                if ctx._record.headers:
                    _check(ctx._record, ctx._working("answer").source)
                await handler(ctx, message)
            else:
                await self._answer(ctx, message, request, handler)

        handle.__name__ = handle.__qualname__ = getattr(handler, "__name__", "handle")
        return handle

    @staticmethod
    def is_question(record: InputRecord) -> bool:
        """Return whether somebody waits for the answer to a message."""
        return _RequestHeaders.of(record) is not None

    def rejected(self, state: TaskState, record: InputRecord, error: BaseException) -> None:
        """Answer, if the message was a question, that the handler refused it."""
        request = _RequestHeaders.of(record)
        if request is not None:
            self._give(state, request, _REJECTED + Refusal.of(error))

    def failed(self, state: TaskState, record: InputRecord, failed: RecordError) -> None:
        """Answer, if the message was a question, that the handler failed."""
        request = _RequestHeaders.of(record)
        if request is not None:
            self._give(state, request, _FAILED + Refusal.of(failed.__cause__ or failed, failed.reason))

    async def _answer(self, ctx: Context, message: Any, request: _RequestHeaders, handler: Handler) -> None:
        state = ctx._working("answer")
        given, is_other = request.answer_in(state.overlays[self._store].get(request.key))
        if given is not None and given[:1] not in _KNOWN:
            raise newer_entry("an answer", given)
        if is_other:
            self._send(state, request, _REJECTED + msgspec.json.encode(Refusal(_REUSED, REUSED)))
            return
        # It was put aside, and is handled now because an operator wants it to be, however late it is.
        was_aside = isinstance(ctx._record, InternalRecord) or _is_dead_letter(ctx._record)
        is_again = was_aside and (given is None or given.startswith(_FAILED))
        if given is not None and not is_again:
            if was_aside:
                logger.warning(
                    "%s offset %d key %s: question %r was put aside once, but it has been handled since: it isn't "
                    "handled again, its answer is sent again",
                    ctx.topic,
                    ctx.offset,
                    show_bytes(ctx._raw_key),
                    request.id,
                )
            self._again(state, request, given)
            return
        if not is_again and self._is_late(state, request):
            logger.info("%s offset %d: question %r is too old: nobody waits", ctx.topic, ctx.offset, request.id)
            return
        ctx._asked = message
        result = await handler(ctx, message)
        if getattr(ctx, "_is_answered_later", False):
            return
        codec = self._types.codec_for(message)
        answer = _NONE if result is None or codec is None else b"o" + codec.encode(result)
        self._give(state, request, answer, is_kept=not getattr(ctx, "_is_answer_forgotten", False))

    @staticmethod
    def forget(ctx: Context) -> None:
        """Forget an answer as `Context.forget_answer` does."""
        ctx._working("forget_answer")
        ctx._is_answer_forgotten = True

    def later(self, ctx: Context) -> AnswerLater | None:
        """Return a later answer as `Context.answer_later` does."""
        state, request = ctx._working("answer_later"), _RequestHeaders.of(ctx._record)
        if request is None:
            return None
        kind = self._types.kind_of(ctx._asked)
        if kind is None:
            raise UsageError(
                f"ctx.answer_later(): the actor gives no answer to {type(ctx._asked).__name__}: annotate what its "
                "handler returns"
            )
        ctx._is_answered_later = True
        self._keep_open(state, request)
        is_kept = not getattr(ctx, "_is_answer_forgotten", False)
        return AnswerLater(request.id, request.reply_to, ctx._raw_key, kind, is_kept)

    def answer_now(self, ctx: Context, later: AnswerLater, value: Any) -> bool:
        """Answer as `Context.answer` does."""
        state = ctx._working("answer")
        if not isinstance(later, AnswerLater) or later.key != ctx._raw_key:
            raise UsageError(
                f"ctx.answer(): {later!r} isn't a question to key {show_bytes(ctx._raw_key)}: answer in a message or "
                "timer of the key that was asked, with what its ctx.answer_later() gave"
            )
        question = _RequestHeaders(later.question, later.reply_to, None)
        entry, _ = question.answer_in(state.overlays[self._store].get(question.key))
        if entry is not None and not entry.startswith(_PENDING):
            return False
        question = question if entry is None else replace(question, reply_to=entry[1:])
        self._give(state, question, self._encoded(later, value), is_kept=later.is_kept)
        return True

    def _encoded(self, later: AnswerLater, value: Any) -> bytes:
        if isinstance(value, Rejected):
            return _REJECTED + Refusal.of(value)
        codec = self._types.codec_of(later.kind)
        if codec is None:
            raise UsageError(
                f"ctx.answer(): the actor has no handler any more that answers {later.kind}: keep one as long as such "
                "questions are open, or answer with Rejected(...)"
            )
        return _NONE if value is None else b"o" + codec.encode(value)

    def _keep_open(self, state: TaskState, request: _RequestHeaders) -> None:
        """Note that a question is being dealt with, and where its answer goes; at least as long as anybody waits."""
        ttl_ms = self._store.ttl_ms
        if ttl_ms is not None and request.deadline_ms is not None:
            ttl_ms = max(ttl_ms, request.deadline_ms - state.scope.now_ms)
        self._store.write_raw(state, request.key, request.entry(_PENDING + request.reply_to), ttl_ms)

    def _again(self, state: TaskState, request: _RequestHeaders, given: bytes) -> None:
        """Handle a question that was asked before: its answer is sent again, or will go to the new address."""
        if given.startswith(_PENDING):
            self._keep_open(state, request)
        else:
            self._send(state, request, given)

    @staticmethod
    def _is_late(state: TaskState, request: _RequestHeaders) -> bool:
        asks = state.tools.asks
        now_ms = state.scope.now_ms if asks is None else asks.wall_ms()
        may_ask = state.on_wait is not None
        return not may_ask and request.deadline_ms is not None and now_ms > request.deadline_ms

    def _give(self, state: TaskState, request: _RequestHeaders, answer: bytes, *, is_kept: bool = True) -> None:
        """Keep an answer, unless it isn't to be kept, and send it."""
        limit = min(state.max_record_bytes[self._store.name], state.resolve_output(self._reply_topic).max_record_bytes)
        room = limit - 2 * len(request.id) - len(request.reply_to) - RECORD_OVERHEAD_BYTES
        if len(answer) > room:
            if not answer.startswith((_FAILED, _REJECTED)):
                text = (
                    f"the message was handled, but the answer of {len(answer)} bytes doesn't fit into "
                    f"max.message.bytes={limit} of {self._reply_topic} or of the changelog of {self._store.name}"
                )
                answer = _FAILED + Refusal.of(RecordTooLargeError(text))
            answer = answer[:1] + Refusal.fitting(answer[1:], room - 1)
        if is_kept:
            self._store.write_raw(state, request.key, request.entry(answer), self._store.ttl_ms)
        elif state.overlays[self._store].get(request.key) is not None:
            # That it was open.
            state.overlays[self._store].delete(request.key)
        self._send(state, request, answer)

    def _send(self, state: TaskState, request: _RequestHeaders, answer: bytes) -> None:
        if request.reply_to == _NOBODY:
            return
        topic, _, rest = request.reply_to.decode(errors="replace").partition("/")
        number, _, asker = rest.partition("/")
        count = state.resolve_output(self._reply_topic).partition_count
        if topic != self._reply_topic or not _is_below(number, count):
            logger.warning(
                "%s: question %r wants its answer at %s, which isn't a partition of %s: it gets none",
                state.source,
                request.id,
                show_bytes(request.reply_to, 400),
                self._reply_topic,
            )
            return
        value = None if answer.startswith(_NONE) else answer[1:]
        headers = [(ASK, request.id), (STATUS, _STATUS_OF[answer[:1]].encode())]
        state.outputs.append(Output(topic, int(number), asker.encode(), value, headers, None))
        state.output_bytes += len(answer) + len(request.id) + len(asker) + 64


def _is_dead_letter(record: InputRecord) -> bool:
    """Return whether the record was sent to the dead letters once, and is back in the input now."""
    return any(name == ORIGIN_HEADER for name, _ in record.headers)


def _is_below(number: str, count: int) -> bool:
    return number.isdecimal() and len(number) <= _MAX_DIGITS and int(number) < count
