"""The examples of the API page run as they stand there, with another broker and another changelog."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_replay import kafka
from tests.documents import block
from tests.kafka.helpers import unique
from tests.spark.helpers import Export, Log, Transaction, fold, put, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, BROKER = "shop--spent-changelog", "127.0.0.1:9092"


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, random_transactions(11, count=20, keys=30), config={"cleanup.policy": "compact"})


@pytest.mark.usefixtures("spark")
def test_a_changelog_is_archived_and_rebuilt(
    brokers: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {TOPIC: log.topic, BROKER: brokers, "0: 500": "0: 4"}
    schema = '{"type": "record", "name": "Spent", "fields": [{"name": "cents", "type": "long"}]}'
    (tmp_path / "schemas.json").write_text(json.dumps({log.topic: {"reader": schema, "writers": {"1": schema}}}))
    names = block("docs/reference/api/spark_replay.md", "Examples").run({}, changes=changes)
    assert names["columns"].schema["value_columns"].dataType.names == ["cents"]
    assert names["archived"].records == len(log.records)
    assert names["deletes"].count() == sum(record.value is None for record in log.records)
    expected = fold(log.records, before=[4, None, None], as_of_ms=2**62)
    assert names["state"].where("partition = 0").count() == sum(place[0] == 0 for place in expected)
    first = [record for record in log.records if record.partition == 0]
    before = {record.key for record in first if record.offset < 4}
    doubtful = {bytes(row["key"]) for row in names["doubtful"].collect()}
    assert doubtful == {record.key for record in first} - before
    assert names["rows"].count() == names["written"].keys > 0
    assert names["misplaced"].count() == 0


@pytest.mark.nightly
def test_exports_are_compared_and_the_log_is_checked(
    spark: SparkSession, brokers: str, log: Log, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = block("docs/reference/api/spark_replay.md", "Examples", 2).run({})
    source, other = kafka(spark, brokers, log.topic), kafka(spark, brokers, log.topic)
    export = Export.of(log)
    lost = next(row for rows in export.rows.values() for row in rows if not row.expires_at_ms)
    export.remove(lost.key)
    folder = export.write(tmp_path / "exports")
    said = names["explain"](source, folder)
    assert any(line.startswith(f"{lost.key.decode()}: ") for line in said), said
    assert any(line.startswith("put_if_absent: ") for line in said), "keys were written again"
    assert names["counts"](source, folder)["missing"] == 1
    assert "cause" in capfd.readouterr().out
    assert names["is_same"](source, other)


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_a_changelog_becomes_a_snapshot_and_another_one(
    brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write_log(brokers, [Transaction((put("a", "1"), put("b", "2"), put("c", None)))])
    larger = f"{unique('app--larger')}-changelog"
    changes = {TOPIC: log.topic, 'app="shop"': 'app="app"', "shop2--spent-changelog": larger}
    code = block("docs/reference/api/spark_replay.md", "Examples", 5)
    names = replace(code, code=code.code.replace(BROKER, brokers)).run({}, changes=changes)
    assert names["snapshot"].records == 3
    assert names["published"].keys == 2
