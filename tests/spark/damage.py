"""A log with two owners, the stores of a worker that followed it, and ways to damage both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from stores._core.record import Position, encode_metadata
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.kafka.helpers import make_topics, producing, unique
from tests.spark.helpers import NOW_MS, PARTITIONS, Log, Transaction, Write, append, fold, home, put

OLD, NEW = 3, 5
TAKEN_OVER = 50
"""Where the newer owner began in the input."""
PAST_MS = NOW_MS - 1_000


@dataclass
class Worker:
    """A worker's data folder, open as a running worker has it."""

    path: Path
    app: str
    stores: list[RocksStore] = field(default_factory=list)
    closing: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def of(cls, log: Log, path: Path, positions: Sequence[int], *, epoch: int = NEW) -> Worker:
        app = log.topic.removesuffix("--store-changelog")
        worker = cls(path, app)
        folder = DataFolder.open(path / "v1" / "actors", app=app)
        worker.closing.callback(folder.close)
        for partition in range(PARTITIONS):
            store = RocksStore.open(folder.store_path("store", partition))
            worker.closing.callback(store.close)
            worker.stores.append(store)
            place = Position(100, positions[partition], NOW_MS, epoch, "")
            store.apply([(key, with_metadata(write)) for key, write in held(log, partition, positions)], place)
        return worker

    def plant(self, partition: int, key: bytes, write: Write | None) -> None:
        store = self.stores[partition]
        position = store.position()
        assert position is not None
        store.apply([(key, None if write is None else with_metadata(write))], position)


def held(log: Log, partition: int, positions: Sequence[int]) -> list[tuple[bytes, Write]]:
    """What a worker has: expired keys too."""
    state = fold(log.records, before=list(positions), as_of_ms=0)
    return [(key, write) for (place, key), write in state.items() if place == partition and key is not None]


def with_metadata(write: Write) -> bytes:
    return encode_metadata(write.epoch, write.source_offset, write.expires_at_ms) + (write.value or b"")


def by(epoch: int, source_offset: int, key: str, value: str | None, **rest: int) -> Write:
    return put(key, value, epoch=epoch, source_offset=source_offset, **rest)


def named_log(brokers: str, config: dict[str, str] | None = None) -> Log:
    """An empty changelog whose name says app and store."""
    log = Log(f"{unique('app')}--store-changelog", [])
    asyncio.run(make_topics(brokers, log.topic, partitions=PARTITIONS, config=config))
    return log


def extend(brokers: str, log: Log, *transactions: Transaction) -> None:
    asyncio.run(append(brokers, log, list(transactions)))


def two_owners() -> list[Transaction]:
    """What both owners wrote before anything went wrong: some keys in each partition."""
    old = [by(OLD, number, f"fine-{number}", f"value {number}") for number in range(20)]
    new = [by(NEW, TAKEN_OVER, f"anchor-{number}", "here") for number in range(20)]
    assert {write.partition for write in old} == {write.partition for write in new} == set(range(PARTITIONS))
    return [Transaction(tuple(old)), Transaction(tuple(new))]


@dataclass(frozen=True)
class Damage:
    """A key whose store is damaged.

    Attributes:
        cause: What has to be named.
        key: The key.
        log: What is written of it, a transaction each.
        plant: What is held in place of what the log says; None: nothing.
        aborted: Writes of it that are aborted.
        elsewhere: Whether it is planted in another partition.
    """

    cause: str
    key: str
    log: tuple[Write, ...]
    plant: Write | None
    aborted: tuple[Write, ...] = ()
    elsewhere: bool = False

    @property
    def partition(self) -> int:
        own = home(self.key.encode())
        return (own + 1) % PARTITIONS if self.elsewhere else own

    @property
    def transactions(self) -> list[Transaction]:
        committed = [Transaction((write,)) for write in self.log]
        return [*(Transaction((write,), committed=False) for write in self.aborted), *committed]


def damages() -> list[Damage]:
    """One of each cause that a store can have, or two."""
    good, bad = by(NEW, 61, "aborted", "good"), by(NEW, 62, "aborted", "bad")
    flipped, kept = by(NEW, 64, "flipped", "a"), by(NEW, 64, "expiry", "a")
    over = by(NEW, 67, "expired", "x", expires_at_ms=PAST_MS)
    new = by(NEW, 72, "contested", "of the new owner")
    invented = by(NEW + 4, 999, "invented", "?")
    twice = (by(OLD, 10, "older", "1"), by(NEW, 60, "older", "2"))
    return [
        Damage("committed_write_missing", "missing", (by(NEW, 59, "missing", "x"),), None),
        Damage("committed_write_missing", "older", (twice[1],), twice[0]),
        Damage("aborted_write", "aborted", (good,), bad, aborted=(bad,)),
        Damage("aborted_write", "aborted-new", (), replace_key(bad, "aborted-new"), (replace_key(bad, "aborted-new"),)),
        Damage("stale_owner", "zombie", (by(NEW, 63, "zombie", "new"),), by(OLD, 63, "zombie", "old")),
        Damage("different_value", "flipped", (flipped,), replace(flipped, value=b"b")),
        Damage("different_value", "expiry", (kept,), replace(kept, expires_at_ms=NOW_MS * 2)),
        Damage(
            "deleted_key_back",
            "deleted",
            (by(NEW, 65, "deleted", "x"), by(NEW, 66, "deleted", None)),
            by(NEW, 65, "deleted", "x"),
        ),
        Damage("expired_key_held", "expired", (over, by(NEW, 68, "expired", None)), over),
        Damage("wrong_partition", "stray", (by(NEW, 69, "stray", "x"),), by(NEW, 69, "stray", "x"), elsewhere=True),
        Damage("never_committed", "invented", (), invented),
        Damage("overlapping_owners", "contested", (new, by(OLD, 73, "contested", "of the old owner")), new),
    ]


def replace_key(write: Write, key: str) -> Write:
    return replace(write, key=key.encode(), partition=home(key.encode()))


async def produce(brokers: str, topic: str, records: Iterable[tuple[bytes, int]]) -> None:
    """Write records with a time, without a transaction."""
    async with producing(brokers) as producer:
        for key, at_ms in records:
            await producer.send_and_wait(topic, b"x", key, timestamp_ms=at_ms)
