"""Topics that handlers send to, and what is refused before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mypy_extensions import mypyc_attr

from actors._core.outside import caused
from actors._core.partitioner import MURMUR2, Partitioner
from actors.errors import RecordTooLargeError, UsageError, show_bytes
from actors.ports import Headers

TypeHeaders = Callable[[Any], list[tuple[str, bytes | None]]]
"""The headers that a value is sent with. One that is None isn't passed on from the message that is handled."""
RESERVED = "fa-"
"""How the names of the framework's own headers begin."""
TYPE_HEADER = "fa-type"
ERROR_HEADER, ORIGIN_HEADER, ATTEMPTS_HEADER, ACTOR_HEADER = "fa-error", "fa-origin", "fa-attempts", "fa-actor"
DEAD_LETTER_HEADERS = frozenset((ERROR_HEADER, ORIGIN_HEADER, ATTEMPTS_HEADER, ACTOR_HEADER))
EFFECT_HEADER, METHOD_HEADER = "fa-effect", "fa-method"
"""The name of the effect, or of the private method, of a dead letter that is a call."""
SCHEMA_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""By part of a record, the header with the id of its schema, where the bytes don't begin with it."""
NO_HEADERS: list[Any] = []
new_tuple = tuple.__new__
"""Makes a named tuple in a third of the time that its class takes."""
RECORD_OVERHEAD_BYTES = 256
"""The most that a record takes in a batch beside key, value and headers: batch header, framing, metadata."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic that handlers send to, resolved once: how keys and values become bytes, how many fit, what it takes.

    `type_headers` gives the headers that name a value's type or schema, where readers need them. For an actor's input,
    `actor` is its name, and `answer_decoder` gives what reads the answer to a message, None if there is none.
    `partitioner` is the one that the topic declares, None for murmur2.
    """

    name: str
    encode_key: Callable[[Any], bytes]
    encode_value: Callable[[Any], bytes]
    max_record_bytes: int
    partition_count: int = 1 << 31
    is_compacted: bool = False
    type_headers: TypeHeaders | None = None
    actor: str | None = None
    answer_decoder: Callable[[Any], Callable[[bytes], Any] | None] | None = None
    partitioner: Partitioner | None = None

    def headers_of(self, value: Any) -> list[tuple[str, bytes]]:
        """Return the headers that a value is sent with."""
        return [] if self.type_headers is None else sent_headers(self.type_headers(value))

    def home(self, key: bytes, partitions: int | None = None) -> int:
        """Return the partition of a key, in as many partitions as the topic has unless told otherwise."""
        return (self.partitioner or MURMUR2).home(key, partitions or self.partition_count)


@dataclass(frozen=True, slots=True)
class Recipient:
    """An actor in the place of a topic: its class, its function or its name."""

    actor: Any


@mypyc_attr(native_class=False)
class OwnHeaders(list[Any]):
    """Headers that the framework sets itself."""


def checked_headers(headers: Headers | Mapping[str, bytes], came: Sequence[tuple[str, bytes]]) -> list[Any]:
    """Return headers as pairs, without those of the framework that came with the message and belong to it alone.

    Passed on, `fa-ask` would make the receiver take the record for a repeat of the question.

    Args:
        headers: what a handler wants to send.
        came: the headers of the message that it handles.

    Raises:
        UsageError: one of them is no pair of text and bytes, or has a reserved name and didn't come with the message.
    """
    if isinstance(headers, OwnHeaders):
        return headers
    pairs: list[Any] = list(headers.items() if isinstance(headers, Mapping) else headers)
    is_any_reserved = False
    for pair in pairs:
        # Kafka has headers without a value; they may be passed on.
        is_pair = len(pair) == 2 and isinstance(pair[0], str)
        if not (is_pair and (isinstance(pair[1], bytes) or tuple(pair) in came)):
            raise UsageError(f"ctx.send(headers=…): a header is a pair of str and bytes, not {pair!r}")
        if not pair[0].isascii():
            _check_text(pair[0])
        is_any_reserved = is_any_reserved or pair[0].startswith(RESERVED)
    return [pair for pair in pairs if _may_pass(pair, came)] if is_any_reserved else pairs


def typed_headers(
    headers: Headers | Mapping[str, bytes],
    came: Sequence[tuple[str, bytes]],
    own: Sequence[tuple[str, bytes | None]],
    *also: str,
) -> OwnHeaders:
    """Return `checked_headers` with those of type and schema of what is sent, in the place of others and of `also`."""
    replaced = {*also, *(name for name, _ in own)}
    passed = (pair for pair in checked_headers(headers, came) if pair[0] not in replaced)
    return OwnHeaders([*passed, *sent_headers(own)])


def sent_headers(own: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes]]:
    """Return the headers among those of a type that are sent."""
    return [(name, data) for name, data in own if data is not None]


def _check_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise caused(
            UsageError(f"ctx.send(headers=…): the header {name!r} isn't Unicode text: {error}"), error
        ) from error


def _may_pass(pair: Any, came: Sequence[Any]) -> bool:
    name: str = pair[0]
    if not name.startswith(RESERVED) or name == TYPE_HEADER:
        return True
    if tuple(pair) not in came:
        raise UsageError(
            f"ctx.send(headers=…): the header {name!r} can't be set: names that begin with {RESERVED!r} are reserved, "
            f"except {TYPE_HEADER!r}: choose another name. Headers of the message may be passed on as they came"
        )
    return name in DEAD_LETTER_HEADERS


def check_placement(target: OutputTopic, key: bytes | None, partition: Any, timestamp_ms: Any) -> None:
    """Refuse a record that the topic has no place for.

    Raises:
        UsageError: naming what is wrong.
    """
    if partition is not None and not (isinstance(partition, int) and 0 <= partition < target.partition_count):
        raise UsageError(
            f"ctx.send(partition={partition!r}): topic {target.name} has the partitions 0 to "
            f"{target.partition_count - 1}"
        )
    if timestamp_ms is not None and not (isinstance(timestamp_ms, int) and 0 <= timestamp_ms < 1 << 63):
        raise UsageError(f"ctx.send(timestamp_ms={timestamp_ms!r}): Unix milliseconds are a whole number below 2**63")
    if key is None and target.is_compacted:
        raise UsageError(f"ctx.send(): topic {target.name} is compacted, so its records need a key")


def too_large(topic: str, key: bytes | None, size: int, limit: int) -> RecordTooLargeError:
    """Return the error for a record of `size` bytes where `limit` are allowed."""
    return RecordTooLargeError(
        f"{topic}: a record of {size} bytes for key {show_bytes(key)} doesn't fit into the topic's "
        f"max.message.bytes={limit}: "
        "write less, or raise the topic's setting and restart the worker"
    )
