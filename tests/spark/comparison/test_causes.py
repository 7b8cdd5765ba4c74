"""Damage of each kind, planted in a live RocksDB, an export, a rebuild and the log: its cause is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_replay import ExportError, ReadError, Report, explain_exports, kafka, validate_exports, write_rebuild
from spark_replay.comparison.causes import CAUSES
from spark_replay.fold.rebuilt import SUMMARY, digests_of, read_summary
from spark_replay.sources.folders import Folder
from spark_replay.sources.kafka import KafkaSource
from stores._core.manifest import with_crc32
from tests.spark.damage import NEW, OLD, Damage, Worker, by, damages, extend, named_log, two_owners
from tests.spark.helpers import PARTITIONS, Export, Log, Transaction, Write, home, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARE = replace(put("bare", "1"), headers=())
AHEAD = (by(NEW, 70, "ahead", "1"), by(NEW, 71, "ahead", "2"))


@dataclass
class World:
    log: Log
    source: KafkaSource
    positions: list[int]
    damages: list[Damage]

    @property
    def expected(self) -> dict[str, str]:
        return {damage.key: damage.cause for damage in self.damages} | {"ahead": "ahead_of_position"}


@pytest.fixture(scope="module")
def world(spark: SparkSession, brokers: str) -> World:
    """A log in which some keys have a history; the last write of one lies behind the workers' positions."""
    log = named_log(brokers)
    older = Transaction((by(OLD, 10, "older", "1"),))
    planned = damages()
    # the order of damages is that of their inputs, as an owner writes them
    history = [transaction for damage in planned for transaction in damage.transactions]
    extend(brokers, log, older, *two_owners(), *history, Transaction((AHEAD[0],)))
    positions = list(log.ends)
    extend(brokers, log, Transaction((AHEAD[1],)))
    return World(log, kafka(spark, brokers, log.topic), positions, planned)


@pytest.fixture
def worker(world: World, tmp_path: Path) -> Iterator[Worker]:
    """A worker that keeps its databases open."""
    worker = Worker.of(world.log, tmp_path / "data", world.positions)
    with worker.closing:
        yield worker


def causes(report: Report) -> dict[str, str]:
    return {example.key: example.cause for examples in report.examples.values() for example in examples}


@pytest.mark.nightly
def test_a_worker_that_followed_the_log_is_clean(world: World, worker: Worker):
    report = validate_exports(world.source, against=worker.path)
    assert (report.mismatches, report.causes, report.examples, report.is_clean) == (0, {}, {}, True)
    assert report.counts["equal"] == report.keys > 40
    assert report.against == f"data folders in {worker.path}"
    assert report.positions == dict(enumerate(world.positions))
    assert (report.app, report.store) == (worker.app, "store")


@pytest.mark.nightly
def test_each_damage_of_a_live_database_has_its_cause(world: World, worker: Worker):
    for damage in world.damages:
        worker.plant(damage.partition, damage.key.encode(), damage.plant)
    worker.plant(home(b"ahead"), b"ahead", AHEAD[1])
    report = validate_exports(world.source, against=worker.path)
    assert causes(report) == world.expected
    assert report.mismatches == sum(report.causes.values()) == len(world.expected)
    assert list(report.causes) == [cause for cause in CAUSES if cause in report.causes]
    by_partition = {number: sum(counts.values()) for number, counts in report.causes_by_partition.items()}
    placed = [damage.partition for damage in world.damages] + [home(b"ahead")]
    assert by_partition == {number: placed.count(number) for number in range(PARTITIONS) if number in placed}
    seen = {example.key: example.seen for examples in report.examples.values() for example in examples}
    aborted = next(write for write in world.log.records if write.key == b"aborted")
    assert "isn't committed" in seen["aborted"]
    assert f"{aborted.offset}" not in seen["aborted"].split("offset ")[1].split()[0]
    assert f"epoch {OLD} and input 63; epoch {NEW} had handled input 50" in seen["zombie"]
    assert f"of epoch {OLD} at offset" in seen["contested"]
    assert "behind the position" in seen["ahead"]
    assert "deleted in the log at offset" in seen["deleted"]


@pytest.mark.nightly
def test_each_damage_of_an_export_has_its_cause(world: World, tmp_path: Path):
    export = Export.of(world.log, positions=world.positions)
    export.app = world.log.topic.removesuffix("--store-changelog")
    for damage in world.damages:
        planted(export, damage.partition, damage.key.encode(), damage.plant)
    planted(export, home(b"ahead"), b"ahead", AHEAD[1])
    export.rows[home(b"fine-1")].append(export.find(b"fine-1"))
    found = explain_exports(world.source, against=export.write(tmp_path / "exports"))
    named = {bytes(row["key"]).decode(): row["cause"] for row in found.select("key", "cause").collect()}
    assert named == world.expected | {"fine-1": "held_twice"}


def planted(export: Export, partition: int, key: bytes, write: Write | None) -> None:
    rows = export.rows[partition]
    rows[:] = [row for row in rows if row.key != key]
    if write is not None:
        rows.append(write)


@pytest.mark.nightly
def test_a_rebuild_that_was_changed(world: World, tmp_path: Path):
    folder = tmp_path / "rebuilt"
    write_rebuild(world.source, to=folder)
    assert validate_exports(world.source, against=folder).is_clean
    changed = flip(folder, b"fine-3")
    assert changed == 1
    with pytest.raises(ReadError, match="of the rebuild isn't what was written"):
        validate_exports(world.source, against=folder)
    # one whose digests are right says what its rows say
    place = Folder(world.source.spark, folder)
    [layer] = read_summary(place).layers
    summary = json.loads((folder / SUMMARY).read_text())
    summary["layers"] = [asdict(replace(layer, files=digests_of(place)))]
    (folder / SUMMARY).write_text(json.dumps(with_crc32(summary)))
    report = validate_exports(world.source, against=folder)
    assert causes(report) == {"fine-3": "different_value"}
    assert report.against == f"rebuild in {folder}"


def flip(folder: Path, key: bytes) -> int:
    """Write another value into the file of a rebuild that holds a key."""
    changed = 0
    for file in folder.glob("partition=*/*.parquet"):
        # its folder's name isn't a column of the file
        rows = pq.ParquetFile(file).read()
        keys = rows.column("key").to_pylist()
        if key not in keys:
            continue
        values = [
            b"flipped" if name == key else value for name, value in zip(keys, rows["value"].to_pylist(), strict=True)
        ]
        at = rows.schema.get_field_index("value")
        pq.write_table(rows.set_column(at, "value", pa.array(values, pa.binary())), file)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        changed += 1
    return changed


@pytest.mark.nightly
def test_damage_of_the_log(spark: SparkSession, brokers: str, tmp_path: Path):
    """What the store holds is right, and the log has a record without write metadata, or one in a wrong partition."""
    log = named_log(brokers)
    stray = replace(put("lost", "1", epoch=OLD), partition=(home(b"lost") + 1) % PARTITIONS)
    extend(brokers, log, *two_owners(), Transaction((stray, BARE)))
    report = validate_exports(kafka(spark, brokers, log.topic), against=Export.of(log).write(tmp_path / "exports"))
    assert causes(report) == {"lost": "wrong_partition", "bare": "record_without_metadata"}


@pytest.mark.nightly
def test_what_compaction_took_is_unknown(spark: SparkSession, brokers: str, tmp_path: Path):
    """The log as compaction leaves it: of each key the last write, and of a deleted key nothing."""
    log = write_log(
        brokers,
        [
            Transaction((put("kept", "2", source_offset=9, epoch=2), put("fine", "1"))),
        ],
        config={"cleanup.policy": "compact"},
    )
    export = Export.of(log)
    export.replace(b"kept", value=b"1", source_offset=4, epoch=1)
    export.rows[home(b"gone")].append(put("gone", "x", source_offset=3))
    export.replace(b"fine", value=b"newer", source_offset=20)
    report = validate_exports(kafka(spark, brokers, log.topic), against=export.write(tmp_path / "exports"))
    assert causes(report) == {"kept": "committed_write_missing", "gone": "unknown", "fine": "never_committed"}


@pytest.mark.nightly
def test_two_copies_that_go_on(world: World, tmp_path: Path):
    """The newer owner's copy counts; that the older one's goes further is a finding."""
    newer, older = Export.of(world.log, epoch=NEW), Export.of(world.log, epoch=OLD)
    older.worker = "worker-2"
    place = home(b"fine-5")
    newer.positions[place] = replace(newer.positions[place], changelog_offset=world.positions[place] - 2)
    folder = tmp_path / "exports"
    newer.write(folder)
    older.write(folder)
    report = validate_exports(world.source, against=folder)
    # behind the newer copy lies a record, whose writer is checked too
    writers, finding = report.findings
    assert (writers.check, writers.count, report.counts["behind_position"]) == ("writers", 0, 1)
    assert (finding.check, finding.count, finding.by_partition) == ("copies", 1, {place: 1})
    assert f"partition {place} of worker worker-2 (epoch {OLD}" in finding.examples[0]
    assert not report.is_clean


@pytest.mark.nightly
def test_a_partition_that_nobody_holds(world: World, tmp_path: Path):
    export = Export.of(world.log)
    lost = len(export.rows.pop(1))
    report = validate_exports(world.source, against=export.write(tmp_path / "exports"))
    assert report.causes == {"partition_not_held": lost}


@pytest.mark.nightly
def test_a_folder_of_something_else(world: World, worker: Worker, tmp_path: Path, spark: SparkSession, brokers: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match=r"no manifest.json in .*, no worker.json"):
        validate_exports(world.source, against=tmp_path / "empty")
    log = named_log(brokers)
    other = kafka(spark, brokers, log.topic)
    with pytest.raises(
        ExportError, match=rf"no data folder holds the store of {log.topic}: .* belongs to the app app-"
    ):
        validate_exports(other, against=worker.path)
    write_rebuild(world.source, to=tmp_path / "rebuilt")
    with pytest.raises(ExportError, match=rf"is a rebuild of {world.log.topic}, not of {log.topic}"):
        validate_exports(other, against=tmp_path / "rebuilt")
