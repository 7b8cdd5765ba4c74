"""How a parked message is stored: as one entry, or as a head and slices if it is large.

    p + line + sequence          the entry: a `ParkedMessage` as JSON. `{"v":2,…` marks a head, which has no key, value
                                 and headers but `size`, their bytes, and `slices`, how many there are
    s + digest + sequence + n    slice n of a large message: a part of [key, value, headers] as MessagePack

`line` is the line's key with its length in front, `digest` the BLAKE2b of that key with 16 bytes; `sequence` has 8
bytes and n has 4, big-endian. In slices a record of any size fits into a changelog, and a look at lines reads no
contents but small ones.

A line's key is the key of its messages. One that is longer than `LONG_KEY_BYTES` is replaced by `sha256:` and its
digest in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b, sha256
from typing import TypeVar

import msgspec

from actors._core.keys import make_place
from actors._core.outside import MALFORMED
from actors._core.values.ids import message_id
from actors.errors import NewerVersionError, RecordTooLargeError
from actors.runtime.message.failures import is_newer, newer_entry
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.message.outputs import RECORD_OVERHEAD_BYTES
from actors.runtime.message.store import Store
from actors.runtime.message.task_state import TaskState
from stores._core.overlay import Overlay

ENTRY = b"p"
AFTER_ALL = b"q"
INLINE_BYTES = 48 * 1024
"""A message with more bytes of key, value and headers is stored in slices."""
SLICE_BYTES = 256 * 1024
LONG_KEY_BYTES = 16 * 1024
"""Keys up to this length are their line's own key."""
_SLICE = b"s"
_HEAD = b'{"v":2,'
_WHAT = "a parked message"

T = TypeVar("T")
Get = Callable[[bytes], bytes | None]


class LostContentError(NewerVersionError):
    """The changelog has lost a slice of a message, which no release can read any more."""


class ParkedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in its line.

    Attributes:
        topic, partition, offset, timestamp_ms, key, value, headers: as it came; Unix milliseconds.
        id: what identifies it if it isn't an input record; None if it is one.
        tag: what its id has behind the topic's name if it is one: it may have come from a topic that is gone.
        timer: the name of the timer that sent it, None if none did.
        has_event_time: whether that goes by stream time.
        error: why it couldn't be handled; None if it only waits behind another.
        attempts: how often it was tried.
        parked_at_ms: since when it waits, Unix milliseconds.
        home_offset: how far the actor's first input was handled then; None if the message is of that input.
        method: the private method that it calls; left out where it is a message.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []
    id: str | None = None
    tag: str = ""
    timer: str | None = None
    has_event_time: bool = False
    error: str | None = None
    attempts: int = 0
    parked_at_ms: int = 0
    home_offset: int | None = None
    method: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def message_id(self) -> str:
        """The id of the message, as in `ctx.message_id`."""
        return _message_id(self)

    def record(self) -> InternalRecord:
        """Return the record of the message's context."""
        return InternalRecord(
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,  # type: ignore[arg-type]
            id=self.id,
            timer=self.timer,
            tag=self.tag,
            is_input=self.id is None,
            has_event_time=self.has_event_time,
            method=None if self.method is msgspec.UNSET else self.method,
        )


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry's summary of its message, without decoding the content.

    Attributes:
        key: the key as JSON, not decoded either.
        size: the bytes of key, value and headers if they are in slices.
        slices: how many there are.
    """

    topic: str
    partition: int
    offset: int
    key: msgspec.Raw = msgspec.Raw(b"null")
    id: str | None = None
    tag: str = ""
    error: str | None = None
    attempts: int = 0
    parked_at_ms: int = 0
    home_offset: int | None = None
    size: int = 0
    slices: int = 0

    @property
    def message_id(self) -> str:
        """The id of the message, as in `ctx.message_id`."""
        return _message_id(self)

    @property
    def has_key(self) -> bool:
        """Return whether the message has a key."""
        return bytes(self.key) != b"null"


class _Head(ParkedMessage, frozen=True, kw_only=True):
    size: int
    slices: int


def _message_id(message: ParkedMessage | Summary) -> str:
    return message.id or message_id(message.topic, message.partition, message.offset, message.tag)


def line_key_of(key: bytes) -> bytes:
    """Return the key of the line of a message's key."""
    return key if len(key) <= LONG_KEY_BYTES else b"sha256:" + sha256(key).hexdigest().encode()


def summary_of(raw: bytes) -> Summary:
    """Read an entry without its content.

    Raises:
        NewerVersionError: this release can't.
    """
    return _decoded(raw, Summary)


def read_entry(get: Get, line_key: bytes, sequence: int, raw: bytes) -> ParkedMessage:
    """Read an entry with its content; `get` gives the value of a slice's key.

    Raises:
        NewerVersionError: this release can't.
        LostContentError: a slice is missing.
    """
    if not raw.startswith(_HEAD):
        return _decoded(raw, ParkedMessage)
    head = _decoded(raw, _Head)
    content = _joined(get, line_key, sequence, head)
    try:
        key, value, headers = msgspec.msgpack.decode(content, type=_CONTENT)
    except MALFORMED as error:
        raise newer_entry(_WHAT, raw) from error
    fields = {name: getattr(head, name) for name in ParkedMessage.__struct_fields__}
    return ParkedMessage(**{**fields, "key": key, "value": value, "headers": headers})


def write_entry(
    store: Store[bytes, bytes], state: TaskState, line_key: bytes, sequence: int, message: ParkedMessage
) -> None:
    """Write an entry, in slices if it is large or doesn't fit into one record.

    Raises:
        RecordTooLargeError: the changelog doesn't take its key, or a slice.
    """
    place = make_place(ENTRY, line_key, sequence)
    if size_of(message.key, message.value, message.headers) <= INLINE_BYTES:
        try:
            store.write_raw(state, place, msgspec.json.encode(message))
        except RecordTooLargeError:
            pass
        else:
            return
    content = msgspec.msgpack.encode((message.key, message.value, message.headers))
    prefix = _slices_of(line_key, sequence)
    room = state.max_record_bytes[store.name] - RECORD_OVERHEAD_BYTES - len(prefix) - 4
    step = max(1, min(SLICE_BYTES, room))
    starts = range(0, len(content), step)
    for number, start in enumerate(starts):
        store.write_raw(state, prefix + number.to_bytes(4, "big"), content[start : start + step])
    _write_head(store, state, place, message, len(content), len(starts))


def write_failure(
    store: Store[bytes, bytes], state: TaskState, line_key: bytes, sequence: int, raw: bytes, error: str
) -> int:
    """Note in an entry that its message failed again; return the number of attempts.

    Raises:
        NewerVersionError: this release can't read the entry.
        RecordTooLargeError: the changelog doesn't take it.
    """
    if raw.startswith(_HEAD):
        # The slices stay as they are.
        head = _decoded(raw, _Head)
        again = msgspec.structs.replace(head, error=error, attempts=head.attempts + 1)
        _write_head(store, state, make_place(ENTRY, line_key, sequence), again, head.size, head.slices)
        return again.attempts
    message = _decoded(raw, ParkedMessage)
    message = msgspec.structs.replace(message, error=error, attempts=message.attempts + 1)
    write_entry(store, state, line_key, sequence, message)
    return message.attempts


def remove_entry(overlay: Overlay, line_key: bytes, sequence: int, raw: bytes) -> None:
    """Remove an entry with its slices."""
    overlay.delete(make_place(ENTRY, line_key, sequence))
    if raw.startswith(_HEAD):
        prefix = _slices_of(line_key, sequence)
        for number in range(_decoded(raw, _Head).slices):
            overlay.delete(prefix + number.to_bytes(4, "big"))


def slices_of_line(line_key: bytes) -> bytes:
    """Return the prefix of the keys of a line's slices."""
    return _SLICE + blake2b(line_key, digest_size=16).digest()


def _slices_of(line_key: bytes, sequence: int) -> bytes:
    return slices_of_line(line_key) + sequence.to_bytes(8, "big")


def _joined(get: Get, line_key: bytes, sequence: int, head: _Head) -> bytes:
    prefix, parts = _slices_of(line_key, sequence), []
    for number in range(head.slices):
        part = get(prefix + number.to_bytes(4, "big"))
        if part is None:
            raise LostContentError(
                f"the parked message {head.message_id} lacks slice {number} of {head.slices}: its changelog lost "
                "records. Drop it with `faust parked drop`, or restore the changelog"
            )
        parts.append(part)
    return b"".join(parts)


def size_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return how many bytes a message has."""
    return len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in headers)


def _write_head(
    store: Store[bytes, bytes], state: TaskState, place: bytes, message: ParkedMessage, size: int, slices: int
) -> None:
    key = None if message.key is None else b""
    fields = {name: getattr(message, name) for name in ParkedMessage.__struct_fields__}
    head = _Head(**{**fields, "key": key, "value": None, "headers": []}, size=size, slices=slices)
    store.write_raw(state, place, _HEAD + msgspec.json.encode(head)[1:])


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        if raw.startswith(_HEAD) or not is_newer(raw):
            return msgspec.json.decode(raw, type=kind)
    except MALFORMED as error:
        raise newer_entry(_WHAT, raw) from error
    raise newer_entry(_WHAT, raw)


_CONTENT = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
