"""The commands with archives, points and apps: last lines, exit codes, and one clear error for what can't be."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_replay import read_rebuild
from spark_replay.cli import main
from spark_replay.jars import ensure_jars
from tests.kafka.helpers import ROOT, make_topics, send, unique
from tests.spark.cli.test_cli import last_json, one_error, run
from tests.spark.helpers import PARTITIONS, Export, Log, Transaction, append, cut_log, put, write_log
from tests.spark.sources.archives import data_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = """
import faust
from actors import App

class Run(faust.Record):
    command: str

app = App("{id}", broker="kafka://127.0.0.1:1")
app.store("state", key_type=str, value_type=Run)
"""


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, [Transaction((put("a", "1"), put("b", "2"), put("c", "3"), put("a", None)))])


@pytest.fixture
def archived(spark: SparkSession, brokers: str, log: Log, tmp_path: Path) -> Path:
    result = run(
        "archive", "--brokers", brokers, "--topic", log.topic, "--to", tmp_path / "archive", "--once", "--compact"
    )
    assert result.exit_code == 0, result.output
    found = last_json(result.stdout)
    assert (found["batches"], found["records"], found["complete"]) == (1, 4, True)
    assert list(found["topics"]) == [log.topic]
    return tmp_path / "archive"


@pytest.mark.nightly
def test_rebuild_of_an_archive_without_a_broker(spark: SparkSession, log: Log, archived: Path, tmp_path: Path):
    result = run("rebuild", "--archive", archived, "--changelog", log.topic, "--to", tmp_path / "to")
    assert result.exit_code == 0, result.output
    assert (last_json(result.stdout)["keys"], last_json(result.stdout)["unknown"]) == (2, 0)
    assert {path.name for path in (tmp_path / "to").iterdir()} >= {
        f"partition={log.records[1].partition}",
        "_rebuild.json",
    }
    exports = Export.of(log).write(tmp_path / "exports")
    found = run("validate", "--archive", archived, "--changelog", log.topic, "--against", exports)
    assert (found.exit_code, last_json(found.stdout)["equal"]) == (0, 2)


@pytest.mark.nightly
def test_unknown_keys_are_told(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(
        brokers, [Transaction((put("a", "1"), put("late", "1")))], config={"cleanup.policy": "compact,delete"}
    )
    late = next(write for write in log.records if write.key == b"late")
    asyncio.run(append(brokers, log, [Transaction((put("late", "2"),))]))
    # as compaction may leave it
    asyncio.run(cut_log(brokers, log.topic, {late.partition: late.offset + 1}))
    common = ["--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to"]
    result = run("rebuild", *common, "--as-of", f"offset:{late.partition}={late.offset + 2}")
    assert result.exit_code == 0, result.output
    assert last_json(result.stdout)["unknown"] == 1
    assert f"unknown: partition {late.partition} key late, written again at offset" in result.stderr
    assert "(--archive)" in result.stderr
    told = one_error(run("rebuild", *common, "--overwrite", "--as-of", f"offset:{late.partition}={late.offset}"))
    assert f"begins at offset {late.offset + 1}, the point lies before it" in told
    assert json.loads((tmp_path / "to" / "_rebuild.json").read_text())["unknown"] == 1


def test_values_decoded_by_the_app(spark: SparkSession, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    app = unique("decoding")
    log = Log(f"{app}--state-changelog", [])
    asyncio.run(make_topics(brokers, log.topic, partitions=PARTITIONS))
    asyncio.run(append(brokers, log, [Transaction((put("a", '{"command": "ls"}'), put("b", "junk")))]))
    module = app.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(APP.format(id=app))
    monkeypatch.syspath_prepend(tmp_path)
    common = ["--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to", "--app", module]
    result = run("rebuild", *common)
    assert result.exit_code == 0, result.output
    assert (last_json(result.stdout)["keys"], last_json(result.stdout)["undecodable"]) == (2, 1)
    assert "keys and values that don't decode: 1." in result.stderr
    rows = {bytes(row["key"]): row for row in read_rebuild(spark, tmp_path / "to").collect()}
    assert (rows[b"a"]["key_json"], json.loads(rows[b"a"]["value_json"])) == ('"a"', {"command": "ls"})
    assert (rows[b"b"]["key_json"], rows[b"b"]["value_json"]) == ('"b"', None)
    assert bytes(rows[b"b"]["value"]) == b"junk"
    other = write_log(brokers, [Transaction((put("a", "1"),))])
    common = ["--brokers", brokers, "--changelog", other.topic, "--to", tmp_path / "other", "--app"]
    told = f"{other.topic} isn't a changelog of the app {module}, which has: {log.topic}"
    assert told in one_error(run("rebuild", *common, module))
    assert "none: there is no app of this name in the module" in one_error(run("rebuild", *common, f"{module}:none"))
    assert "module 'nowhere_at_all' can't be imported" in one_error(run("rebuild", *common, "nowhere_at_all"))
    assert not (tmp_path / "other").exists()


def test_topic_that_is_no_changelog(spark: SparkSession, brokers: str, tmp_path: Path):
    topic = unique("orders")
    asyncio.run(make_topics(brokers, topic))
    asyncio.run(send(brokers, topic, [(b"a", b"1"), (b"b", b"2")]))
    common = ["--brokers", brokers, "--changelog", topic, "--to", tmp_path / "to"]
    assert "none of 2 records of topic" in one_error(run("rebuild", *common))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_damaged_archive(spark: SparkSession, log: Log, archived: Path, tmp_path: Path):
    common = ["--archive", archived, "--changelog", log.topic, "--to", tmp_path / "to"]
    assert run("rebuild", *common).exit_code == 0
    [file, *_] = data_files(archived)
    file.write_bytes(file.read_bytes()[:-20])
    assert "bytes and was written with" in one_error(run("rebuild", *common, "--overwrite"))
    file.unlink()
    assert "has lost data/" in one_error(run("rebuild", *common, "--overwrite"))
    assert json.loads((tmp_path / "to" / "_rebuild.json").read_text())["keys"] == 2
    assert "no archive in" in one_error(
        run("rebuild", "--archive", tmp_path / "none", "--changelog", log.topic, "--to", tmp_path / "other")
    )


def test_kafka_settings_of_a_file(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    settings = tmp_path / "client.properties"
    common = ["--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to", "--kafka-properties", settings]
    settings.write_text("# as kafka-topics.sh takes it\nclient.id: some \\\n  client\nsecurity.protocol=NONE\n")
    assert "security.protocol" in one_error(run("rebuild", *common))
    assert run("rebuild", *common, "--kafka-option", "security.protocol=PLAINTEXT").exit_code == 0
    settings.write_bytes(b"\xff\xfe")
    assert "client.properties can't be read: it isn't a properties file" in one_error(
        run("rebuild", *common, "--overwrite")
    )


def test_delta_that_is_not_installed(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    common = ["--brokers", brokers, "--changelog", log.topic, "--to", f"delta:{tmp_path}/to"]
    assert "this Spark has no Delta: start it with spark.jars.packages=io.delta" in one_error(run("rebuild", *common))


def usage(result: Result) -> str:
    assert result.exit_code == 2
    return result.stderr


def test_options_that_do_not_go_together(tmp_path: Path):
    to = ["--to", tmp_path / "to"]
    assert "give the place of the log: --brokers, or --archive" in usage(run("rebuild", "--changelog", "t", *to))
    brokers = ["--brokers", "127.0.0.1:1"]
    assert "isn't a point" in one_error(run("rebuild", *brokers, "--changelog", "t", *to, "--as-of", "noon"))
    assert "say what to archive" in usage(run("archive", *brokers, *to, "--once"))
    both = ["--topic", "t", "--topic-pattern", "t.*"]
    assert "say what to archive" in usage(run("archive", *brokers, *to, *both, "--once"))
    assert "say for how long" in usage(run("archive", *brokers, *to, "--topic", "t"))
    assert "isn't a time such as 60s" in usage(run("archive", *brokers, *to, "--topic", "t", "--every", "soon"))
    assert "isn't a regular expression" in usage(run("archive", *brokers, *to, "--topic-pattern", "(", "--once"))


@pytest.mark.parametrize("command", ["rebuild", "validate", "archive"])
def test_help_has_an_example(command: str):
    result = CliRunner().invoke(main, [command, "--help"])
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith(f"python -m spark_replay {command} --brokers 127.0.0.1:9092") for line in lines)
    assert all(len(line) < 130 for line in lines)


def test_connector_that_is_not_complete(brokers: str, tmp_path: Path):
    for jar in ensure_jars():
        if not jar.name.startswith("spark-sql-kafka"):
            shutil.copy(jar, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "spark_replay", "rebuild", "--brokers", brokers, "--changelog", "t", "--to", "to"],
        cwd=ROOT,
        env={**os.environ, "SPARK_REPLAY_JARS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"isn't complete: no spark-sql-kafka-0-10_*.jar in {tmp_path}" in done.stderr
    assert "Traceback" not in done.stderr
