"""The script of the hourly audit on a broker: an equal hour, one with a planted mismatch, and the next one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from spark_replay.cli import main
from tests.documents import ROOT
from tests.spark.helpers import Export, Log, Transaction, append, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# what the script starts as `python`: the command runs in the process of the tests, whose Spark is warm
PROGRAM = f"""#!{sys.executable}
import os, sys
from multiprocessing.connection import Client

assert sys.argv[1:3] == ["-m", "spark_replay"]
with Client(os.environ["COMMANDS"]) as connection:
    connection.send(sys.argv[3:])
    stdout, stderr, code = connection.recv()
sys.stdout.write(stdout)
sys.stderr.write(stderr)
sys.exit(code)
"""


def audit(brokers: str, log: Log, exports: Path, folder: Path) -> tuple[int, dict]:
    """Run the script; return its exit code and the object that it prints."""
    program, address = exports.parent / "bin" / "python", str(exports.parent / "commands")
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    command = [ROOT / "docs" / "ops" / "audit.sh", brokers, log.topic, exports, folder]
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "COMMANDS": address}

    def run() -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, env=environment, capture_output=True, text=True)
        finally:
            with Client(address) as connection:
                connection.send(None)

    with Listener(address) as listener, ThreadPoolExecutor(1) as pool:
        script = pool.submit(run)
        while True:
            with listener.accept() as connection:
                words = connection.recv()
                if words is None:
                    break
                result = CliRunner().invoke(main, words)
                connection.send((result.stdout, result.stderr, result.exit_code))
    done = script.result()
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stderr
    return done.returncode, json.loads(lines[0])


def write(brokers: str, log: Log, *values: tuple[str, str]) -> Export:
    """Write to the log, and return what its worker holds then."""
    place = {"epoch": 7, "source_offset": len(log.records)}
    asyncio.run(append(brokers, log, [Transaction(tuple(put(key, value, **place) for key, value in values))]))
    return replace(Export.of(log), exported_at_ms=time.time_ns() // 1_000_000)


@pytest.mark.nightly
def test_the_hourly_audit(spark: SparkSession, brokers: str, tmp_path: Path) -> None:
    log = write_log(brokers, [], config={"cleanup.policy": "compact"})
    export = write(brokers, log, *((f"key-{number}", "1") for number in range(20)))
    export.write(tmp_path / "first")
    code, report = audit(brokers, log, tmp_path / "first", tmp_path / "audit")
    assert (code, report["totals"]["equal"]) == (0, 20)
    # one partition alone goes on: the positions of the others stay before the marker of the first transaction
    export = write(brokers, log, ("key-7", "2"))
    damaged = replace(export, rows={number: list(rows) for number, rows in export.rows.items()})
    damaged.replace(b"key-3", value=b"flipped")
    damaged.write(tmp_path / "second")
    code, report = audit(brokers, log, tmp_path / "second", tmp_path / "audit")
    assert (code, report["totals"]["equal"], report["totals"]["mismatches"]) == (1, 19, 1)
    (example,) = report["examples"]["different"]
    assert (example["key"], example["cause"]) == ("key-3", "different_value")
    # of the log only what was written since the first run is read
    assert report["records"] == 1
    code, report = audit(brokers, log, export.write(tmp_path / "third"), tmp_path / "audit")
    assert (code, report["totals"]["equal"], report["records"]) == (0, 20, 1)
    rebuilt = json.loads((tmp_path / "audit" / "rebuilt" / "_rebuild.json").read_text())
    assert (rebuilt["keys"], rebuilt["records"], rebuilt["made_from"] != "") == (20, 1, True)
    code, report = audit("127.0.0.1:1", log, tmp_path / "third", tmp_path / "audit")
    assert (code, "no broker answers" in report["error"]) == (2, True)
