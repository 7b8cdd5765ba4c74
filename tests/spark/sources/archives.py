"""`spark_replay archive` as a process, and what an archive and a topic hold, to be compared."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_replay import ArchiveError, archive
from spark_replay.sources.archives.archive import ArchiveSource
from tests.kafka.helpers import ROOT, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 150.0
# small batches: compiled code isn't worth its time
QUICK = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory=1g",
    "spark.sql.shuffle.partitions=2",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.ui.explainMode=simple",
)
Row = tuple[int, int, bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


def in_topic(brokers: str, topic: str) -> list[Row]:
    """A topic's committed records: partition, offset, key, value, timestamp, headers."""
    return [
        (r.partition, r.offset, r.key, r.value, r.timestamp, tuple(r.headers))
        for r in asyncio.run(read_all(brokers, topic))
    ]


def in_archive(source: ArchiveSource) -> list[Row]:
    """The same of an archive, sorted; what is there twice is there twice."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = source.records(source.describe()).withColumn("at_ms", F.unix_millis("timestamp")).collect()
    return sorted(
        (
            row["partition"],
            row["offset"],
            _bytes(row["key"]),
            _bytes(row["value"]),
            row["at_ms"],
            tuple((header["key"], bytes(header["value"])) for header in row["headers"] or ()),
        )
        for row in rows
    )


def _bytes(raw: bytearray | None) -> bytes | None:
    return None if raw is None else bytes(raw)


class ArchiveProcess:
    """The command, in a process group of its own together with its JVM."""

    def __init__(self, brokers: str, topic: str, to: Path, *more: str, place: str | None = None) -> None:
        self.to = to
        self.log = to.with_suffix(f".{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "spark_replay", "archive", "--brokers", brokers, "--topic", topic]
        command += ["--to", place or str(to), "--master", "local[2]", *more]
        command += [part for setting in QUICK for part in ("--spark-option", setting)]
        with self.log.open("w") as log, self.log.with_suffix(".out").open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=dict(os.environ), stdout=out, stderr=log, start_new_session=True
            )

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds, while the process runs."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, f"it ended before {what}: {self.log.read_text()}"
            assert time.monotonic() < deadline_s, f"no {what}: {self.log.read_text()}"
            time.sleep(0.005)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to its JVM too."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it and its JVM at once, if they still run."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL, group=True)
        self.process.wait(timeout=30)

    def result(self) -> dict[str, object]:
        """Wait for its end, and give the last line of its output."""
        code = self.process.wait(timeout=DEADLINE_S)
        assert code == 0, self.log.read_text()
        return json.loads(self.log.with_suffix(".out").read_text().splitlines()[-1])


def batches(to: Path) -> set[int]:
    """The numbers of the entries of an archive's manifest."""
    return {int(path.stem) for path in (to / "_manifest").glob("*.json") if path.stem.isdigit()}


def attempts(to: Path) -> set[int]:
    """The numbers of the batches that runs began to write."""
    return {int(path.name[:8]) for path in (to / "data").glob("*")}


def data_files(to: Path) -> list[Path]:
    """The files of an archive, by name."""
    return sorted((to / "data").glob("*/**/*.parquet"))


def covered(spark: SparkSession, to: Path, topic: str) -> int:
    """How many offsets an archive covers."""
    try:
        return sum(archive(spark, to, topic).describe().ends)
    except ArchiveError:
        return 0
