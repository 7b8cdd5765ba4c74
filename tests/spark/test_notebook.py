"""The notebook of the documentation runs as it stands there, cell by cell, in a session of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_replay import kafka, read_rebuild, write_rebuild
from spark_replay.printing import printable
from tests.documents import block
from tests.spark.helpers import Export, Log, Transaction, fold, put, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.shuffle.partitions": "3",
}


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    place = {"epoch": 7, "source_offset": 2**40}
    writes = Transaction((put("victim", "1", expires_at_ms=2**42, **place), put("victim", "2", **place)))
    return write_log(brokers, [*random_transactions(11, count=10, keys=20), writes])


@pytest.fixture(params=[pytest.param({}, marks=pytest.mark.nightly), OWN], ids=["ours", "own"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """Return a session of the user's own, with other settings than ours."""
    own = spark.newSession()
    for name, value in request.param.items():
        own.conf.set(name, value)
    return own


def run_cells(changes: dict[str, str], names: dict[str, Any]) -> dict[str, Any]:
    for number in range(1, 5):
        cell = block("docs/how-to/notebooks.md", "An audit as a notebook", number)
        names = cell.run(names, changes=changes if number == 1 else {})
    return names


@pytest.mark.nightly
def test_the_notebook(session: SparkSession, brokers: str, log: Log, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    export = Export.of(log)
    export.replace(b"victim", value=b"flipped")
    folder = export.write(tmp_path / "exports")
    changes = {
        "127.0.0.1:9092": brokers,
        "shop--spent-changelog": log.topic,
        "file:///data/exports": folder.as_uri(),
        "SparkSession.getActiveSession()": "session",
    }
    names = run_cells(changes, {"session": session})
    now = fold(log.records, as_of_ms=2**41)
    assert names["state"].sparkSession is session
    assert {bytes(row["key"]): bytes(row["value"]) for row in names["state"].collect()} == {
        key: write.value for (_, key), write in now.items()
    }
    assert (names["kinds"]["equal"], names["kinds"]["different"]) == (len(fold(log.records)) - 1, 1)
    assert (printable(names["suspect"]["key"]), names["suspect"]["cause"]) == ("victim", "different_value")
    history = {row["offset"]: row for row in names["history"].collect()}
    assert sorted(bytes(row["value"]) for row in history.values()) == [b"1", b"2"]
    assert {row["expires_at_ms"] for row in history.values()} == {0, 2**42}
    assert {row["source_offset"] for row in history.values()} == {2**40}
    assert names["broken"] == {}
    assert "count" in capfd.readouterr().out


def test_folders_are_uris_too(session: SparkSession, brokers: str, log: Log, tmp_path: Path):
    written = write_rebuild(kafka(session, brokers, log.topic), to=(tmp_path / "rebuilt").as_uri())
    assert read_rebuild(session, (tmp_path / "rebuilt").as_uri()).count() == written.keys > 0
