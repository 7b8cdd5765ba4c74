"""The end of every command: `--json`, and exit codes that no failure takes for a mismatch."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_replay.cli import main
from spark_replay.cli.outcome import SCHEMA
from spark_replay.comparison.history import Event, History
from spark_replay.comparison.report import Report
from spark_replay.recompute.report import Recomputed
from tests.kafka.helpers import ROOT
from tests.spark.helpers import PARTITIONS, Export, Log, Transaction, home, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOWHERE = ("rebuild", "--brokers", "127.0.0.1:1", "--changelog", "a--b-changelog", "--to", "to")
HEAD = ["schema", "command", "exit_code", "error"]


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, [Transaction(tuple(put(f"k{number}", "1") for number in range(20)))])


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def printed(result: Result) -> dict:
    """Return the one object on standard output."""
    assert result.stdout.count("\n") == 1, result.output
    content = json.loads(result.stdout)
    assert list(content)[:4] == HEAD
    assert (content["schema"], content["exit_code"]) == (SCHEMA, result.exit_code)
    return content


def test_every_command_has_json():
    names = ["archive", "explain", "publish", "rebuild", "recompute", "snapshot", "validate", "watch"]
    assert sorted(main.commands) == names
    for name in main.commands:
        assert "--json" in run(name, "--help").stdout, name


@pytest.mark.parametrize(
    "words", [["--nonsense"], ["validate"], ["nonsense"], NOWHERE[:-2], [*NOWHERE[:-2], "--to", "s3a://bucket/to"]]
)
def test_wrong_usage_ends_with_2(words: list[str]):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


@pytest.mark.parametrize("words", [["--as-of", "nonsense"], ["--nonsense"], []])
def test_a_failure_is_an_object(words: list[str]):
    result = run(*NOWHERE, *words, "--json")
    content = printed(result)
    assert list(content) == HEAD
    assert (content["command"], content["exit_code"]) == ("rebuild", 2)
    assert f"Error: {content['error']}" in result.stderr


@pytest.mark.parametrize("error", [RuntimeError("a defect"), KeyboardInterrupt()])
def test_neither_a_defect_nor_ctrl_c_is_a_mismatch(monkeypatch: pytest.MonkeyPatch, error: BaseException):
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr("spark_replay.cli.options.require_reachable", fail)
    assert run(*NOWHERE).exit_code == 2
    assert printed(run(*NOWHERE, "--json"))["error"] in ("RuntimeError: a defect", "interrupted")


def test_a_session_of_another_thread_goes_on(spark: SparkSession, tmp_path: Path):
    words = ["rebuild", "--archive", tmp_path / "none", "--changelog", "app--s-changelog", "--to", tmp_path / "to"]
    with ThreadPoolExecutor() as pool:
        result = pool.submit(run, *words).result()
    assert (result.exit_code, "no archive in" in result.stderr) == (2, True)
    assert spark.range(2).count() == 2


def test_output_that_nobody_reads(tmp_path: Path):
    """`validate | head -0`: a result that can't be handed over is no mismatch."""
    program = "import os; os.close(1); os.open('/dev/full', os.O_WRONLY); from spark_replay.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *NOWHERE, "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr


def test_a_partition_that_cannot_be_compared(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    """It doesn't hide the result of the others: of a position beyond the log, and of a damaged file."""
    export = Export.of(log)
    export.positions[1] = replace(export.positions[1], changelog_offset=log.ends[1] + 1000)
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--json", "--against"]
    folder = export.write(tmp_path / "exports")
    compared = sum(home(f"k{number}".encode()) not in (1, 2) for number in range(20))
    (folder / "worker-1" / "partition-00002.parquet").write_bytes(b"no file of Parquet")
    content = printed(run(*command, folder, "--html", tmp_path / "page.html"))
    assert content["exit_code"] == 2
    assert sorted(content["unanswered"]) == ["1", "2"]
    assert "the log is shorter than the export's position" in content["unanswered"]["1"]
    assert "partition-00002.parquet can't be read" in content["unanswered"]["2"]
    assert content["error"].startswith(f"the state of 2 of {PARTITIONS} partitions of {log.topic} couldn't be read")
    assert (content["totals"]["equal"], content["totals"]["mismatches"], content["keys"]) == (compared, 0, compared)
    assert "2 of 3 partitions couldn't be compared" in html.unescape((tmp_path / "page.html").read_text())
    in_first = next(key for number in range(20) if home(key := f"k{number}".encode()) == 0)
    export.worker = "worker-2"
    export.replace(in_first, value=b"flipped")
    content = printed(run(*command, export.write(tmp_path / "others")))
    assert (content["exit_code"], content["totals"]["different"]) == (1, 1)
    assert sorted(content["unanswered"]) == ["1"]


@pytest.mark.nightly
def test_a_log_alone(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    page = tmp_path / "page.html"
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--invariants"]
    result = run(*command, "--html", page)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["checks"]["epochs"] == 0
    assert "epochs: owners' epochs only grow: holds" in result.stderr
    assert "No record breaks a rule of the log" in page.read_text()
    assert [finding["check"] for finding in printed(run(*command, "--json"))["findings"]] == [
        *("writers", "epochs", "source_offsets", "metadata", "partitioner")
    ]


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    return re.split(r"\n##? ", text[text.index(f"# {title}\n") :], maxsplit=1)[0]


def test_the_schema_is_documented():
    """Each field of each object stands on its page, and no others do in the tables."""
    shared = section("reference/command-line.md", "spark_replay")
    report, history = (section("how-to/validate.md", title) for title in ("Report", "One key's history"))
    rows = [line.split("|")[1] for line in report.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall("`(.+?)`", row)} == {*Report.__slots__, "totals"}
    assert set(HEAD) | {"totals"} <= set(re.findall(r"^\| `(\w+)` \|", shared, re.M))
    assert f"| `schema` | {SCHEMA};" in shared
    assert {name for name in Recomputed.__slots__ if f"`{name}`" not in shared} == set()
    assert {name for name in (*History.__slots__, *Event.__slots__) if f"`{name}`" not in history} == set()
