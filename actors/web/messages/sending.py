"""Sends messages, and reads the answers that actors keep, for any web framework.

body ──▶ message ──▶ question ──▶ input of the actor ──▶ its commit ──▶ answer, 200
                         └── nobody waits, or not as long ──▶ 202 with the address of the answer
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from actors._core.keys import line_bounds
from actors._core.outside import MALFORMED
from actors._core.values.ids import digest_of
from actors._faust.app import App
from actors._faust.tracing import trace_headers
from actors.declare.values.codecs import CodecError
from actors.errors import (
    ActorsError,
    AskFailedError,
    AskRejectedError,
    AskTimeoutError,
    RecordTooLargeError,
    UnresolvedSchemaError,
    UsageError,
)
from actors.ports import ActorReply, ActorRequest
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved
from actors.runtime.quarantine.entries import ENTRY, line_key_of, summary_of
from actors.runtime.queries.queries import HeldTask, read
from actors.runtime.requests.replies import answer_of
from actors.runtime.requests.requests import CONTENT_MARK, REUSED, EncodedRequest, carry
from actors.web.messages.kinds import Addressee, MessageKind
from actors.web.problems import JSON_HEADERS, HttpAnswer, Problem, bad_request, not_ready
from actors.web.queries.coding import KeyCoding, as_json, json_bytes, last_key
from stores._core.record import METADATA_BYTES

MAX_WAIT_S = 60
"""How long a request waits for an answer at most, whatever it prefers."""
SEND_S = 10.0
"""How long a message may take to the broker."""
MAX_IDEMPOTENCY_CHARS = 255
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])", re.IGNORECASE)
_ID = re.compile(r"[0-9a-f]{32}")


class MessageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a message, or where it can be had later; `value` is what the handler returned.

    Attributes:
        state: "answered"; "accepted" for a message that waits in the actor's input; "handled" where no answer is kept.
        status: the path of the answer.
    """

    actor: str
    message: str
    state: str
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: str = ""


@dataclass(frozen=True, slots=True)
class Sending:
    """A request without its body.

    Attributes:
        raw_path: the path as it was sent, percent-encoded: `…/{actor}/{key}/{message}`.
        headers: by lower-case name, those that are there once.
        encoding: of the key, None for the usual one.
    """

    raw_path: str
    headers: Mapping[str, str]
    encoding: str | None = None

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The path before the actor; the actor, the key, still encoded, and the message."""
        base, actor, key, message = self.raw_path.rsplit("/", 3)
        return base, unquote(actor), key, unquote(message)

    @property
    def wait_s(self) -> int:
        """The seconds of `Prefer: wait=…` (RFC 7240), 0 without it."""
        wait = _WAIT.search(self.headers.get("prefer", ""))
        return 0 if wait is None else min(int(wait[1]), MAX_WAIT_S)

    def question_id(self, actor: str, key: bytes, content: str) -> str:
        """Return the id of the question: of the Idempotency-Key, or a new one.

        Raises:
            Problem: the header can't be an Idempotency-Key.
        """
        text = self.headers.get("idempotency-key")
        if text is None:
            return uuid.uuid4().hex
        # The draft's header is a quoted string of RFC 8941; most clients send the bare text.
        text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
        if not 0 < len(text) <= MAX_IDEMPOTENCY_CHARS or not (text.isascii() and text.isprintable()):
            raise bad_request(
                "bad-idempotency-key",
                f"Idempotency-Key has {len(text)} characters: send 1 to {MAX_IDEMPOTENCY_CHARS} of ASCII, as a UUID",
            )
        return f"{digest_of('http', actor, key, text)}{CONTENT_MARK}{content}"


class Messages:
    """Sends messages to the actors of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._addressees: dict[str, Addressee] = {}
        self._keys: dict[str, KeyCoding] = {}

    def addressee(self, actor: str) -> Addressee:
        """Return the addressee of an actor; `Problem` if the app has none such."""
        if actor not in self._app.actors:
            names = ", ".join(sorted(self._app.actors)) or "none"
            raise Problem(404, "unknown-actor", "There is no such actor", f"actor {actor!r} isn't one of: {names}")
        if actor not in self._addressees:
            self._addressees[actor] = Addressee.of(self._app.actors[actor])
            self._keys[actor] = KeyCoding.of_actor(self._app, actor)
        return self._addressees[actor]

    async def send(self, sending: Sending, body: bytes) -> HttpAnswer:
        """Send a message, and wait for its answer if the request prefers so.

        Raises:
            Problem: the message can't be sent, or was refused.
        """
        base, actor, raw_key, name = sending.parts
        addressee = self.addressee(actor)
        kind = addressee.kind(name)
        key = self._keys[actor].key_of_url(last_key(raw_key, 0), sending.encoding)
        is_kept = addressee.definition.answers is not None
        if "idempotency-key" in sending.headers and not is_kept:
            raise bad_request(
                "no-answers",
                f"actor {actor} keeps no answers, so it can't recognise a repeat by Idempotency-Key: annotate what its "
                "handlers return, or declare it with answer_ttl=timedelta(days=1)",
            )
        encoded, content = await _encoded(addressee, kind, key, body)
        output = addressee.output
        with _refusals():
            partition = output.home(key, await self._app.asks.partitions_of(output.name))
        headers = [*encoded.headers, *trace_headers(self._app)]
        question = ActorRequest(
            sending.question_id(actor, key, content), output.name, partition, key, encoded.value, headers
        )
        if sending.wait_s and is_kept:
            reply = await self._ask(question, sending.wait_s, encoded.what)
            if reply is not None:
                return await _answered(actor, kind, reply, {"Preference-Applied": f"wait={sending.wait_s}"})
        # After a wait in vain it is sent once more, for its place behind the first one; it has its id.
        offset = await self._tell(question)
        status = f"{base}/{quote(actor, safe='')}/_sent/{quote(name, safe='')}/{question.id[:32]}/{raw_key}"
        status += f"?offset={offset}" + ("" if sending.encoding is None else f"&encoding={sending.encoding}")
        if not addressee.definition.stores:
            return _reply(202, MessageAnswer(actor, name, "accepted"), {})
        return _reply(202, MessageAnswer(actor, name, "accepted", status=status), {"Location": status})

    async def _ask(self, question: ActorRequest, wait_s: float, what: str) -> ActorReply | None:
        """Return the reply, None if there was none in time."""
        asks, clock = self._app.asks, self._app.actor_clock
        with _refusals():
            try:
                return await carry(lambda left_s: asks.ask(question, left_s), clock, timedelta(seconds=wait_s), what)
            except AskTimeoutError:
                return None

    async def _tell(self, question: ActorRequest) -> int:
        with _refusals():
            return await self._app.asks.tell(question, SEND_S)

    async def answer_in(self, task: HeldTask, actor: str, name: str, *, id: str, key: bytes, offset: int) -> HttpAnswer:
        """Return the answer to a message that was sent, from the state of the owner of its key.

        Args:
            task: the key's partition; it is read before anything is awaited.
            actor: the actor's name.
            name: the message's.
            id: the question's.
            key: the raw key of the message.
            offset: its place in the actor's input.

        Raises:
            Problem: it was refused, it failed, or its answer isn't kept any more.
        """
        addressee = self.addressee(actor)
        kind, answers = addressee.kind(name), addressee.definition.answers
        if not addressee.definition.stores or not _ID.fullmatch(id):
            raise Problem(
                404, "unknown-message", "There is no such message", f"actor {actor} has no answer {id[:40]!r}"
            )
        store = task.of((answers or addressee.definition.stores[0]).name)
        entry = None if answers is None else read(store, id.encode()).value
        reply = None if entry is None else answer_of(entry)
        if reply is not None:
            return await _answered(actor, kind, reply, {})
        is_ahead = entry is not None or store.position.source_offset <= offset
        if is_ahead or _waits_parked(task, addressee.definition.parked, key, offset):
            return _reply(202, MessageAnswer(actor, name, "accepted"), {"Retry-After": "1"})
        if answers is None:
            return _reply(200, MessageAnswer(actor, name, "handled"), {})
        raise Problem(
            410,
            "no-answer-kept",
            "The answer isn't kept",
            f"actor {actor} has passed offset {offset}, and keeps no answer {id}: its answer_ttl is over, or its "
            "handler forgot it",
        )


def _waits_parked(task: HeldTask, parked: Store[bytes, bytes] | None, key: bytes, offset: int) -> bool:
    """Return whether a message without an answer is parked: behind the first parked one of its key all are."""
    if parked is None:
        return False
    entry = next(task.of(parked.name).store.scan(*line_bounds(ENTRY, line_key_of(key))), None)
    if entry is None:
        return False
    first = summary_of(entry[1][METADATA_BYTES:])
    return (first.offset if first.home_offset is None else first.home_offset) <= offset


async def _encoded(addressee: Addressee, kind: MessageKind, key: bytes, body: bytes) -> tuple[EncodedRequest, str]:
    """Return the record of a message that came as JSON, and a digest of what JSON says; `Problem` if it isn't one.

    The digest is the same after the type of the message, or a schema, has changed.
    """
    actor, output = addressee.definition.name, addressee.output
    try:
        message = kind.decode(body)
        content = digest_of(kind.name, msgspec.json.encode(msgspec.json.decode(body), order="sorted"))
        value = await resolved(lambda: output.encode_value(message), is_patient=False)
    except UnresolvedSchemaError as error:
        raise not_ready(str(error)) from error
    except (CodecError, UsageError, *MALFORMED) as error:
        raise bad_request("bad-body", f"message {kind.name} of actor {actor}: {error}") from error
    decode = (lambda _: None) if kind.answer is None else kind.answer.decode
    what = f"{kind.name} to actor {actor}, key {key[:80]!r}"
    return EncodedRequest(key, value, output.headers_of(message), decode, what), content


async def _answered(actor: str, kind: MessageKind, reply: ActorReply, headers: Mapping[str, str]) -> HttpAnswer:
    """Return an actor's answer; `Problem` for a refusal."""
    decode = (lambda _: None) if kind.answer is None else kind.answer.decode
    asked = EncodedRequest(b"", b"", [], decode, f"{kind.name} to actor {actor}")
    try:
        value = await resolved(lambda: asked.open(reply))
    except AskRejectedError as error:
        raise _rejected(error) from error
    except AskFailedError as error:
        raise Problem(500, "failed", "The message failed", str(error), reason=error.reason, error=error.type) from error
    return _reply(200, MessageAnswer(actor, kind.name, "answered", as_json(value)), headers)


def _rejected(error: AskRejectedError) -> Problem:
    if error.type == REUSED:
        text = "the Idempotency-Key was used for another message to this key: send a new one with each new message"
        return Problem(422, "idempotency-key-reused", "The Idempotency-Key was used before", text)
    more: dict[str, Any] = {"reason": error.reason, "error": error.type, "data": error.data}
    return Problem(409, "rejected", "The message was rejected", str(error), **more)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn errors of the brokers' client into problems."""
    try:
        yield
    except RecordTooLargeError as error:
        raise Problem(413, "large-message", "The message is too large", str(error)) from error
    except (ActorsError, TimeoutError) as error:
        text = str(error) or f"the brokers didn't take it within {SEND_S:g} s"
        detail = f"{text}: whether the message is handled is unknown; send it again with the same Idempotency-Key"
        raise Problem(503, "not-sent", "The message can't be sent now", detail, retry_after_ms=1000) from error


def _reply(status: int, answer: MessageAnswer, headers: Mapping[str, str]) -> HttpAnswer:
    return HttpAnswer(status, json_bytes(answer), {**JSON_HEADERS, **headers})
