"""What is lost from an archive or a rebuild is told, not left out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import (
    ReadError,
    Wanted,
    archive,
    archive_topics,
    kafka,
    publish_state,
    validate_exports,
    write_rebuild,
)
from spark_replay.fold.rebuilt import read_rebuild
from tests.kafka.helpers import unique
from tests.spark.helpers import NOW_MS, append, fold, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@pytest.mark.nightly
def test_a_state_is_published_if_the_log_has_all_that_was_read(spark: SparkSession, brokers: str):
    """Deletes may have escaped a read that took so long: the records are counted again."""
    log = write_log(brokers, random_transactions(35, count=5, keys=40), config={"delete.retention.ms": "0"})
    done = publish_state(kafka(spark, brokers, log.topic), kafka(spark, brokers, f"{unique('app--new')}-changelog"))
    assert done.keys == len(fold(log.records, as_of_ms=0))


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
