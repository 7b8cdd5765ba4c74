"""Questions between actors, and their answers.

    asker's handler ──fa-ask──▶ input of the other actor ──▶ its handler, its commit ──▶ reply topic ──▶ asker's handler

A question is a message like any other, sent at once and outside of any transaction, with an id that is the same each
time the asking message is handled: it depends on what is asked. The other actor keeps its answer under that id, in the
commit of what the question led to, and sends it in the same commit. So a question that comes again is not handled
again: its first answer is sent again, for as long as `answer_ttl` says. An answer is on its way only when what it tells
of is committed.

Headers of a question:

    fa-ask        its id; behind a semicolon the digest of its content, where the asker chose the id (see below)
    fa-reply-to   topic/partition/asker: where the answer goes, and the key that it goes with
    fa-chain      who waits for it, and who waits for them: JSON [[actor, partition, key], …], the outermost first
    fa-deadline   when nobody waits any more, Unix ms. A question that is older is not handled at all, unless its actor
                  may ask itself: what its handler asked before its worker died must not remain alone

An answer has the headers `fa-ask` and `fa-status`: "ok" with the encoded value, null for None; "rejected" or "failed"
with the JSON of a `Refusal`. The store of answers has the same under the id: one byte for the status, then the value.
A question that is answered later has a "p" there, and where its answer shall go.

An asker outside of Kafka may choose the id, such as an HTTP client its `Idempotency-Key`. Then the digest of the
content goes with the id, and the store has "c" and the digest in front of the status: the same id with another content
is rejected as `REUSED`. The answer to a question whose fa-reply-to is `NOBODY` is only kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from actors._core.logs import escaping, text_of
from actors._core.outside import MALFORMED, MISSHAPEN
from actors._core.values.ids import digest_of, id_of
from actors.errors import (
    AskCycleError,
    AskFailedError,
    AskRejectedError,
    AskTimeoutError,
    BrokerRefusedError,
    BrokerUnavailableError,
    RecordTooLargeError,
    Rejected,
    UsageError,
    show_bytes,
)
from actors.ports import ActorReply, ActorRequest, Clock, LogRecord, Requests
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES, OutputTopic, Recipient
from actors.runtime.message.task_state import TaskState

logger = escaping(logging.getLogger(__name__))

ASK, REPLY_TO, CHAIN, DEADLINE, STATUS = "fa-ask", "fa-reply-to", "fa-chain", "fa-deadline", "fa-status"
OK, REJECTED, FAILED = "ok", "rejected", "failed"
NOBODY = "-"
"""The address of an answer that nobody waits for."""
REUSED = "IdempotencyKeyReused"
"""The type of the refusal of an id that was used for another content."""
CONTENT_MARK, CONTENT_BYTES = ";", 32
"""The byte between an id and the digest of the content, and the length of the latter."""
REPLY_PARTITIONS = 8
REPLY_CONFIG = {"cleanup.policy": "delete", "retention.ms": "3600000"}
"""How the topic of answers is made: an asker reads only what comes after its question."""
MAX_REASON_BYTES = 4_000
MAX_CHAIN_BYTES = 256 * 1024
MAX_QUESTIONS = 10_000
"""How many questions of one process may be without an answer."""
RETRY_S = 0.1
DENIED_RETRY_S = 1.0
"""After so long a question that couldn't be sent is sent again. It has its id, so it isn't handled twice."""

Link = tuple[str, int, str]
"""An actor, a partition, a key as text: somebody who waits."""


class Asker:
    """Requests on behalf of the handlers of one task."""

    def __init__(self, asks: Requests, clock: Clock, actor: str) -> None:
        self._asks = asks
        self._clock = clock
        self._actor = actor
        self._waits: Counter[int] = Counter()

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return self._clock.wall_ms()

    @property
    def asks(self) -> Requests:
        """The client for the questions; it outlives the task."""
        return self._asks

    async def ask(
        self, ctx: Context, actor: Any, key: Any, message: Any, timeout: timedelta, *, id: str | None = None
    ) -> Any:
        """Ask as `Context.ask` does. With an `id` of its own the question takes no number of the message's."""
        state = ctx._state
        if hasattr(ctx, "expired_in"):
            raise UsageError(
                f"ctx.ask() in on_expire of actor {self._actor}: nothing is handled while it waits: use ctx.tell, or "
                "ctx.schedule a message to this key that asks"
            )
        if state is None or state.on_wait is None:
            raise UsageError(
                f"ctx.ask() in actor {self._actor}: its partition would stand still while it waits, and could wait for "
                "itself: declare it with @app.actor(..., concurrency=…), or use ctx.tell, as on_close has to"
            )
        target = state.resolve_output(Recipient(actor))
        asked = EncodedRequest.of(target, key, message)
        chain: list[Link] = [*_chain_in(ctx), (state.actor, state.partition, _text(ctx._raw_key))]
        _refuse_cycle(chain, target, asked)
        content = ""
        if id is None:
            parts = (state.actor, target.name, asked.key, asked.value)
            names = [part for name, data in asked.headers for part in (name, data)]
            content = digest_of(*parts, *names)
            id = _unanswered(ctx, content) or id_of(ctx, *parts, *names)
        question = ActorRequest(
            id=id,
            topic=target.name,
            partition=target.home(asked.key),
            key=asked.key,
            value=asked.value,
            headers=[
                *asked.headers,
                (CHAIN, json.dumps(chain).encode()),
                deadline_header(self._clock, timeout),
            ],
        )
        try:
            with self._waiting(state):
                answer = await carry(lambda left_s: self._asks.ask(question, left_s), self._clock, timeout, asked.what)
        except (AskTimeoutError, asyncio.CancelledError):
            if content:
                ctx._unanswered = again = getattr(ctx, "_unanswered", {})
                again.setdefault(content, []).append(id)
            raise
        return asked.open(answer)

    @contextlib.contextmanager
    def _waiting(self, state: TaskState) -> Iterator[None]:
        """Say that a message waits, once, however many questions it asks at a time."""
        on_wait, message = state.on_wait or int, id(state)
        self._waits[message] += 1
        if self._waits[message] == 1:
            on_wait(1)
        try:
            yield
        finally:
            self._waits[message] -= 1
            if not self._waits[message]:
                del self._waits[message]
                on_wait(-1)


def _unanswered(ctx: Context, content: str) -> str | None:
    """Return the id of an equal question of the message that had no answer in time: it may be handled nevertheless."""
    ids = getattr(ctx, "_unanswered", {}).get(content)
    return ids.pop() if ids else None


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A question in bytes, and what it takes to open its answer. `what` is the question for people."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    decode: Callable[[bytes], Any]
    what: str

    @classmethod
    def of(cls, target: OutputTopic, key: Any, message: Any) -> EncodedRequest:
        """Encode a question.

        Raises:
            UsageError: the actor doesn't answer such a message; the message is too large, or without a key.
        """
        kind = type(message).__name__
        if key is None:
            raise UsageError(f"ask({target.actor}): a question to an actor needs a key")
        decode = None if target.answer_decoder is None else target.answer_decoder(message)
        if decode is None:
            raise UsageError(
                f"actor {target.actor} gives no answer to {kind}: annotate what its handler returns, or use tell. An "
                "actor whose handlers return nothing is asked if it is declared with answer_ttl=timedelta(days=1)"
            )
        raw_key, raw_value = target.encode_key(key), target.encode_value(message)
        size = len(raw_key) + len(raw_value) + RECORD_OVERHEAD_BYTES
        if size > target.max_record_bytes:
            raise RecordTooLargeError(
                f"{target.name}: a question of {size} bytes for key {show_bytes(raw_key)} doesn't fit into the topic's "
                f"max.message.bytes={target.max_record_bytes}: write less, or raise the topic's setting and restart "
                "the worker"
            )
        headers = target.headers_of(message)
        return cls(raw_key, raw_value, headers, decode, f"{kind} to actor {target.actor}, key {show_bytes(raw_key)}")

    def open(self, answer: ActorReply) -> Any:
        """Return the other handler's answer.

        Raises:
            AskRejectedError: it refused the message.
            AskFailedError: it failed, or its answer isn't what it is declared to be.
        """
        if answer.status == OK:
            try:
                return None if answer.value is None else self.decode(answer.value)
            except ValueError as error:
                raise AskFailedError(f"{self.what}: it was handled, but its answer doesn't decode: {error}") from error
        refusal = Refusal.read(answer.value or b"")
        kind, verb = (AskRejectedError, "rejected") if answer.status == REJECTED else (AskFailedError, "failed")
        text = f"{self.what}: {verb}: {refusal.reason}"
        raise kind(text, reason=refusal.reason, type=refusal.type, data=refusal.data)


class Refusal(msgspec.Struct, omit_defaults=True):
    """The answer of a handler that raised: the error's text, the name of its class, and data of the user's."""

    reason: str = ""
    type: str = ""
    data: Any = None

    @classmethod
    def of(cls, error: BaseException, reason: str | None = None) -> bytes:
        """Encode an error, with another reason than its text if one is given.

        Data that JSON can't say is left out, which the reason states.
        """
        text = _cut(text_of(error) if reason is None else reason, MAX_REASON_BYTES)
        refusal = cls(text, type(error).__name__, error.data if isinstance(error, Rejected) else None)
        try:
            return msgspec.json.encode(refusal)
        except Exception as failure:
            refusal.reason = _cut(f"{text} (its data isn't JSON: {text_of(failure)})", MAX_REASON_BYTES)
            refusal.data = None
            return msgspec.json.encode(refusal)

    @classmethod
    def read(cls, raw: bytes) -> Refusal:
        """Decode an error; bytes that aren't ours are its reason."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except MALFORMED:
            return cls(raw.decode(errors="replace"))

    @classmethod
    def fitting(cls, raw: bytes, room: int) -> bytes:
        """Return an encoded error with as much of it as there is room for: the data goes first."""
        refusal = cls.read(raw)
        if len(raw) > room and refusal.data is not None:
            note = " (its data is too large for an answer)"
            refusal.reason, refusal.data = refusal.reason + note, None
            raw = msgspec.json.encode(refusal)
        while len(raw) > room and refusal.reason:
            refusal.reason = refusal.reason[: len(refusal.reason) // 2]
            raw = msgspec.json.encode(refusal)
        return raw if len(raw) <= room else b""


def _cut(text: str, size: int) -> str:
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def deadline_header(clock: Clock, timeout: timedelta) -> tuple[str, bytes]:
    """Return the header that says when nobody waits any more."""
    return DEADLINE, b"%d" % (clock.wall_ms() + timeout // timedelta(milliseconds=1))


async def carry(
    ask: Callable[[float], Awaitable[ActorReply]], clock: Clock, timeout: timedelta, what: str
) -> ActorReply:
    """Call `ask` with the seconds that are left, again while the question can't be sent, and give the answer.

    `what` is the question for people.

    Raises:
        AskTimeoutError: none came in time.
        BrokerRefusedError: the broker refuses the user.
    """
    until_s = clock.monotonic() + timeout.total_seconds()
    failure: BrokerUnavailableError | None = None
    while (left_s := until_s - clock.monotonic()) > 0.0:
        try:
            return await ask(left_s)
        except TimeoutError:
            break
        except BrokerRefusedError:
            # Settings don't get better by waiting.
            raise
        except BrokerUnavailableError as error:
            failure = error
        retry_s = DENIED_RETRY_S if failure.missing else RETRY_S
        await clock.sleep(min(retry_s, max(0.0, until_s - clock.monotonic())))
    why = "" if failure is None else f" ({failure})"
    raise AskTimeoutError(
        f"{what}: no answer within {timeout.total_seconds():g} s{why}: whether it is handled is unknown"
    ) from failure


def question_headers(question: ActorRequest, reply_to: str) -> list[tuple[str, bytes]]:
    """Return the headers that a question is sent with, for those who implement `actors.ports.Requests`."""
    return [*question.headers, (ASK, question.id.encode()), (REPLY_TO, reply_to.encode())]


def _text(raw_key: bytes) -> str:
    """Return a key as text, no two keys as the same."""
    return raw_key.decode(errors="surrogateescape")


def _chain_in(ctx: Context) -> list[Link]:
    """Return the links that wait for the message that is being handled."""
    raw = next((raw for name, raw in ctx.headers if name == CHAIN), None)
    if raw is None:
        return []
    if len(raw) <= MAX_CHAIN_BYTES:
        with contextlib.suppress(*MISSHAPEN):
            return [(str(actor), int(partition), str(key)) for actor, partition, key in json.loads(raw)]
    logger.warning("%s offset %d: the header %s is not ours: %s", ctx.topic, ctx.offset, CHAIN, show_bytes(raw))
    return []


def _refuse_cycle(chain: Sequence[Link], target: OutputTopic, asked: EncodedRequest) -> None:
    key = _text(asked.key)
    if not any(actor == target.actor and waiting == key for actor, _, waiting in chain):
        return
    links = [*((actor, waiting) for actor, _, waiting in chain), (target.actor, key)]
    raise AskCycleError(
        f"{asked.what}: it would wait for itself: " + " -> ".join(f"{actor} {waiting!r}" for actor, waiting in links)
    )


class Waiting:
    """The questions of a process that have no answer yet, for those who implement `actors.ports.Requests`.

    `asker` is what answers to this process have as their key.
    """

    def __init__(self, asker: str, limit: int = MAX_QUESTIONS) -> None:
        self.asker = asker
        self._raw_asker = asker.encode()
        self._limit = limit
        self._futures: dict[str, set[asyncio.Future[ActorReply]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def question(self, question: ActorRequest) -> Iterator[asyncio.Future[ActorReply]]:
        """Return the future of a question's answer, which is waited for as long as the block runs.

        Raises:
            BrokerUnavailableError: too many questions wait already.
        """
        if self._count >= self._limit:
            raise BrokerUnavailableError(
                f"{self._limit} questions of this process wait for their answers: ask less at a time, or find out why "
                "nobody answers"
            )
        future: asyncio.Future[ActorReply] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(question.id, set()).add(future)
        self._count += 1
        try:
            yield future
        finally:
            future.cancel()
            self._count -= 1
            self._futures[question.id].discard(future)
            if not self._futures[question.id]:
                del self._futures[question.id]

    def deliver(self, record: LogRecord) -> None:
        """Take a record of the reply topic; what is late, repeated or another process's is dropped."""
        if record.key != self._raw_asker:
            return
        headers = dict(record.headers)
        question_id = (headers.get(ASK) or b"").decode(errors="replace")
        status = (headers.get(STATUS) or b"").decode(errors="replace")
        for future in self._futures.get(question_id, ()):
            if not future.done():
                future.set_result(ActorReply(status, record.value))

    def fail(self, error: Exception) -> None:
        """End all waiting with an error."""
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
