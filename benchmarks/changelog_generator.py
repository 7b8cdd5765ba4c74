"""A changelog of any size as the framework writes one, with the state it stands for known beforehand.

What record number n is (its key, value, metadata, whether it is a tombstone) follows from n and the seed alone. So the
last committed number of each key says what the state is; nothing that was written has to be remembered.

* Keys: about 1 / rank (Zipf with the exponent 1), half as many names as records if nothing else is asked for; the first
  takes about one in 20.
* One record in 20 is a tombstone. Of the others one in 10 has expired at `NOW_MS`, one in 5 expires later.
* Owners: the epoch goes up by one seven times, the source offset with every record.
* Transactions of 10,000 records; one in 50 is aborted.
* Compaction has been over a part of the log: the first quarter, less each partition's active segment. The rest is kept
  from it, so that a measurement doesn't share the machine with it.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from numpy.typing import NDArray

from actors._core.partitioner import partitions_for
from benchmarks.peers.broker import producing
from dev.kafka import Cluster
from stores._core.manifest import MANIFEST, Manifest, ManifestPartition, encode_manifest, partition_file
from stores._core.record import METADATA_HEADER, METADATA_VERSION, NEVER, Position, pack_metadata

NOW_MS = 1_760_000_000_000
"""The time at which keys count as expired; records were written before it."""
BROKER = {"log.cleaner.backoff.ms": "500"}
"""Settings of a broker that is to compact soon."""
PARTITIONS = 4
EPOCHS = 8
TRANSACTION = 10_000
VALUE_BYTES = 100

_ABORTED = (50, 7)
_COMPACTED_SHARE = 4
_HOUR_MS = 3_600_000
_BATCH_BYTES = 900_000
_SMALLEST_SEGMENT = 1 << 20
_LARGEST_SEGMENT = 32 << 20
_RECORD_BYTES = 170
_CHUNK = 1_000_000
_DEADLINE_S = 120.0
_FOREVER_MS = 2**63 - 1

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records by number, one entry each in every array; `expires_at_ms` is `NEVER` in most."""

    numbers: Numbers
    keys: Numbers
    is_tombstone: NDArray[np.bool_]
    expires_at_ms: Numbers
    epochs: Numbers
    fillers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which changelog.

    Attributes:
        records: How many are written, aborted ones too; from 200,000 on there is a segment to compact.
        seed: Another seed, another log.
        keys: How many keys there may be; 0: half as many as records.
    """

    records: int
    seed: int = 1
    keys: int = 0

    @property
    def names(self) -> int:
        """How many keys there may be; most of the rare ones never come."""
        return max(2, self.keys or self.records // 2)

    def of(self, numbers: Numbers) -> Records:
        """Return the records with these numbers."""
        first, second = _mixed(numbers, 2 * self.seed), _mixed(numbers, 2 * self.seed + 1)
        share = (first >> np.uint64(11)).astype(np.float64) / 2.0**53
        keys = np.minimum(np.exp(share * np.log(self.names)).astype(np.int64) - 1, self.names - 1)
        kind = _digits(second, 0, 100)
        until = np.where(kind < 10, NOW_MS - _HOUR_MS * (kind % 2), NOW_MS + _HOUR_MS)
        is_tombstone = _digits(second, 16, 100) < 5
        return Records(
            numbers=numbers,
            keys=keys,
            is_tombstone=is_tombstone,
            expires_at_ms=np.where((kind < 30) & ~is_tombstone, until, NEVER),
            epochs=1 + numbers * EPOCHS // self.records,
            fillers=_digits(second, 32, len(_NOISE) - VALUE_BYTES),
        )

    def is_aborted(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Tell which of the records are in transactions that are aborted."""
        every, at = _ABORTED
        transactions: Numbers = numbers // TRANSACTION % every
        return np.equal(transactions, at)


@dataclass(frozen=True, slots=True)
class State:
    """What a changelog stands for at `NOW_MS`: how many keys, and the sum of their rows' CRC-32.

    A row is the key, the value and the text `epoch,source offset,expires_at_ms`, one after the other.
    """

    keys: int
    checksum: int


def survivors(shape: Shape) -> Iterator[Records]:
    """Yield the records that the state consists of, in order, in chunks."""
    last = np.full(shape.names, -1, dtype=np.int64)
    for start in range(0, shape.records, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, shape.records), dtype=np.int64)
        committed = numbers[~shape.is_aborted(numbers)]
        # where a key comes twice the later one stays
        last[shape.of(committed).keys] = committed
    numbers = np.sort(last[last >= 0])
    for start in range(0, len(numbers), _CHUNK):
        found = shape.of(numbers[start : start + _CHUNK])
        expired = (found.expires_at_ms != NEVER) & (found.expires_at_ms <= NOW_MS)
        yield shape.of(found.numbers[~found.is_tombstone & ~expired])


def write_state(shape: Shape, folder: Path, *, topic: str, topic_id: str, positions: Sequence[int]) -> State:
    """Write the state as a worker that owns all partitions exports it, and give its checksum.

    Args:
        shape: The changelog.
        folder: Is made.
        topic: The changelog's topic.
        topic_id: What Kafka gave it.
        positions: In each partition the offset that the export belongs to.
    """
    folder.mkdir(parents=True)
    writers = [pq.ParquetWriter(folder / partition_file(number), _EXPORT) for number in range(PARTITIONS)]
    counts, checksum = [0] * PARTITIONS, 0
    for records in survivors(shape):
        keys, values = list(map(_key, records.keys.tolist())), list(_values(records))
        homes = np.array(partitions_for(keys, PARTITIONS), dtype=np.int32)
        written = zip(records.epochs.tolist(), records.numbers.tolist(), records.expires_at_ms.tolist(), strict=True)
        rows = zip(keys, values, written, strict=True)
        checksum += sum(zlib.crc32(key + (value or b"") + b"%d,%d,%d" % metadata) for key, value, metadata in rows)
        table = pa.table([homes, keys, values, records.numbers, records.epochs, records.expires_at_ms], schema=_EXPORT)
        for number, writer in enumerate(writers):
            part = table.filter(homes == number)
            counts[number] += len(part)
            writer.write_table(part)
    for writer in writers:
        writer.close()
    at = [Position(shape.records, offset, NOW_MS, EPOCHS, topic_id) for offset in positions]
    parts = (ManifestPartition(n, partition_file(n), counts[n], at[n]) for n in range(PARTITIONS))
    manifest = Manifest(
        app="bench",
        store="state",
        changelog=topic,
        placement="key",
        worker="worker-1",
        exported_at_ms=NOW_MS,
        partition_count=PARTITIONS,
        partitions=tuple(parts),
    )
    (folder / MANIFEST).write_text(encode_manifest(manifest))
    return State(sum(counts), checksum)


async def write_changelog(cluster: Cluster, topic: str, shape: Shape) -> None:
    """Make the topic and write the changelog; the broker is to have the settings `BROKER`.

    Raises:
        RuntimeError: The topic can't be made, or compaction doesn't come in two minutes.
    """
    segment = shape.records * _RECORD_BYTES // (PARTITIONS * _COMPACTED_SHARE * 4)
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.bytes": str(min(max(segment, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)),
    }
    await _make_topic(cluster.bootstrap, topic, settings)
    homes = np.array(partitions_for(list(map(_key, range(shape.names))), PARTITIONS), dtype=np.int8)
    writer = _Writer(topic, shape, homes)
    transactions = -(-shape.records // TRANSACTION)
    compacted = transactions // _COMPACTED_SHARE
    async with _producing(cluster.bootstrap, topic) as producer:
        await writer.write(producer, range(compacted))
        await _wait_for(lambda: _is_cleaned(cluster, topic), f"no compaction of {topic}")
        await _set_topic(cluster.bootstrap, topic, settings | {"min.compaction.lag.ms": str(_FOREVER_MS)})
        await writer.write(producer, range(compacted, transactions))


@dataclass(frozen=True, slots=True)
class _Writer:
    topic: str
    shape: Shape
    homes: NDArray[np.int8]

    async def write(self, producer: AIOKafkaProducer, transactions: range) -> None:
        """Build each transaction while the one before it is on its way."""
        building = asyncio.create_task(asyncio.to_thread(self._build, producer, transactions.start))
        for transaction in transactions:
            built = await building
            building = asyncio.create_task(asyncio.to_thread(self._build, producer, transaction + 1))
            await self._send(producer, transaction, built)
        await building

    async def _send(self, producer: AIOKafkaProducer, transaction: int, batches: list[tuple[int, Any]]) -> None:
        await producer.begin_transaction()
        sent = [await producer.send_batch(batch, self.topic, partition=home) for home, batch in batches]
        await asyncio.gather(*sent)
        if self.shape.is_aborted(np.array([transaction * TRANSACTION]))[0]:
            await producer.abort_transaction()
        else:
            await producer.commit_transaction()

    def _build(self, producer: AIOKafkaProducer, transaction: int) -> list[tuple[int, Any]]:
        end = min((transaction + 1) * TRANSACTION, self.shape.records)
        records = self.shape.of(np.arange(transaction * TRANSACTION, end, dtype=np.int64))
        batches = [producer.create_batch() for _ in range(PARTITIONS)]
        full = []
        rows = zip(
            records.numbers.tolist(),
            records.keys.tolist(),
            _values(records),
            records.epochs.tolist(),
            records.expires_at_ms.tolist(),
            self.homes[records.keys].tolist(),
            strict=True,
        )
        for number, key, value, epoch, expires_at_ms, home in rows:
            record = {
                "timestamp": NOW_MS - _HOUR_MS,
                "key": _key(key),
                "value": value,
                "headers": [(METADATA_HEADER, pack_metadata(METADATA_VERSION, epoch, number, expires_at_ms))],
            }
            if batches[home].append(**record) is None:
                full.append((home, batches[home]))
                batches[home] = producer.create_batch()
                batches[home].append(**record)
        return full + [(home, batch) for home, batch in enumerate(batches) if batch.record_count()]


_NOISE = np.random.default_rng(0).bytes(1 << 20)
_EXPORT = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("source_offset", pa.int64()),
        ("epoch", pa.int64()),
        ("expires_at_ms", pa.int64()),
    ]
)


def _mixed(numbers: Numbers, salt: int) -> NDArray[np.uint64]:
    """Scatter numbers over 64 bits (SplitMix64, Steele et al. 2014)."""
    golden = 0x9E3779B97F4A7C15
    z = (numbers.astype(np.uint64) + np.uint64(salt * 0xD1B54A32D192ED03 & _MASK)) * np.uint64(golden)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


_MASK = 2**64 - 1


def _digits(mixed: NDArray[np.uint64], shift: int, below: int) -> Numbers:
    return ((mixed >> np.uint64(shift)) % np.uint64(below)).astype(np.int64)


def _key(number: int) -> bytes:
    return b"key-%012d" % number


def _values(records: Records) -> Iterator[bytes | None]:
    """Noise that doesn't compress, behind the record's number."""
    rest = VALUE_BYTES - 16
    rows = zip(records.numbers.tolist(), records.fillers.tolist(), records.is_tombstone.tolist(), strict=True)
    for number, at, is_tombstone in rows:
        yield None if is_tombstone else b"%016d" % number + _NOISE[at : at + rest]


@asynccontextmanager
async def _producing(brokers: str, topic: str) -> AsyncIterator[AIOKafkaProducer]:
    options = {"max_batch_size": _BATCH_BYTES, "linger_ms": 0, "retry_backoff_ms": 2}
    async with producing(brokers, transactional_id=f"{topic}-writer", **options) as producer:
        yield producer


async def _make_topic(brokers: str, topic: str, settings: dict[str, str]) -> None:
    async with _admin(brokers) as admin:
        answer = await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=settings)])
    if any(error[1] for error in answer.topic_errors):
        raise RuntimeError(f"{topic} can't be made: {answer.topic_errors}")


async def _set_topic(brokers: str, topic: str, settings: dict[str, str]) -> None:
    """Give a topic these settings, and no others."""
    async with _admin(brokers) as admin:
        (answer,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    if any(error[0] for error in answer.resources):
        raise RuntimeError(f"{topic} can't be set: {answer.resources}")


@asynccontextmanager
async def _admin(brokers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def _is_cleaned(cluster: Cluster, topic: str) -> bool:
    """Tell whether the cleaner has been up to each partition's active segment."""
    folder = cluster.data_dir(1)
    checkpoint = folder / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    cleaned = {int(line.split()[1]): int(line.split()[2]) for line in lines if line.startswith(f"{topic} ")}
    active = [max(int(log.stem) for log in (folder / f"{topic}-{n}").glob("*.log")) for n in range(PARTITIONS)]
    return all(cleaned.get(number, 0) >= max(start, 1) for number, start in enumerate(active))


async def _wait_for(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise RuntimeError(f"{what} in {_DEADLINE_S:g} s")
        await asyncio.sleep(0.1)
