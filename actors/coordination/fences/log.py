"""How a log of writes with tokens is judged, without I/O: every reader comes to the same verdicts, for ever.

A record of a guarded resource has the resource's name (UTF-8) as key, lies in the partition where murmur2 puts that,
and has these headers:

| header | value |
|---|---|
| `fa-fence-resource` | the resource's name again: a record without it isn't one of ours |
| `fa-fence-token` | the token, in decimal digits |
| `fa-fence-id` | which append it was, by which the writer knows its own record |

The records of a partition are taken in the order of the log; one whose token is smaller than the greatest before it
doesn't count. A null value is a claim: it raises the fence and says nothing else. What has no such headers, or
malformed ones, never counts. So the verdict on a record follows from the records before it, and from nothing else: not
from when it is read, nor by whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import msgspec

from actors._core.outside import MALFORMED
from actors._core.partitioner import partition_for
from actors.coordination.errors import FenceLostError, StaleTokenError
from actors.coordination.fences.fencing import MAX_TOKEN, Fence
from actors.errors import show_bytes
from actors.ports import LogRecord

RESOURCE = "fa-fence-resource"
TOKEN = "fa-fence-token"
ID = "fa-fence-id"
_TOKEN_DIGITS = len(str(MAX_TOKEN))


class FencedRecord(msgspec.Struct, frozen=True):
    """A write that counts. `timestamp_ms` is the writer's clock, Unix milliseconds."""

    resource: str
    token: int
    value: bytes
    partition: int
    offset: int
    timestamp_ms: int


class FenceState(msgspec.Struct, frozen=True):
    """Where a reader stands, and all that it has to know of the log before that.

    Attributes:
        topic: its name.
        topic_id: which topic of that name.
        partitions: how many it has.
        positions: by partition, the offset to be read next.
        greatest: by resource, the greatest token before that.

    Examples:
        >>> state = FenceState(topic="lines", topic_id="a", partitions=1, positions={0: 5}, greatest={"ledger": 7})
        >>> FenceState.decode(state.encode()) == state
        True
        >>> FenceState.decode(b"{}")
        Traceback (most recent call last):
        actors.coordination.errors.FenceLostError: ...
    """

    topic: str
    topic_id: str
    partitions: int
    positions: dict[int, int]
    greatest: dict[str, int]

    def encode(self) -> bytes:
        """Return it as JSON, to be kept with what was made of the records."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read what `encode` gave.

        Raises:
            FenceLostError: it isn't that.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except MALFORMED as error:
            raise FenceLostError(
                f"the state of a fenced topic's reader can't be read ({error}): begin without one, from the start of "
                "the log"
            ) from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a record of ours: it counts, unless `refusal` says why not."""

    id: bytes
    record: FencedRecord
    is_claim: bool
    refusal: StaleTokenError | None


def headers_of(resource: str, token: int, id: bytes) -> list[tuple[str, bytes]]:
    """Return a record's headers."""
    return [(RESOURCE, resource.encode()), (TOKEN, b"%d" % token), (ID, id)]


class FenceLog:
    """Judges the records of some partitions of a topic.

    Args:
        topic: its name, for people.
        partitions: how many it has.
        positions: {partition: the offset to be read next}.
        greatest: {resource: the greatest token before that}.
    """

    def __init__(self, topic: str, partitions: int, positions: Mapping[int, int], greatest: Mapping[str, int]) -> None:
        self.fence = Fence(greatest)
        self.positions = dict(positions)
        self._topic = topic
        self._partitions = partitions

    def judge(self, partition: int, record: LogRecord) -> Verdict | None:
        """Take the partition's next record; give None for what isn't of ours.

        Raises:
            FenceLostError: it lies where its key doesn't belong; the position stays.
        """
        found = _read(partition, record)
        if found is not None and partition_for(record.key or b"", self._partitions) != partition:
            raise FenceLostError(
                f"{self._topic}[{partition}] offset {record.offset} key {show_bytes(record.key)}: with "
                f"{self._partitions} partitions it belongs elsewhere, so what came before it can't be told: the topic "
                "got partitions, or was copied. Re-create it and copy the accepted records, resource by resource"
            )
        self.positions[partition] = record.offset + 1
        if found is None:
            return None
        refusal = None
        try:
            self.fence.admit(found.resource, found.token)
        except StaleTokenError as error:
            refusal = error
        return Verdict(dict(record.headers).get(ID, b""), found, record.value is None, refusal)


def _read(partition: int, record: LogRecord) -> FencedRecord | None:
    headers = dict(record.headers)
    raw, name = headers.get(TOKEN, b""), headers.get(RESOURCE)
    if name is None or name != record.key or not raw.isdigit() or len(raw) > _TOKEN_DIGITS:
        return None
    token = int(raw)
    try:
        resource = name.decode()
    except UnicodeDecodeError:
        return None
    if not 0 < token <= MAX_TOKEN:
        return None
    return FencedRecord(resource, token, record.value or b"", partition, record.offset, record.timestamp)
