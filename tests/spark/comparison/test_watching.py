"""Watching: digests of a log and of stores agree, a planted mismatch is found by them, and what costs no alarm."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from actors.web.queries.digests import DigestsBody, _chosen, _summed, kept
from spark_replay import Source, Workers, kafka
from spark_replay.comparison.watching import Watch, digests_of
from spark_replay.fold.rebuilt import SUMMARY, read_summary
from stores._core.digests import Digests, StoredRow
from stores._core.manifest import with_crc32
from stores._core.record import METADATA_BYTES, Position, encode_metadata
from stores._core.windows import PROGRESS_KEY, decode_progress
from stores.memory import MemoryStore
from tests.examples import examples
from tests.spark.comparison.test_live import Server
from tests.spark.damage import NEW, Worker, by, extend, named_log, two_owners
from tests.spark.fold.test_extending import MemorySource, windowed_log
from tests.spark.helpers import NOW_MS, Log, Transaction, Write, home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (
    "partition int, key binary, value binary, source_offset bigint, epoch bigint, expires_at_ms bigint, "
    "offset bigint, input int"
)


def test_spark_makes_the_digests_that_a_worker_makes(spark: SparkSession) -> None:
    chance, rows, stored = random.Random(7), [], {}
    for number in range(300):
        key, value = chance.randbytes(chance.randint(0, 20)) + b"%d" % number, chance.randbytes(chance.randint(0, 90))
        source, epoch, expires = chance.getrandbits(45), chance.getrandbits(40), chance.choice([0, 2**62, -1])
        place = chance.choice([None, 0, 63])
        rows.append((0, bytearray(key), bytearray(value), source, epoch, expires, number, place))
        stored[key] = encode_metadata(epoch, source, expires, input=place) + value
    state = spark.createDataFrame(rows, ROWS)
    sums = [0] * 16
    # nothing of it has expired then
    list(_summed(sums, iter(stored.items()), -2))
    made = {row["bucket"]: (row["digest"], row["count"]) for row in digests_of(state, F.lit(16)).collect()}
    counts = [sum(zlib.crc32(key) % 16 == bucket for key in stored) for bucket in range(16)]
    assert made == {bucket: (sums[bucket], counts[bucket]) for bucket in range(16)}


@pytest.fixture
def log(brokers: str) -> Log:
    log = named_log(brokers, {"cleanup.policy": "compact"})
    extend(brokers, log, *two_owners(), Transaction((by(NEW, 51, "over", "x", expires_at_ms=NOW_MS),)))
    return log


class Watched:
    """A store whose worker answers, its log, and a watch of both."""

    def __init__(self, source: Source, log: Log, server: Server, folder: str | Path) -> None:
        self.source, self.log, self.server, self.folder = source, log, server, folder
        self.workers = Workers([server.url])

    def compare(self):
        # each time as a process of its own
        return Watch(source=self.source, workers=self.workers, store="store", folder=self.folder).compare()

    def write(self, brokers: str, *writes: Write) -> None:
        """Write to the log and to the store, as the owner does."""
        extend(brokers, self.log, Transaction(writes))
        for write in writes:
            self.server.worker.plant(write.partition, write.key, None if write.value is None else write)
        self.follow()

    def follow(self) -> None:
        """Have the store state the log's end."""
        for partition, store in enumerate(self.server.worker.stores):
            store.apply([], Position(100, self.log.ends[partition], NOW_MS, NEW, ""))


@pytest.fixture
def watched(spark: SparkSession, brokers: str, log: Log, tmp_path: Path) -> Iterator[Watched]:
    worker = Worker.of(log, tmp_path / "data", log.ends)
    server = Server(worker)
    with worker.closing:
        watched = Watched(kafka(spark, brokers, log.topic), log, server, tmp_path / "state")
        yield watched
        watched.workers.close()
        server.close()


def test_a_planted_mismatch_is_named_and_nothing_else(watched: Watched, brokers: str) -> None:
    report = watched.compare()
    assert (report.is_clean, report.counts["equal"], report.notes, report.unanswered) == (True, 40, (), {})
    watched.write(brokers, by(NEW, 60, "fine-1", "since"), by(NEW, 61, "fine-2", None))
    place = home(b"fine-3")
    watched.server.worker.plant(place, b"fine-3", by(NEW, 3, "fine-3", "flipped"))
    report = watched.compare()
    # only what was written since was read
    assert (rebuilt := read_summary(watched.folder)).records == 2
    assert rebuilt.made_from
    assert (report.mismatches, report.counts["equal"]) == (1, 38)
    ((example,),) = report.examples.values()
    offset = next(write.offset for write in watched.log.records if write.key == b"fine-3")
    assert (example.partition, example.key, example.cause) == (place, "fine-3", "never_committed")
    assert example.log is not None
    assert example.export is not None
    assert (example.log["value"], example.log["offset"], example.export["value"]) == ("value 3", offset, "flipped")


@pytest.mark.nightly
def test_what_is_equal_or_mended_is_no_mismatch(watched: Watched, brokers: str) -> None:
    watched.compare()
    watched.write(brokers, by(NEW, 60, "fine-1", "since"), by(NEW, 61, "fine-2", None))
    report = watched.compare()
    assert (report.is_clean, report.counts["equal"], report.notes) == (True, 39, ())
    watched.server.worker.plant(home(b"fine-3"), b"fine-3", by(NEW, 3, "fine-3", "flipped"))
    assert watched.compare().mismatches == 1
    # nothing was written: nothing is read
    assert read_summary(watched.folder).records == 2
    watched.write(brokers, by(NEW, 70, "fine-3", "mended"))
    assert watched.compare().is_clean


@pytest.mark.nightly
def test_rows_of_more_buckets_than_an_answer_holds(watched: Watched) -> None:
    watched.server.most = 2
    keys = [f"fine-{number}".encode() for number in range(20)]
    for key in keys:
        watched.server.worker.plant(home(key), key, None)
    report = watched.compare()
    named = {example.key for examples in report.examples.values() for example in examples}
    assert 3 * 2 <= len(named) == report.mismatches < len(keys)
    assert "not looked at: " in report.notes[0]


@pytest.mark.nightly
def test_keys_that_only_one_side_has(watched: Watched, brokers: str) -> None:
    watched.server.worker.plant(home(b"fine-4"), b"fine-4", None)
    watched.server.worker.plant(home(b"never"), b"never", by(NEW, 9, "never", "x"))
    report = watched.compare()
    named = {example.key: example.cause for examples in report.examples.values() for example in examples}
    # of a compacted log nobody knows what was never in it
    assert named == {"fine-4": "committed_write_missing", "never": "unknown"}


@pytest.mark.nightly
def test_a_key_that_is_written_again_behind_the_position(watched: Watched, brokers: str) -> None:
    """It is no mismatch, and no cause to read the log from its start."""
    watched.compare()
    place = home(b"fine-5")
    other = next(f"fine-{number}" for number in range(20) if number != 5 and home(f"fine-{number}".encode()) == place)
    watched.write(brokers, by(NEW, 80, other, "x"))
    # the owner's store doesn't have this one yet
    late = by(NEW, 81, "fine-5", "later")
    extend(brokers, watched.log, Transaction((late,)))
    report = watched.compare()
    assert (report.is_clean, report.counts["equal"], report.counts["behind_position"]) == (True, 40, 1)
    rebuilt = read_summary(watched.folder)
    assert (rebuilt.unknown, rebuilt.made_from != "", rebuilt.records) == (1, True, 2)
    # the key is known again
    watched.server.worker.plant(place, b"fine-5", late)
    watched.follow()
    assert (watched.compare().is_clean, read_summary(watched.folder).unknown) == (True, 0)


@pytest.mark.nightly
def test_a_state_that_is_damaged_or_too_old_is_made_again(watched: Watched) -> None:
    watched.compare()
    file = next(watched.folder.rglob("*.parquet"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    report = watched.compare()
    assert report.is_clean
    assert "was read from its start" in report.notes[0]
    # compaction may have removed tombstones since
    summary = watched.folder / SUMMARY
    summary.write_text(json.dumps(with_crc32(json.loads(summary.read_text()) | {"made_ms": 0})))
    # the log ends behind the positions, with the marker of the last transaction
    report = watched.compare()
    assert report.is_clean
    assert "is older than the delete.retention.ms" in report.notes[0]


@dataclass
class Disks:
    """Workers whose stores are those of histories at some offsets; of what is past its retention they have a part.

    When rows are asked for, they have come to `later` ones.
    """

    log: list[Any]
    chance: random.Random
    offsets: Sequence[int]
    later: Sequence[int]
    planted: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    urls: tuple[str, ...] = ("disks",)

    def rows(self, partition: int, before: Sequence[int]) -> dict[bytes, bytes]:
        """What the log has below the offset."""
        rows: dict[bytes, bytes] = {}
        for number, offset, key, value, _, headers in self.log:
            if number == partition and offset < before[number]:
                rows.pop(key, None)
                rows |= {} if value is None else {key: headers[0][1] + value}
        return rows

    def kept(self, partition: int, before: Sequence[int]) -> dict[bytes, bytes]:
        rows = self.rows(partition, before)
        expired = decode_progress(rows[PROGRESS_KEY][METADATA_BYTES:]).expired if PROGRESS_KEY in rows else b""
        return {row: raw for row, raw in rows.items() if row[:1] != expired[:1] or row >= expired}

    def digests(
        self, store: str, partition: int, *, as_of_ms: int, buckets: int | None = None, rows: Sequence[int] = ()
    ) -> Digests:
        own, before = MemoryStore(), self.later if rows else self.offsets
        part = self.kept(partition, before)
        part |= {row: raw for row, raw in self.rows(partition, before).items() if self.chance.random() < 0.5}
        part |= {row: raw for (number, row), raw in self.planted.items() if number == partition}
        position = Position(0, before[partition], NOW_MS, 1, "")
        own.apply(list(part.items()), position)
        body, chosen, sums = DigestsBody(partition, as_of_ms, buckets, list(rows)), list[StoredRow](), [0] * 2
        if rows:
            list(_chosen(chosen, kept(own, own.scan()), body, took=lambda _: None))
        else:
            list(_summed(sums, kept(own, own.scan()), as_of_ms))
        return Digests(position, [] if rows else sums, chosen)


def planted(chance: random.Random, disks: Disks) -> Mapping[tuple[int, bytes], bytes]:
    """A row with another value."""
    numbers = range(len(disks.later))
    rows = [(number, *row) for number in numbers for row in sorted(disks.kept(number, disks.later).items())]
    number, row, raw = chance.choice([place for place in rows if place[1][:1] in (b"w", b"k", b"j")])
    return {(number, row): raw[:METADATA_BYTES] + raw[METADATA_BYTES : METADATA_BYTES + 1] + b"planted"}


@pytest.mark.parametrize("seed", range(examples(4)))
def test_windows_and_joins_of_random_histories(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Nothing is named but what is planted, whatever disks lack and compaction takes."""
    chance = random.Random(seed)
    source: MemorySource = windowed_log(spark, chance)
    offsets = [sorted(chance.randint(0, end) for _ in range(2)) for end in source.ends]
    log, steps = source.log, [*zip(*offsets, strict=True), source.ends]
    for step, later in zip(steps, [*steps[1:], source.ends], strict=True):
        if chance.random() < 0.6:
            source = source.compacted(chance.randint(source.cleaned, max(source.ends)))
        disks: Any = Disks(log, chance, step, later)
        report = Watch(
            source=source, workers=disks, store="store", folder=tmp_path / "state", placement="task"
        ).compare()
        assert (report.mismatches, report.unanswered) == (0, {}), report
    assert report.compared == sum(len(disks.kept(number, later)) for number in range(len(source.ends)))
    # at the log's end each key is known: no row has to be read
    assert not any("differ" in note for note in report.notes), report.notes
    disks = Disks(log, chance, steps[1], source.ends)
    disks.planted = planted(chance, disks)
    report = Watch(source=source, workers=disks, store="store", folder=tmp_path / "state", placement="task").compare()
    assert report.mismatches == report.counts["different"] == 1
    ((number, row),) = disks.planted
    ((example,),) = report.examples.values()
    assert (example.partition, row[-1:].decode()) == (number, example.key[0])
    assert example.log is not None
    assert example.log["offset"] == max(record[1] for record in log if record[0] == number and record[2] == row)
