"""Snapshots by Spark: a store that begins from one ends as one that read all of the changelog."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from actors.runtime.state import restore
from actors.runtime.state.restore import Changelog, Restored, Restorer
from spark_replay import AppError, ReadError, TargetError, WrongTopicError, kafka
from spark_replay.cli import main
from spark_replay.snapshot import snapshot as writing
from spark_replay.snapshot.publish import publish_state
from spark_replay.snapshot.snapshot import require_store, write_snapshot
from spark_replay.snapshot.tables import batch_rows, tables_of
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.kafka import KafkaSource
from stores._core.record import METADATA_BYTES, METADATA_HEADER, encode_metadata
from stores._core.snapshot import SNAPSHOT_MANIFEST, decode_snapshot
from stores.memory import MemoryStore
from stores.ports import PartitionStore
from stores.rocks import RocksStore
from stores.snapshot import SnapshotFolder
from tests.kafka.helpers import unique
from tests.logs import Clock, Record
from tests.logs import Log as Partition
from tests.spark.helpers import PARTITIONS, Log, Transaction, Write, append, fold, home, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


def changelog(app: str) -> str:
    return f"{unique(f'{app}--store')}-changelog"


def owners(seed: int, *, count: int, epoch: int = 1, inputs: Sequence[int] = (1,)) -> list[Transaction]:
    """Commits of owners in growing epochs, some aborted, and what another program wrote in between.

    Each owner has the next of the numbers of `inputs`, from the first one again behind the last.
    """
    chance = random.Random(seed)
    transactions, offset = [], 0
    for _ in range(count):
        if chance.random() < 0.1:
            epoch, offset = epoch + 1, max(0, offset - chance.randint(0, 30))
        has = inputs[epoch % len(inputs)]
        writes = []
        for name in chance.sample(range(60), k=chance.randint(1, 8)):
            value = None if chance.random() < 0.3 else chance.randbytes(chance.randint(0, 20)).hex()
            write = put(
                f"key-{name}", value, source_offset=offset, epoch=epoch, expires_at_ms=chance.choice([0, 0, 5, 2**42])
            )
            if has > 1:
                place = chance.randrange(has)
                metadata = encode_metadata(epoch, offset // (place + 1), write.expires_at_ms, input=place)
                write = replace(write, headers=((METADATA_HEADER, metadata),))
            if chance.random() < 0.1:
                write = replace(write, headers=chance.choice([(), (("other", b"x"),), ((METADATA_HEADER, b"short"),)]))
            elif chance.random() < 0.1:
                written = (encode_metadata(epoch, offset), encode_metadata(epoch, offset, 7))
                write = replace(write, headers=(("a", b"b"), *((METADATA_HEADER, metadata) for metadata in written)))
            writes.append(write)
            offset += 1
        transactions.append(Transaction(tuple(writes), committed=chance.random() < 0.8))
    transactions.append(Transaction((Write(0, None, b"no state"),)))
    return transactions


def restored(
    log: Log, number: int, changelog_id: str, *, snapshots: SnapshotFolder | None = None, store: PartitionStore
) -> tuple[Restored, list[int]]:
    """Restore a partition as a worker does, from the records as they were written; tell which were read too."""
    records = [
        Record(write.offset, write.key, write.value, write.wire_headers)
        for write in sorted(log.records, key=lambda write: write.offset)
        if write.partition == number
    ]
    part = Partition(records, end=log.ends[number] + 1)
    clock = Clock()
    clock.now_ms = writing.now_ms()
    changelog = Changelog(require_store(log.topic, "app"), log.topic, changelog_id, DAY_MS, 1_000_000, PARTITIONS)
    restorer = Restorer(part, clock, clock_skew_margin_ms=1000, snapshots=snapshots)
    return asyncio.run(restorer.restore(store, changelog, number)), part.given


def source_of(spark: SparkSession, brokers: str, topic: str) -> KafkaSource:
    return kafka(spark, brokers, topic)


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, owners(7, count=60))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("seed", "inputs"),
    [(1, (1,)), (2, (1,)), (3, (2,)), (4, (1, 3, 1))],
)
def test_a_snapshot_and_the_tail_are_the_changelog(
    spark: SparkSession,
    brokers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    inputs: tuple[int, ...],
):
    monkeypatch.setattr(writing, "ROWS_PER_FILE", 7)
    monkeypatch.setattr(restore, "LOOK_BACK", 2)
    log = write_log(brokers, owners(seed, count=60, inputs=inputs))
    source = source_of(spark, brokers, log.topic)
    began_ms, asked_ms, describe = writing.now_ms(), [], KafkaSource.describe

    def asked(source: KafkaSource) -> Topic:
        asked_ms.append(writing.now_ms())
        return describe(source)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSource, "describe", asked)
        done = write_snapshot(source, app="app", to=tmp_path / "snapshots")
    cut = source.describe()
    assert done.records == sum(write.key is not None for write in log.records)
    assert done.without_metadata > 0
    before = [restored(log, number, cut.topic_id, store=MemoryStore())[0].position for number in range(PARTITIONS)]
    asyncio.run(append(brokers, log, owners(seed + 10, count=15, epoch=9, inputs=inputs)))
    folder, keys = SnapshotFolder(tmp_path / "snapshots", app="app"), 0
    for number in range(PARTITIONS):
        store = RocksStore.open(tmp_path / str(number))
        by_log, _ = restored(log, number, cut.topic_id, store=MemoryStore())
        by_snapshot, read = restored(log, number, cut.topic_id, snapshots=folder, store=store)
        assert list(store.scan()) == list(by_log.store.scan())
        assert replace(by_snapshot.position, wall_time_ms=0) == replace(by_log.position, wall_time_ms=0)
        # a worker also looks whether the last records before the snapshot's end are those that it has
        assert read == [w.offset for w in log.records if w.partition == number and w.offset >= cut.ends[number] - 2]
        part = folder.find(require_store(log.topic, "app"), number)
        at_cut = replace(before[number], changelog_offset=cut.ends[number], wall_time_ms=part.position.wall_time_ms)
        assert part.position == at_cut, "what the tail's owners wrote may hide it"
        assert began_ms <= part.position.wall_time_ms <= asked_ms[0], "deletes may escape what is read from then on"
        assert number or len(part.part.tables) > 1, "one table says nothing of their order"
        keys += part.keys
        store.close()
    assert done.keys == keys


def test_an_empty_changelog(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [])
    done = write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path)
    assert (done.keys, done.records, done.size_bytes) == (0, 0, 0)
    [store] = tmp_path.iterdir()
    parts = decode_snapshot((store / SNAPSHOT_MANIFEST).read_text()).partitions
    assert [(part.position.epoch, part.position.source_offset, part.tables) for part in parts] == [(0, 0, ())] * 3


def test_keys_sort_by_their_bytes_not_by_sign_or_letters(spark: SparkSession, brokers: str, tmp_path: Path):
    keys = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00", "é".encode(), b"Z"]
    writes = tuple(Write(1, key, b"v", epoch=2, source_offset=n) for n, key in enumerate(keys))
    log = write_log(brokers, [Transaction(writes)])
    write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path)
    snapshot = SnapshotFolder(tmp_path, app="app").find(require_store(log.topic, "app"), 1)
    assert [key for key, _ in snapshot.rows()] == sorted(keys)
    assert (snapshot.position.epoch, snapshot.position.source_offset) == (2, len(keys))


def test_an_open_transaction_is_behind_the_snapshot(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction((put("a", "1"),))])
    source, loop = source_of(spark, brokers, log.topic), asyncio.new_event_loop()
    cut = source.describe().ends[home(b"a")]
    producer = loop.run_until_complete(transacting(brokers))
    try:
        for write in (put("a", "2"), put("a", "3")):
            sent = producer.send_and_wait(
                log.topic, write.value, write.key, partition=write.partition, headers=write.wire_headers
            )
            loop.run_until_complete(sent)
        with pytest.raises(ReadError, match="a transaction is open"):
            publish_state(source, source_of(spark, brokers, changelog("new")))
        assert (
            "a transaction is open"
            in publish_state(source, source_of(spark, brokers, changelog("new")), dry_run=True).refused[0]
        )
        write_snapshot(source, app="app", to=tmp_path)
        loop.run_until_complete(producer.commit_transaction())
    finally:
        loop.run_until_complete(producer.stop())
        loop.close()
    snapshot = SnapshotFolder(tmp_path, app="app").find(require_store(log.topic, "app"), home(b"a"))
    assert snapshot.position.changelog_offset == cut
    assert [raw[METADATA_BYTES:] for _, raw in snapshot.rows()] == [b"1"]


async def transacting(brokers: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=brokers, transactional_id=unique("t"), transaction_timeout_ms=600_000)
    await producer.start()
    await producer.begin_transaction()
    return producer


@pytest.mark.nightly
def test_an_existing_snapshot_is_kept_until_the_new_one_is_complete(
    spark: SparkSession, brokers: str, log: Log, tmp_path: Path
):
    source, own = source_of(spark, brokers, log.topic), tmp_path / require_store(log.topic, "app")
    write_snapshot(source, app="app", to=tmp_path)
    before = (own / SNAPSHOT_MANIFEST).read_text()
    with pytest.raises(TargetError, match="exists: choose another folder"):
        write_snapshot(source, app="app", to=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaSource, "require_deletes_kept", lambda *_: (_ for _ in ()).throw(ReadError("stopped")))
        with pytest.raises(ReadError, match="stopped"):
            write_snapshot(source, app="app", to=tmp_path, overwrite=True)
    assert (own / SNAPSHOT_MANIFEST).read_text() == before
    write_snapshot(source, app="app", to=tmp_path, overwrite=True)
    assert (own / SNAPSHOT_MANIFEST).read_text() != before
    assert [path.name for path in tmp_path.iterdir()] == [own.name]


def test_a_folder_of_something_else_is_kept(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    own = tmp_path / require_store(log.topic, "app")
    own.mkdir()
    (own / "mine").write_text("data")
    with pytest.raises(TargetError, match="is no snapshot"):
        write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="can't be written"):
        write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path / "file")


def test_a_topic_of_another_app(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    with pytest.raises(WrongTopicError, match="isn't a changelog of the app 'other'"):
        write_snapshot(source_of(spark, brokers, log.topic), app="other", to=tmp_path)
    for topic in ("app-changelog", "app--changelog", "apps--store-changelog", "app-store"):
        with pytest.raises(WrongTopicError):
            require_store(topic, "app")


def test_a_reading_that_outlasts_deletes(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction((put("a", "1"),))], config={"delete.retention.ms": "0"})
    with pytest.raises(ReadError, match=r"took longer than its delete.retention.ms=0"):
        write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_folder_that_executors_do_not_share(
    spark: SparkSession, brokers: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = source_of(spark, brokers, log.topic)
    real = writing._write_rows

    def elsewhere(source, topic, to):
        return real(source, topic, tmp_path / "their own disk")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "_write_rows", elsewhere)
        with pytest.raises(TargetError, match="0 can be read back: give --to a folder that driver and executors share"):
            write_snapshot(source, app="app", to=tmp_path / "to")
    with pytest.raises(TargetError, match="doesn't see"):
        tables_of(tmp_path / "rows", tmp_path / "none")


@pytest.mark.parametrize(("size", "count"), [(1, 4096), (1 << 20, 31), (20 << 20, 1)])
def test_large_values_are_read_a_few_at_a_time(tmp_path: Path, size: int, count: int):
    rows = {"partition": [0] * 2, "key": [b"a", b"b"], "value": [random.Random(n).randbytes(size) for n in range(2)]}
    pq.write_table(pa.table(rows), tmp_path / "rows")
    assert batch_rows(pq.read_metadata(tmp_path / "rows")) == count
    done = tables_of(tmp_path / "rows", tmp_path)
    assert sum(table.keys for _, table in done) == 2


@pytest.mark.nightly
def test_executors_without_the_table_writer(
    spark: SparkSession, brokers: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rocksdict.py").write_text("""raise ModuleNotFoundError("No module named 'rocksdict'")""")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{tmp_path}':\"$PYTHONPATH\" exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(AppError, match=r"the executors' Python has no module 'rocksdict': install faust-actors"):
        write_snapshot(source_of(spark, brokers, log.topic), app="app", to=tmp_path / "to")


# --- the command ----------------------------------------------------------------------------------------------------


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["snapshot", *(str(arg) for arg in args)])


def one_error(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_the_command(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    common = ["--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to"]
    result = run(*common, "--app", "app")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert (told["app"], told["store"]) == ("app", require_store(log.topic, "app"))
    assert told["keys"] == sum(key is not None for _, key in fold(log.records, as_of_ms=0))
    assert "exists" in one_error(run(*common, "--app", "app"))
    assert run(*common, "--app", "app", "--overwrite").exit_code == 0
    assert "isn't a changelog of the app 'wrong'" in one_error(run(*common, "--app", "wrong"))
    assert "No such option: --archive" in run(*common, "--app", "app", "--archive", tmp_path).output


def test_an_unknown_topic(spark: SparkSession, brokers: str, tmp_path: Path):
    rest = ["--brokers", brokers, "--changelog", "app--none-changelog", "--to", tmp_path, "--app", "app"]
    assert "has no topic app--none-changelog" in one_error(run(*rest))
    assert list(tmp_path.iterdir()) == []
