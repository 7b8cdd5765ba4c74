"""What is lost from an archive or a rebuild is told, not left out."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spark_replay import (
    ArchiveError,
    ReadError,
    TargetError,
    Wanted,
    archive,
    archive_topics,
    kafka,
    publish_state,
    validate_exports,
    write_rebuild,
)
from spark_replay.fold.rebuilt import read_rebuild
from spark_replay.sources.archives.archive import ArchiveSource, batch_files
from tests.kafka.helpers import unique
from tests.spark.helpers import NOW_MS, append, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lose(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / f".{name}.crc").unlink(missing_ok=True)


def lose_last(folder: Path) -> None:
    lose(folder, max((path.name for path in folder.iterdir() if path.name.isdigit()), key=int))


def lose_second(folder: Path) -> None:
    lose(folder, "1")


def lose_a_line(folder: Path) -> None:
    text = (folder / "0").read_text()
    lose(folder, "0")
    (folder / "0").write_text(text.rpartition("\n")[0])


@pytest.fixture(scope="module")
def in_three_batches(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> ArchiveSource:
    """An archive whose list of files has three entries, for damage that is undone."""
    to = tmp_path_factory.mktemp("damage") / "to"
    log = write_log(brokers, random_transactions(33, count=30, keys=40))
    for number in range(3):
        asyncio.run(append(brokers, log, random_transactions(60 + number, count=5, keys=40)))
        archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=to)
    return archive(spark, to, log.topic)


@pytest.mark.nightly
@pytest.mark.parametrize("damage", [lose_last, lose_second, lose_a_line])
def test_an_entry_that_the_list_of_files_has_lost(
    in_three_batches: ArchiveSource, tmp_path: Path, damage: Callable[[Path], None]
):
    entries = Path(in_three_batches.where) / "_spark_metadata"
    whole = shutil.copytree(entries, tmp_path / "whole")
    in_three_batches.describe()
    try:
        damage(entries)
        with pytest.raises(ArchiveError, match=r"_spark_metadata, which lists its files, has lost"):
            write_rebuild(in_three_batches, to=tmp_path / "rebuilt", as_of_ms=NOW_MS)
        assert not (tmp_path / "rebuilt").exists()
    finally:
        shutil.rmtree(entries)
        shutil.copytree(whole, entries)


def test_files_of_an_executor_whose_clock_is_behind_are_compared():
    entry = {"path": "file:///to/topic=t/day=2026-01-31/part-0.parquet", "size": 7, "modificationTime": NOW_MS - 5_000}
    names = {"_spark_metadata/9.compact": f"v1\n{json.dumps(entry)}"}
    folder = SimpleNamespace(exists=names.__contains__, text=names.__getitem__)
    assert [file.size_bytes for file in batch_files(folder, 9, NOW_MS)] == [7]


@pytest.mark.parametrize(
    "path", ["file:///to/../x/topic=t/part-0.parquet", "file:///to/%2e%2e/x/topic=t/part-0.parquet"]
)
def test_a_list_of_files_leads_nowhere_else(path: str):
    entry = {"path": path, "size": 7, "modificationTime": NOW_MS}
    for name in ("9", "9.compact"):
        folder = SimpleNamespace(
            exists=lambda asked, name=name: asked.endswith(f"/{name}"), text=lambda _: f"v1\n{json.dumps(entry)}"
        )
        with pytest.raises(ArchiveError, match="leads out of its folder"):
            batch_files(folder, 9, NOW_MS)


@pytest.mark.nightly
def test_a_file_that_a_rebuild_has_lost(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(34, count=30, keys=40))
    source = kafka(spark, brokers, log.topic)
    write_rebuild(source, to=tmp_path / "to", as_of_ms=NOW_MS)
    read_rebuild(spark, tmp_path / "to")
    [file, *_] = sorted((tmp_path / "to").glob("partition=*/*.parquet"))
    file.unlink()
    with pytest.raises(ReadError, match=r"parquet is missing from the rebuild"):
        read_rebuild(spark, tmp_path / "to")
    with pytest.raises(ReadError, match=r"parquet is missing from the rebuild"):
        validate_exports(source, against=tmp_path / "to")


def test_a_state_is_not_published_when_deletes_may_have_escaped_the_read(spark: SparkSession, brokers: str):
    log = write_log(brokers, random_transactions(35, count=5, keys=40), config={"delete.retention.ms": "0"})
    with pytest.raises(ReadError, match=r"took longer than its delete\.retention\.ms=0"):
        publish_state(kafka(spark, brokers, log.topic), kafka(spark, brokers, unique("app--new-changelog")))


@pytest.mark.nightly
def test_a_checkpoint_that_is_older_than_the_list_of_files(spark: SparkSession, brokers: str, tmp_path: Path):
    """Spark leaves out a batch whose number is on the list, whatever it has in it now."""
    log = write_log(brokers, random_transactions(36, count=20, keys=40))
    wanted = Wanted(brokers=brokers, topics=(log.topic,))
    for number in range(3):
        asyncio.run(append(brokers, log, random_transactions(70 + number, count=5, keys=40)))
        archive_topics(spark, wanted, to=tmp_path / "to")
    for part in ("offsets", "commits"):
        lose(tmp_path / "to" / "_checkpoint" / part, "2")
    for number in range(2):
        asyncio.run(append(brokers, log, random_transactions(80 + number, count=5, keys=40)))
        with pytest.raises(TargetError, match=r"_checkpoint of the archive .* is older than its list of files"):
            archive_topics(spark, wanted, to=tmp_path / "to")


@pytest.mark.nightly
def test_deletes_that_may_have_escaped_an_archive_are_told(spark: SparkSession, brokers: str, tmp_path: Path):
    config = {"cleanup.policy": "compact", "delete.retention.ms": "1"}
    log = write_log(brokers, random_transactions(37, count=20, keys=40), config=config)
    wanted = Wanted(brokers=brokers, topics=(log.topic,))
    archive_topics(spark, wanted, to=tmp_path / "to")
    joined = kafka(spark, brokers, log.topic).after(archive(spark, tmp_path / "to", log.topic))
    told = f"longer ago than the delete.retention.ms=1 of {log.topic}"
    # nothing was written since: nothing was deleted
    assert not any(told in note for note in write_rebuild(joined, to=tmp_path / "same").notes)
    asyncio.run(append(brokers, log, random_transactions(90, count=20, keys=40)))
    assert any(told in note for note in write_rebuild(joined, to=tmp_path / "later").notes)
    lines: list[str] = []
    archive_topics(spark, wanted, to=tmp_path / "to", tell=lines.append)
    assert any(told in line for line in lines)
