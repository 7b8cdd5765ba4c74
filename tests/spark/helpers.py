"""Changelogs on a real broker, a fold of them in plain Python, and exports to be damaged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.partitioner import murmur2
from aiokafka.structs import TopicPartition

from stores._core.manifest import MANIFEST, Manifest, ManifestPartition, encode_manifest, partition_file
from stores._core.record import METADATA_HEADER, Position, encode_metadata
from tests.kafka.helpers import make_topics, unique

PARTITIONS = 3
NOW_MS = 1_760_000_000_000
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("source_offset", pa.int64()),
        ("epoch", pa.int64()),
        ("expires_at_ms", pa.int64()),
        ("input", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Write:
    partition: int
    key: bytes | None
    value: bytes | None
    source_offset: int = 0
    epoch: int = 1
    expires_at_ms: int = 0
    headers: tuple[tuple[str, bytes], ...] | None = None
    offset: int = -1
    timestamp_ms: int | None = None
    input: int | None = None

    @property
    def wire_headers(self) -> list[tuple[str, bytes]]:
        if self.headers is not None:
            return list(self.headers)
        return [(METADATA_HEADER, self._metadata())]

    def _metadata(self) -> bytes:
        return encode_metadata(self.epoch, self.source_offset, self.expires_at_ms, input=self.input)


@dataclass(frozen=True)
class Transaction:
    writes: tuple[Write, ...]
    committed: bool = True


@dataclass
class Log:
    """A changelog as it was written: the committed records by offset, and each partition's end."""

    topic: str
    records: list[Write]
    ends: list[int] = field(default_factory=list)


def home(key: bytes, partitions: int = PARTITIONS) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def put(key: str, value: str | None, **rest: int) -> Write:
    raw = key.encode()
    return Write(home(raw), raw, None if value is None else value.encode(), **rest)


def random_transactions(seed: int, *, count: int, keys: int) -> list[Transaction]:
    chance = random.Random(seed)
    transactions = []
    offset = 0
    for _ in range(count):
        names = chance.sample(range(keys), k=chance.randint(1, 12))
        writes = []
        for name in names:
            value = None if chance.random() < 0.25 else chance.randbytes(chance.randint(0, 40)).hex()
            expires = chance.choice([0, 0, 0, NOW_MS - 1, NOW_MS, NOW_MS + 1])
            writes.append(put(f"key-{name}", value, source_offset=offset, epoch=7, expires_at_ms=expires))
            offset += 1
        transactions.append(Transaction(tuple(writes), committed=chance.random() < 0.8))
    return transactions


def write_log(
    brokers: str, transactions: Iterable[Transaction], *, config: dict[str, str] | None = None, store: str = ""
) -> Log:
    """Write a changelog; the name of its store ends with `store`."""
    return asyncio.run(_write_log(brokers, list(transactions), config, store))


async def _write_log(brokers: str, transactions: list[Transaction], config: dict[str, str] | None, store: str) -> Log:
    log = Log(f"{unique('app--store')}{store and '-'}{store}-changelog", [])
    await make_topics(brokers, log.topic, partitions=PARTITIONS, config=config)
    await append(brokers, log, transactions)
    return log


async def cut_log(brokers: str, topic: str, before: dict[int, int]) -> None:
    """Delete a log's records below offsets, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_records(
            {TopicPartition(topic, number): RecordsToDelete(offset) for number, offset in before.items()}
        )
    finally:
        await admin.close()


async def append(brokers: str, log: Log, transactions: list[Transaction]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=brokers, transactional_id=unique("t"), linger_ms=0, retry_backoff_ms=2
    )
    await producer.start()
    try:
        for transaction in transactions:
            await producer.begin_transaction()
            futures = [
                await producer.send(
                    log.topic,
                    write.value,
                    write.key,
                    partition=write.partition,
                    headers=write.wire_headers,
                    timestamp_ms=write.timestamp_ms,
                )
                for write in transaction.writes
            ]
            sent = [await future for future in futures]
            if not transaction.committed:
                await producer.abort_transaction()
                continue
            await producer.commit_transaction()
            log.records += [
                replace(write, offset=done.offset) for write, done in zip(transaction.writes, sent, strict=True)
            ]
    finally:
        await producer.stop()
    # the position after a commit lies behind its marker; that of a partition never written to is 0
    last = {write.partition: write.offset for write in log.records}
    log.ends = [last.get(partition, -1) + 1 for partition in range(PARTITIONS)]


def fold(
    records: Iterable[Write], *, before: Sequence[int | None] | None = None, as_of_ms: int = NOW_MS
) -> dict[tuple[int, bytes | None], Write]:
    """The state that records stand for, the plain way."""
    state: dict[tuple[int, bytes | None], Write] = {}
    for write in sorted(records, key=lambda write: write.offset):
        limit = before[write.partition] if before else None
        if limit is not None and write.offset >= limit:
            continue
        state[write.partition, write.key] = write
    return {
        place: write
        for place, write in state.items()
        if write.value is not None and not (write.expires_at_ms and write.expires_at_ms <= as_of_ms)
    }


@dataclass
class Export:
    """One worker's export, in memory until `write`: change what you like first."""

    topic: str
    rows: dict[int, list[Write]]
    positions: dict[int, Position]
    worker: str = "worker-1"
    changelog: str | None = None
    app: str = "app"
    placement: str = "key"
    partition_count: int = PARTITIONS
    exported_at_ms: int = NOW_MS
    claimed: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, log: Log, *, positions: Sequence[int] | None = None, epoch: int = 7) -> Export:
        at = list(log.ends if positions is None else positions)
        rows: dict[int, list[Write]] = {partition: [] for partition in range(PARTITIONS)}
        for (partition, _), write in fold(log.records, before=at).items():
            rows[partition].append(write)
        places = {partition: Position(0, offset, NOW_MS, epoch, "") for partition, offset in enumerate(at)}
        return cls(log.topic, rows, places)

    def find(self, key: bytes) -> Write:
        return next(write for write in self.rows[home(key)] if write.key == key)

    def replace(self, key: bytes, **changes: object) -> None:
        rows = self.rows[home(key)]
        rows[rows.index(self.find(key))] = replace(self.find(key), **changes)

    def remove(self, key: bytes) -> Write:
        found = self.find(key)
        self.rows[home(key)].remove(found)
        return found

    def write(self, folder: Path) -> Path:
        own = folder / self.worker
        own.mkdir(parents=True)
        parts = []
        for partition, rows in self.rows.items():
            columns = {
                "partition": [self.claimed.get(row.key or b"", partition) for row in rows],
                **{name: [getattr(row, name) for row in rows] for name in SCHEMA.names[1:]},
            }
            pq.write_table(pa.table(columns, schema=SCHEMA), own / partition_file(partition))
            parts.append(ManifestPartition(partition, partition_file(partition), len(rows), self.positions[partition]))
        manifest = Manifest(
            app=self.app,
            store="store",
            changelog=self.changelog or self.topic,
            placement=self.placement,
            worker=self.worker,
            exported_at_ms=self.exported_at_ms,
            partition_count=self.partition_count,
            partitions=tuple(parts),
        )
        (own / MANIFEST).write_text(encode_manifest(manifest))
        return folder
