"""The target of a reset, as text and as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from actors.declare.arguments import say_unknown
from actors.errors import ConfigurationError
from actors.ports import TopicPartition
from stores._core.printable import moment_ms

EARLIEST, LATEST = "earliest", "latest"
FORMS = (
    "earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets such as orders:0=15,orders:1=20 "
    "(TOPIC:PARTITION=OFFSET)"
)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a reset: a name, a time in Unix milliseconds, or offsets."""

    name: str = ""
    at_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None


def parse_target(text: str) -> Target:
    """Parse a target.

    Raises:
        ConfigurationError: the text is no target.
    """
    if text in (EARLIEST, LATEST):
        return Target(name=text)
    if "=" in text:
        return Target(offsets=_offsets(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        unknown = say_unknown("target", [text], [EARLIEST, LATEST])
        raise ConfigurationError(f"{unknown}. Known are {FORMS}") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    at_ms = moment_ms(at)
    if at_ms < 0:
        raise ConfigurationError(f"{text} is before 1970: use earliest")
    return Target(at_ms=at_ms)


def _offsets(text: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for part in text.split(","):
        place, _, offset = part.strip().partition("=")
        topic, _, partition = place.rpartition(":")
        if not topic or not (_is_number(partition) and _is_number(offset)):
            raise ConfigurationError(f"{part.strip()!r} is no offset. Write {FORMS}")
        source = TopicPartition(topic, int(partition))
        if source in offsets:
            raise ConfigurationError(f"{place} is there twice in {text!r}")
        offsets[source] = int(offset)
    return offsets


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18
