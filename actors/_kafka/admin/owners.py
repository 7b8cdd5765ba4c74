"""The leader registry: which worker owns which task, in which epoch, which stores the app has, and what is paused.

A compacted topic with one partition. Each takeover writes the record of its task, in the same transaction as the
offset's mark; a worker that starts writes the records of its stores; an operator pauses and resumes. One reader serves
all tasks of the worker, and continues where it stopped.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from actors._core.logs import escaping
from actors._core.outside import MALFORMED
from actors._core.task.pauses import PREFIXES, Pause, Pauses, Release, pause_key, release_key
from actors._kafka.admin.asking import SharedRead
from actors._kafka.client import producing
from actors._kafka.connection import Connection
from actors.errors import UnreadableLogError, show_bytes
from actors.ports import LogRecord, Logs, Output, OwnerRecord, TopicPartition

logger = escaping(logging.getLogger(__name__))


_STORE = b"store:"
"""The prefix of the keys of stores' records. No task's key has it: names have no colon."""


MAX_NUMBER = 2**53
"""Above all real epochs, offsets and times, and within what the formats of metadata and times hold."""
MAX_NAMED = 100
"""How many unreadable records are logged."""
MAX_WORDS = 100


class StoreRecord(msgspec.Struct, kw_only=True):
    """The registry's record of a store.

    `topic_id` is the changelog's, which has so many `partitions`. `shapes` are those that the values of `version` have
    had, the newest last; none where the type says nothing of its JSON. `former` has those of earlier versions. `at_ms`
    is when the record was written, Unix milliseconds. `came_after` has the inputs and changelogs that the app had
    before this store came. `is_given_up` says that an operator doesn't need the state any more. `windows` is the
    definition of a window store, for people, "" of other stores. `contents` is what the rows are, as
    `actors._faust.startup.programs.contents_of` has it.
    """

    store: str
    changelog: str
    at_ms: int
    topic_id: str
    partitions: int
    version: int
    shapes: list[Any]
    former: dict[int, list[Any]]
    came_after: list[str]
    contents: str
    windows: str
    is_given_up: bool


def encode_owner(topic: str, record: OwnerRecord) -> Output:
    return Output(topic, 0, _owner_key(record), msgspec.json.encode(asdict(record)), [], None)


def _owner_key(record: OwnerRecord) -> bytes:
    return f"{record.actor}/{record.partition}".encode()


class KafkaOwners:
    """`actors.ports.Owners` over a broker."""

    def __init__(self, topic: str, logs: Logs) -> None:
        self.topic = topic
        self._logs = logs
        self._source = TopicPartition(topic, 0)
        self._records: dict[bytes, OwnerRecord] = {}
        self._stores: dict[bytes, StoreRecord] = {}
        self.pauses = Pauses()
        self._malformed: dict[bytes, int] = {}
        self._next_offset = 0
        self.refresh = SharedRead(self._read_to_end)
        """Read to the end as it is now. Tasks that ask at the same time share one read."""

    @property
    def trouble(self) -> str:
        """Which records of the registry can't be read, for people; "" if all can."""
        if not self._malformed:
            return ""
        key, offset = next(iter(self._malformed.items()))
        more = f", and {len(self._malformed) - 1} more" if len(self._malformed) > 1 else ""
        where = f"{self._source} offset {offset}, key {show_bytes(key)}"
        return f"{where}: this isn't a record of the registry, and is skipped{more}"

    async def latest(self, actor: str, partition: int) -> OwnerRecord | None:
        """Return the newest committed record of a task."""
        await self.refresh()
        return self._records.get(f"{actor}/{partition}".encode())

    def pause_of(self, actor: str, partition: int) -> Pause | None:
        return self.pauses.of(actor, partition)

    def released(self, actor: str) -> Sequence[Release]:
        return self.pauses.released(actor)

    async def open_claims(self) -> Sequence[OwnerRecord] | None:
        records = await self._logs.open_records(self._source)
        if records is None:
            return None
        claims = []
        for record in records:
            if record.key is not None and record.value is not None and not record.key.startswith(_STORE):
                with contextlib.suppress(*MALFORMED):
                    claims.append(_decode_owner(record.key, record.value))
        return claims

    async def all(self) -> list[OwnerRecord]:
        """Return the newest committed record of every task."""
        await self.refresh()
        return sorted(self._records.values(), key=lambda record: (record.actor, record.partition))

    async def stores(self) -> dict[str, StoreRecord]:
        """Return the stores that the app has recorded, by name."""
        await self.refresh()
        return {record.store: record for record in self._stores.values()}

    def _take(self, record: LogRecord) -> None:
        key = record.key
        if key is None:
            return
        self._malformed.pop(key, None)
        if record.value is None:
            self.pauses.take(key, None)
            self._stores.pop(key, None)
            self._records.pop(key, None)
            return
        try:
            if key.startswith(PREFIXES):
                self.pauses.take(key, record.value)
            elif key.startswith(_STORE):
                self._stores[key] = _decode_store(key, record.value)
            else:
                self._records[key] = _decode_owner(key, record.value)
        except MALFORMED as error:
            # An unreadable record changes nothing: the entry before it stays.
            if len(self._malformed) < MAX_NAMED:
                self._malformed[key] = record.offset
                logger.warning(
                    "%s offset %d isn't a record of the registry, and is skipped; its key is %s: %s",
                    self._source,
                    record.offset,
                    show_bytes(key),
                    error,
                )

    async def _read_to_end(self) -> None:
        bounds = await self._logs.bounds(self._source)
        if bounds.end < self._next_offset:
            text = "%s ends at offset %d, and was read up to %d: it was re-created or lost records; it is read again"
            logger.warning(text, self._source, bounds.end, self._next_offset)
            self._next_offset = bounds.start
        self._next_offset = max(self._next_offset, bounds.start)
        while self._next_offset < bounds.end:
            await self._read(self._next_offset, bounds.end)

    async def _read(self, start: int, end: int) -> None:
        """Read to `end`, and skip records that can't be read: changelogs and offsets have the epochs as well."""
        try:
            async for records, next_offset in self._logs.read(self._source, start, end):
                for record in records:
                    self._take(record)
                self._next_offset = next_offset
        except UnreadableLogError as error:
            logger.warning("the registry of owners skips records that can't be read: %s", error)
            self._next_offset = error.next_offset


def _decode_owner(key: bytes, raw: bytes) -> OwnerRecord:
    record = msgspec.json.decode(raw, type=OwnerRecord)
    if key != _owner_key(record):
        raise ValueError(f"it is of partition {record.partition} of actor {record.actor[:MAX_WORDS]!r}")
    of_inputs = [number for one in record.inputs for number in (one.input_offset or 0, one.since)]
    numbers = (record.partition, record.epoch, record.at_ms, *of_inputs)
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise ValueError(f"a number in it isn't one from 0 to {MAX_NUMBER}")
    for topic_id in (*(one.topic_id for one in record.inputs), *record.changelog_ids.values()):
        if topic_id:
            uuid.UUID(topic_id)
    return record


def _decode_store(key: bytes, raw: bytes) -> StoreRecord:
    record = msgspec.json.decode(raw, type=StoreRecord)
    if key != _STORE + record.store.encode():
        raise ValueError(f"it is of store {record.store[:MAX_WORDS]!r}")
    if not all(0 <= number <= MAX_NUMBER for number in (record.at_ms, record.version)):
        raise ValueError(f"a number in it isn't one from 0 to {MAX_NUMBER}")
    return record


def encode_stores(records: Mapping[str, StoreRecord]) -> dict[bytes, bytes]:
    """Return the registry's records of stores, by key."""
    return {_STORE + store.encode(): msgspec.json.encode(record) for store, record in records.items()}


async def write_stores(connection: Connection, topic: str, records: Mapping[str, StoreRecord]) -> None:
    """Write the records of stores into the registry, by name. Returns when the brokers have them.

    Raises:
        BrokerUnavailableError: they may not have.
    """
    await _write(connection, topic, encode_stores(records))


async def write_owners(connection: Connection, topic: str, records: Iterable[OwnerRecord]) -> None:
    """Write the records of tasks into the registry. Returns when the brokers have them.

    Raises:
        BrokerUnavailableError: they may not have.
    """
    await _write(connection, topic, {_owner_key(one): msgspec.json.encode(asdict(one)) for one in records})


async def write_pause(connection: Connection, topic: str, pause: Pause | Release) -> None:
    """Write the record of a pause, of its end or of a release into the registry. Returns when the brokers have it.

    Raises:
        BrokerUnavailableError: they may not have.
    """
    if isinstance(pause, Release):
        key = release_key(pause.actor, pause.topic, pause.partition)
    else:
        key = pause_key(pause.actor, pause.partition)
    await _write(connection, topic, {key: msgspec.json.encode(pause)})


async def forget_owners(
    connection: Connection, topic: str, records: Iterable[OwnerRecord], pauses: Iterable[bytes]
) -> None:
    """Remove the records of tasks, and of pauses by their keys, from the registry. Returns when that is done.

    Raises:
        BrokerUnavailableError: they may not have.
    """
    await _write(connection, topic, dict.fromkeys([*map(_owner_key, records), *pauses]))


async def _write(connection: Connection, topic: str, values: Mapping[bytes, bytes | None]) -> None:
    async with producing(f"writing into {topic}", connection, "registry", acks="all") as producer:
        for key, value in values.items():
            await producer.send_and_wait(topic, value, key, partition=0)


def newest_owners(owners: Iterable[OwnerRecord]) -> dict[str, OwnerRecord]:
    """Return the newest record of each actor: after its input was changed, older ones are of the former topic."""
    return {owner.actor: owner for owner in sorted(owners, key=lambda owner: owner.at_ms)}
