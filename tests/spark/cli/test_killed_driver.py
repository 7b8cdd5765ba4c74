"""A driver that gets kill -9 at a step of a rebuild: the old rebuild stays whole, and the next run takes its place."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from spark_replay import kafka, read_rebuild, write_rebuild
from spark_replay.cli import main
from spark_replay.sources.staging import replacing
from tests.kafka.helpers import ROOT
from tests.spark.cli.test_cli import QUICK
from tests.spark.helpers import Transaction, append, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = {
    "after the read": "spark_replay.fold.rebuild._counts",
    "before the files": "spark_replay.fold.rebuilt.write_files",
    "before they are read back": "spark_replay.fold.rebuilt.require_same",
    "before the swap": "spark_replay.sources.staging.tighten_tree",
}
PROGRAM = """
import os, pkgutil, sys
number = int(sys.argv.pop(1))
where, _, name = sys.argv.pop(1).rpartition(".")
assert hasattr(pkgutil.resolve_name(where), name)
setattr(pkgutil.resolve_name(where), name, lambda *_, **__: os.kill(os.getpid(), number))
from spark_replay.cli import main
main()
"""


@pytest.mark.nightly
def test_a_driver_that_is_killed(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction((put("a", "old"),))])
    to = tmp_path / "rebuilt"
    write_rebuild(kafka(spark, brokers, log.topic), to=to)
    asyncio.run(append(brokers, log, [Transaction((put("a", "new"), put("b", "new")))]))
    command = ["rebuild", "--brokers", brokers, "--changelog", log.topic, "--to", str(to), "--overwrite"]

    def stopped(number: int, function: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", PROGRAM, str(int(number)), function, *command, "--spark-option", QUICK, "--json"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert [bytes(row["value"]) for row in read_rebuild(spark, to).collect()] == [b"old"], function
        return done

    for step, function in STEPS.items():
        assert (done := stopped(signal.SIGKILL, function)).returncode == -signal.SIGKILL, (step, done.stderr)
    # Ctrl-C cleans up
    done = stopped(signal.SIGINT, STEPS["before they are read back"])
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "interrupted"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rebuilt"]
    with suppress(ValueError), replacing(to):
        refused = CliRunner().invoke(main, [*command, "--json"])
        raise ValueError("stop")
    assert refused.exit_code == 2
    assert f"another run is writing to {to}" in json.loads(refused.stdout)["error"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert [bytes(row["value"]) for row in read_rebuild(spark, to).collect()] == [b"new", b"new"]
    assert [path.name for path in tmp_path.iterdir()] == ["rebuilt"]
