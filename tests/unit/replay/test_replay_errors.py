"""Errors of brokers, disks and tools: each says what to do."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from spark_replay.cli import main
from spark_replay.cli.options import Failure, failing
from spark_replay.errors import BrokerError, ReadError, ReplayError, TargetError, ToolMissingError
from spark_replay.jars import package_of
from spark_replay.session import _of_tables
from spark_replay.sources.brokers import topic
from spark_replay.sources.reading import reading
from spark_replay.sources.tables import BEGIN, Commit, Table


class Cause:
    """A Java exception, of a class with a name, without a cause of its own."""

    def __init__(self, kind: str, message: str) -> None:
        self._kind, self._message = kind, message

    def getCause(self) -> None:  # noqa: N802
        return None

    def getMessage(self) -> str:  # noqa: N802
        return self._message

    def getClass(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(getSimpleName=lambda: self._kind, getName=lambda: self._kind)


def translated(kind: str, options: dict[str, str]) -> str:
    error = SimpleNamespace(java_exception=Cause(kind, "Timed out waiting for a node"))
    found = topic._translated(error, "b:9092", "topic t", topic._TIMEOUTS_MS | options)
    assert isinstance(found, BrokerError)
    return str(found)


def test_a_question_that_takes_too_long_names_the_options_that_give_it_more_time() -> None:
    text = translated("TimeoutException", {"default.api.timeout.ms": "9000"})
    assert "did not describe topic t: Timed out waiting for a node (with default.api.timeout.ms=9000 and " in text
    assert "request.timeout.ms=4000; for slow brokers raise both by --kafka-option)" in text
    assert "--kafka-option" not in translated("TopicAuthorizationException", {})


def test_a_full_disk_is_no_log_that_cannot_be_read() -> None:
    with (
        pytest.raises(
            ReadError, match=r"^a disk is full: Spark read topic t, and could not write: .*spark\.local\.dir=DIR"
        ),
        reading("topic t"),
    ):
        raise PySparkException("java.io.IOException: No space left on device")
    with pytest.raises(ReadError, match=r"^Spark could not read topic t: no such file"), reading("topic t"):
        raise PySparkException("no such file")


def test_a_full_disk_of_the_driver_is_one_line() -> None:
    text = r"^a disk is full: .*answers\.parquet.*TMPDIR names another folder"
    with pytest.raises(Failure, match=text), failing():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/answers.parquet")
    with pytest.raises(PermissionError), failing():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x")


@pytest.mark.parametrize(("spark", "artifact"), [("4.0.0", "4.0"), ("4.1.1", "4.1"), ("4.2.1", "4.2")])
def test_formats_of_tables_are_those_of_the_release_of_spark(spark: str, artifact: str) -> None:
    assert package_of("delta", spark) == f"io.delta:delta-spark_{artifact}_2.13:4.4.0"
    if artifact != "4.2":
        package = f"org.apache.iceberg:iceberg-spark-runtime-{artifact}_2.13:1.11.0"
        assert package_of("iceberg", spark) == package
        return
    text = r"runtime-…_2.13:1.11.0 has no artifact for Spark 4.2.1: use pyspark of 4.0 or 4.1 for tables of Iceberg"
    with pytest.raises(ToolMissingError, match=text):
        package_of("iceberg", spark)


def test_settings_of_tables() -> None:
    settings = _of_tables(["delta", "iceberg"], {"spark.sql.catalog.lake.type": "rest", "spark.master": "local"})
    assert settings["spark.sql.extensions"].count("SparkSessionExtension") == 2
    assert settings["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert settings["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert _of_tables([], {"spark.sql.catalog.lake.type": "rest"}) == {}


@pytest.mark.parametrize(
    ("where", "settings", "text"),
    [
        ("delta:/x", {}, "has no Delta: start it with spark.jars.packages=io.delta:delta-spark_4.0_2.13:4.4.0 and "),
        ("iceberg:a.b", {}, "has no Iceberg: start it with spark.jars.packages=org.apache.iceberg:iceberg-spark-"),
        ("iceberg:a.b", _of_tables(["iceberg"], {}), "iceberg:a.b: the catalog a isn't set up: give its settings"),
        ("delta:ftp://x/y", _of_tables(["delta"], {}), "ftp://x/y isn't supported"),
    ],
)
def test_a_session_without_the_format_of_a_table(where: str, settings: dict[str, str], text: str) -> None:
    spark = SimpleNamespace(version="4.0.0", conf=settings)
    with pytest.raises(ReplayError, match=text):
        Table.of(spark, where)


@pytest.mark.parametrize(
    ("where", "commits", "error"),
    [
        ("delta:/x", [("MERGE", True)], LookupError),
        ("delta:/x", [("OPTIMIZE", True), ("MERGE", True)], LookupError),
        ("delta:/x", [("MERGE", True), ("DELETE", False)], TargetError),
        ("delta:/x", [("MERGE", True), ("DELETE", True)], TargetError),
        ("iceberg:a.b", [("append", True)], LookupError),
        ("iceberg:a.b", [("overwrite", True), ("delete", True)], TargetError),
        ("iceberg:a.b", [], TargetError),
    ],
)
def test_a_merge_has_one_commit(
    where: str, commits: list[tuple[str, bool]], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's commit by the same session carries the merge's text too; so does a compaction, which counts."""
    text, before = BEGIN + "1}", Commit(3, BEGIN + "0}", "MERGE")
    newer = [Commit(9 - number, text if is_ours else None, kind) for number, (kind, is_ours) in enumerate(commits)]
    histories = [[before], [*newer, before]]
    monkeypatch.setattr(Table, "commits", lambda _: histories.pop(0) if len(histories) > 1 else histories[0])

    def rows(_: Table) -> None:
        raise LookupError("the rows are counted next")

    monkeypatch.setattr(Table, "rows", rows)
    session = SimpleNamespace(
        sql=lambda _: None,
        conf=SimpleNamespace(set=lambda *_: None, unset=lambda _: None),
        catalog=SimpleNamespace(dropTempView=lambda _: None),
    )
    changes = SimpleNamespace(columns=["key", "is_live"], createOrReplaceTempView=lambda _: None)
    with pytest.raises(error, match=r"before or while partition 0 was merged|counted next"):
        Table(session, where).merge(changes, 0, text, after=[before], keys=1)


def test_a_snapshot_offers_no_archive() -> None:
    assert "--archive" not in CliRunner().invoke(main, ["snapshot", "--help"]).output
    assert "--archive" in CliRunner().invoke(main, ["rebuild", "--help"]).output


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o94.collectToPython"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        PySparkException("java.lang.OutOfMemoryError: Java heap space"),
        PySparkException("Task 0 failed 4 times, most recent failure: ExecutorLostFailure (executor 3 exited"),
    ],
)
def test_a_spark_that_was_killed_for_its_memory_names_what_to_raise(error: Exception) -> None:
    with (
        pytest.raises(ReadError, match="ran out of memory, or was killed, while it read topic t: raise"),
        reading("topic t"),
    ):
        raise error


def test_a_wrong_call_of_java_is_a_defect_not_a_lost_process() -> None:
    with pytest.raises(Py4JError, match="does not exist"), reading("topic t"):
        raise Py4JError("An error occurred while calling o9.x. Trace:\npy4j.Py4JException: Method x([]) does not exist")
