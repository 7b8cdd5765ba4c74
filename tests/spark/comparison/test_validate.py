"""Damage of each kind, planted in an export or in the log: it is found, and its cause is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import ExportError, LogTooShortError, ReadError, Report, compare_exports, kafka, validate_exports
from stores._core.manifest import MANIFEST
from tests.spark.helpers import (
    NOW_MS,
    PARTITIONS,
    Export,
    Log,
    Transaction,
    Write,
    fold,
    home,
    put,
    random_transactions,
    write_log,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Validate = Callable[[Export], Report]

VICTIM = put("victim", "before", source_offset=41, epoch=6)
OVERWRITTEN = put("victim", "now", source_offset=42, epoch=7, expires_at_ms=NOW_MS + 5)
GONE = (put("gone", "once", source_offset=43), put("gone", None, source_offset=44))
ALONE = tuple(put(name, "here", source_offset=46, epoch=7) for name in ("twice", "moved", "claimed"))
ELSEWHERE = (home(b"moved") + 1) % PARTITIONS
OVER = put("over", "once", source_offset=45, expires_at_ms=NOW_MS - 5)


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    victims = tuple(replace(OVERWRITTEN, key=b"victim-%d" % n, partition=home(b"victim-%d" % n)) for n in range(5))
    known = [
        Transaction(victims),
        Transaction((VICTIM,)),
        Transaction((OVERWRITTEN, GONE[0], OVER, *ALONE)),
        Transaction((GONE[1],)),
    ]
    return write_log(brokers, [*random_transactions(8, count=60, keys=60), *known])


@pytest.fixture(scope="module")
def alive(log: Log) -> int:
    return len(fold(log.records))


@pytest.fixture
def check(spark: SparkSession, brokers: str, log: Log, tmp_path: Path) -> Validate:
    def run(*exports: Export) -> Report:
        for export in exports:
            export.write(tmp_path / "exports")
        return validate_exports(kafka(spark, brokers, log.topic), against=tmp_path / "exports")

    return run


def only(report: Report, kind: str, *, equal: int) -> str:
    """The cause of the one mismatch that there is."""
    assert {name: count for name, count in report.counts.items() if count} == {"equal": equal, kind: 1}
    assert report.mismatches == 1
    [example] = report.examples[kind]
    return f"partition {example.partition} key {example.key}: {example.seen}"


@pytest.mark.nightly
def test_an_export_of_what_the_log_holds_is_equal(check: Validate, log: Log, alive: int):
    report = check(Export.of(log))
    assert {kind: count for kind, count in report.counts.items() if count} == {"equal": alive}
    assert (report.mismatches, report.keys, report.records) == (0, alive, len(log.records))
    assert (report.examples, report.partitions_without_export, report.stale_copies) == ({}, [], [])


@pytest.mark.nightly
def test_an_export_at_an_older_position(check: Validate, log: Log):
    positions = [end // 2 for end in log.ends]
    report = check(Export.of(log, positions=positions))
    assert report.counts["equal"] == report.keys == len(fold(log.records, before=positions))
    assert report.mismatches == report.counts["superseded"] == 0


CHANGES: dict[str, dict[str, object]] = {
    "value differs": {"value": b"noW"},
    "epoch differs": {"epoch": 8},
    "source_offset differs": {"source_offset": 43},
    "expires_at_ms differs": {"expires_at_ms": NOW_MS - 1},
    "value, source_offset, epoch, expires_at_ms differ": {
        name: getattr(VICTIM, name) for name in ("value", "source_offset", "epoch", "expires_at_ms")
    },
}


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, brokers: str, log: Log, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of an export with each damage that one key can have, on a key of its own."""
    export = Export.of(log)
    export.remove(b"victim")
    export.rows[home(b"\xff")].append(Write(0, b"\xff", b"aborted"))
    export.rows[home(b"gone")].append(GONE[0])
    export.rows[home(b"twice")].append(export.find(b"twice"))
    export.rows[home(b"over")].append(OVER)
    for number, change in enumerate(CHANGES.values()):
        export.replace(b"victim-%d" % number, **change)
    export.rows[ELSEWHERE].append(export.remove(b"moved"))
    export.claimed[b"claimed"] = (home(b"claimed") + 1) % PARTITIONS
    folder = export.write(tmp_path_factory.mktemp("damaged") / "exports")
    return validate_exports(kafka(spark, brokers, log.topic), against=folder)


def seen(report: Report, kind: str, key: str) -> str:
    [example] = [example for example in report.examples[kind] if example.key == key]
    return f"partition {example.partition}: {example.seen}"


def test_each_damage_is_counted_once_and_nothing_else(damaged: Report, alive: int):
    counts = {kind: count for kind, count in damaged.counts.items() if count}
    kinds = {"missing": 2, "extra": 3, "different": len(CHANGES), "wrong_partition": 2}
    # an expired key that was not removed is no mismatch; one that moved is missing at home
    assert counts == {"equal": alive - 4 - len(CHANGES)} | kinds
    assert damaged.mismatches == sum(kinds.values())
    assert {kind: len(examples) for kind, examples in damaged.examples.items()} == kinds


def test_missing_key(damaged: Report, log: Log):
    assert seen(damaged, "missing", "victim") == f"partition {home(b'victim')}: not in the export"
    [example] = [example for example in damaged.examples["missing"] if example.key == "victim"]
    assert example.log == {
        "value": "now",
        "source_offset": 42,
        "epoch": 7,
        "expires_at_ms": NOW_MS + 5,
        "offset": next(w.offset for w in log.records if w.key == b"victim" and w.value == b"now"),
    }


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("base64:/w==", ": not in the log"),
        ("gone", ": deleted in the log at offset"),
        ("twice", ": in the export 2 times"),
    ],
)
def test_extra_key(damaged: Report, key: str, text: str):
    assert text in seen(damaged, "extra", key)


def test_changed_writes(damaged: Report):
    found = {example.key: example for example in damaged.examples["different"]}
    for number, (cause, change) in enumerate(CHANGES.items()):
        example = found[f"victim-{number}"]
        assert example.seen.split("; ")[0] == cause
        assert example.log is not None
        assert example.export is not None
        assert (example.log["value"], example.log["epoch"], example.log["source_offset"]) == ("now", 7, 42)
        for name in ("source_offset", "epoch", "expires_at_ms"):
            assert example.export[name] == change.get(name, example.log[name])
    assert found["victim-0"].export == {
        "value": "noW",
        "source_offset": 42,
        "epoch": 7,
        "expires_at_ms": NOW_MS + 5,
    }


def test_key_moved_to_another_partition(damaged: Report):
    assert seen(damaged, "missing", "moved") == f"partition {home(b'moved')}: not in the export"
    place = f"partition {ELSEWHERE}: belongs in partition {home(b'moved')}, found in {ELSEWHERE} in the export"
    assert seen(damaged, "wrong_partition", "moved") == place


def test_row_that_claims_another_partition_than_its_file(damaged: Report):
    place = home(b"claimed")
    assert seen(damaged, "wrong_partition", "claimed").endswith(
        f"the export's row says partition {(place + 1) % PARTITIONS}, its file is of {place}"
    )


@pytest.mark.nightly
def test_placement_of_the_log(spark: SparkSession, brokers: str, tmp_path: Path):
    stray = replace(put("stray", "1"), partition=(home(b"stray") + 1) % PARTITIONS)
    log = write_log(brokers, [Transaction((stray, put("fine", "2")))])
    by_key, by_task = Export.of(log), Export.of(log)
    by_task.placement = "task"
    found = validate_exports(kafka(spark, brokers, log.topic), against=by_key.write(tmp_path / "key"))
    assert "belongs in" in only(found, "wrong_partition", equal=1)
    assert found.examples["wrong_partition"][0].seen.endswith("in the log and export")
    found = validate_exports(kafka(spark, brokers, log.topic), against=by_task.write(tmp_path / "task"))
    assert (found.counts["equal"], found.mismatches) == (2, 0)


@pytest.mark.nightly
def test_a_record_without_metadata_in_the_log(spark: SparkSession, brokers: str, tmp_path: Path):
    bare = replace(put("bare", "1"), headers=())
    rest = (put("fine", "2"), replace(put("mended", "3"), headers=()), put("mended", "4"))
    log = write_log(brokers, [Transaction((bare, *rest))])
    found = validate_exports(kafka(spark, brokers, log.topic), against=Export.of(log).write(tmp_path / "exports"))
    assert {kind: count for kind, count in found.counts.items() if count} == {"equal": 1, "without_metadata": 2}
    assert (found.mismatches, found.records) == (2, 4)
    causes = {example.key: example.seen for example in found.examples["without_metadata"]}
    offset = next(write.offset for write in log.records if write.value == b"3")
    assert causes["mended"] == f"the record at offset {offset} has no key or no known write metadata"
    assert set(causes) == {"bare", "mended"}


@pytest.mark.nightly
def test_write_that_compaction_removed_is_not_judged(spark: SparkSession, brokers: str, tmp_path: Path):
    """The log as compaction leaves it: of a key that was written before the position, the later write only."""
    log = write_log(brokers, [Transaction((put("fine", "1"),)), Transaction((put("busy", "late", source_offset=9),))])
    late = next(write for write in log.records if write.key == b"busy")
    positions = list(log.ends)
    positions[home(b"busy")] = late.offset
    export = Export.of(log, positions=positions)
    export.rows[home(b"busy")].append(put("busy", "early", source_offset=2))
    found = validate_exports(kafka(spark, brokers, log.topic), against=export.write(tmp_path / "exports"))
    assert {kind: count for kind, count in found.counts.items() if count} == {
        "equal": 1,
        "superseded": 1,
        "behind_position": 1,
    }
    assert found.mismatches == 0
    assert found.examples["superseded"][0].seen == (
        f"the log only has its later write at offset {late.offset}: can't be compared"
    )


def test_the_owners_copy_counts(check: Validate, log: Log, alive: int):
    owner, older, behind = Export.of(log, epoch=8), Export.of(log, epoch=7), Export.of(log, epoch=8)
    owner.worker, older.worker, behind.worker = "worker-2", "worker-3", "host:6066 [a]"
    for stale in (older, behind):
        stale.replace(b"victim", value=b"stale")
    place = home(b"victim")
    behind.positions[place] = replace(behind.positions[place], changelog_offset=log.ends[place] - 1)
    report = check(owner, older, behind)
    assert (report.counts["equal"], report.mismatches) == (alive, 0)
    assert f"partition {place} of worker worker-3 (epoch 7, position {log.ends[place]})" in report.stale_copies
    assert f"partition {place} of worker host:6066 [a] (epoch 8, position {log.ends[place] - 1})" in report.stale_copies
    assert len(report.stale_copies) == 2 * PARTITIONS


@pytest.mark.nightly
def test_a_stale_copy_that_is_the_only_one_is_found(check: Validate, log: Log, alive: int):
    export = Export.of(log)
    export.worker = "host:6066 [a]"
    export.replace(b"victim", value=b"stale")
    only(check(export), "different", equal=alive - 1)


@pytest.mark.nightly
def test_partition_that_no_export_holds(check: Validate, log: Log, alive: int):
    export = Export.of(log)
    place = home(b"victim")
    lost = len(export.rows.pop(place))
    report = check(export)
    counts = {kind: count for kind, count in report.counts.items() if count}
    assert counts == {"equal": alive - lost, "missing": lost}
    assert report.partitions_without_export == [place]
    assert {example.seen for example in report.examples["missing"]} == {"no export holds its partition"}
    assert len(report.examples["missing"]) == min(10, lost)


def test_judgement_of_every_key(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    export = Export.of(log)
    export.replace(b"victim", value=b"flipped")
    judged = compare_exports(kafka(spark, brokers, log.topic), against=export.write(tmp_path / "exports"))
    [row] = judged.where("kind not in ('equal', 'absent')").collect()
    assert (bytes(row["key"]), row["differs"]) == (b"victim", ["value"])
    assert (bytes(row["log"]["value"]), bytes(row["export"]["value"])) == (b"now", b"flipped")


@pytest.mark.nightly
def test_position_beyond_the_log(check: Validate, log: Log):
    export = Export.of(log)
    export.positions[1] = replace(export.positions[1], changelog_offset=log.ends[1] + 1000)
    report = check(export)
    text = rf"ends at \d+, the log is shorter than the export's position {log.ends[1] + 1000}"
    assert re.match(text, report.unanswered[1])
    assert (report.is_clean, list(report.unanswered), list(report.by_partition)) == (True, [1], [0, 2])
    for number in (0, 2):
        export.positions[number] = replace(export.positions[number], changelog_offset=log.ends[number] + 1000)
    export.worker = "worker-2"
    with pytest.raises(LogTooShortError, match=r"partition 0 ends at \d+, the log is shorter"):
        check(export)


def test_export_of_a_topic_that_was_made_anew(check: Validate, log: Log):
    export = Export.of(log)
    export.positions[1] = replace(export.positions[1], changelog_id="7f0d3c1a-0000-4000-8000-000000000001")
    with pytest.raises(ExportError, match=r"with the id 7f0d3c1a-.*: the topic was re-created since"):
        check(export)


@pytest.mark.nightly
def test_every_mismatch_is_named_up_to_ten(check: Validate, log: Log):
    """Two missing keys are two names, whatever their hashes are."""
    export = Export.of(log)
    missing = [write.key for rows in export.rows.values() for write in rows][:12]
    for key in missing:
        export.remove(key)
    report = check(export)
    assert report.counts["missing"] == 12
    assert len(report.examples["missing"]) == 10


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"changelog": "other-changelog"}, "is an export of other-changelog, not of"),
        ({"partition_count": 5}, f"has {PARTITIONS} partitions and the exports are of 5"),
    ],
)
def test_export_of_something_else(check: Validate, log: Log, changes: dict[str, object], text: str):
    export = Export.of(log)
    for name, value in changes.items():
        setattr(export, name, value)
    with pytest.raises(ExportError, match=text):
        check(export)


def test_exports_of_two_apps(check: Validate, log: Log):
    mine, theirs = Export.of(log), Export.of(log)
    theirs.app, theirs.worker = "another", "worker-2"
    with pytest.raises(ExportError, match=r"app another, .* app app, "):
        check(mine, theirs)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def scramble(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[4:400] = bytes(396)
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (truncate, ExportError, "partition-00000.parquet can't be read"),
        pytest.param(Path.unlink, ExportError, "partition-00000.parquet can't be read", marks=pytest.mark.nightly),
        pytest.param(scramble, ReadError, "partition-0000[012].parquet", marks=pytest.mark.nightly),
    ],
)
def test_file_that_cannot_be_read(
    spark: SparkSession,
    brokers: str,
    log: Log,
    tmp_path: Path,
    damage: Callable[[Path], None],
    error: type[Exception],
    text: str,
):
    folder = Export.of(log).write(tmp_path / "exports")
    damage(folder / "worker-1" / "partition-00001.parquet")
    report = validate_exports(kafka(spark, brokers, log.topic), against=folder)
    assert report.is_clean
    assert list(report.unanswered) == [1]
    assert "partition-00001.parquet can't be read" in report.unanswered[1]
    for number in (0, 2):
        damage(folder / "worker-1" / f"partition-0000{number}.parquet")
    with pytest.raises(error, match=text):
        validate_exports(kafka(spark, brokers, log.topic), against=folder)


def test_file_with_fewer_rows_than_its_manifest_says(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    folder = Export.of(log).write(tmp_path / "exports")
    files = folder / "worker-1"
    shutil.copy(files / "partition-00000.parquet", files / "partition-00001.parquet")
    [reason] = validate_exports(kafka(spark, brokers, log.topic), against=folder).unanswered.values()
    assert re.search(r"partition-00001.parquet has \d+ rows and its manifest says \d+", reason)


@pytest.mark.parametrize("manifest", ["", "{}", "[]", '{"format": 99}'])
def test_manifest_that_cannot_be_read(spark: SparkSession, brokers: str, log: Log, tmp_path: Path, manifest: str):
    folder = Export.of(log).write(tmp_path / "exports")
    (folder / "worker-1" / MANIFEST).write_text(manifest)
    with pytest.raises(ExportError, match=MANIFEST):
        validate_exports(kafka(spark, brokers, log.topic), against=folder)


@pytest.fixture(scope="module")
def two_inputs(brokers: str) -> Log:
    writes = [put(f"key-{n}", "now", source_offset=n // 2, epoch=7, input=n % 2) for n in range(40)]
    return write_log(brokers, [Transaction(tuple(writes))])


@pytest.mark.nightly
def test_an_export_of_an_actor_with_two_inputs_is_equal(
    spark: SparkSession, brokers: str, two_inputs: Log, tmp_path: Path
):
    export = Export.of(two_inputs)
    report = validate_exports(kafka(spark, brokers, two_inputs.topic), against=export.write(tmp_path / "exports"))
    assert (report.mismatches, report.counts["equal"]) == (0, 40)


@pytest.mark.nightly
def test_the_same_offset_of_another_input_is_another_write(
    spark: SparkSession, brokers: str, two_inputs: Log, tmp_path: Path
):
    export = Export.of(two_inputs)
    export.replace(b"key-8", input=1)
    report = validate_exports(kafka(spark, brokers, two_inputs.topic), against=export.write(tmp_path / "exports"))
    [example] = report.examples["different"]
    assert (report.mismatches, example.seen, example.cause) == (1, "input differs", "never_committed")
    assert example.log is not None
    assert example.export is not None
    assert [(side["source_offset"], side["input"]) for side in (example.log, example.export)] == [(4, 0), (4, 1)]
