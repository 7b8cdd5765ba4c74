"""`make bench-replay`: rebuild and validate changelogs of 1, 5 and 20 million records, from Kafka and from an archive.

Each measurement is a process of its own, so that its JVM's memory is its own too. Each rebuild is checked against the
state that the generator knows (keys, and the sum of the rows' CRC-32), each validation against the same state as a
worker would have exported it. The last line is JSON.

`--lean` measures something else, see `benchmarks.replay_lean`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from benchmarks import replay_lean
from benchmarks.changelog_generator import BROKER, NOW_MS, PARTITIONS, Shape, write_changelog, write_state
from benchmarks.peers.broker import delete_topics, ends, start_cluster
from benchmarks.peers.tables import Table, write_readme
from benchmarks.replay_lean import ratios, stages
from dev.kafka import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
_COMMAND = ".venv/bin/python -m benchmarks.replay"
_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a process is to measure.

    Attributes:
        what: `archive`, `rebuild`, `validate` or `lean`.
        source: `kafka` or `archive`.
        brokers: The broker.
        topic: The changelog.
        folder: Where archive, exports and rebuilds are.
        settings: Spark's.
        keys: How many keys the state has.
        checksum: What `benchmarks.changelog_generator.State` says.
    """

    what: str
    source: str
    brokers: str
    topic: str
    folder: str
    settings: dict[str, str]
    keys: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
        what: As in `Task`.
        source: As in `Task`.
        written: Records in the changelog as they were written, aborted ones too.
        records: Records read: committed, and left by compaction.
        seconds: From the call to its end, in a session that has done nothing before.
        start_s: What the start of Python, Java and Spark took before.
        shuffle_bytes: Written by Spark's tasks for others.
        spilled_bytes: Written to disk because memory didn't do.
        peak_rss_bytes: The JVM's highest resident memory.
        keys: Keys in the state.
    """

    what: str
    source: str
    written: int
    records: int
    seconds: float
    start_s: float
    shuffle_bytes: int
    spilled_bytes: int
    peak_rss_bytes: int
    keys: int

    @property
    def records_per_s(self) -> float:
        """Without the session's start."""
        return self.records / self.seconds


@click.group(invoke_without_command=True)
@click.option(
    "--sizes", help="Records, separated by commas. Default: 1, 5 and 20 million; with --lean 4 and 8 million."
)
@click.option("--keys", default=0, help="How many keys there may be. Default: half as many as records.")
@click.option("--lean", is_flag=True, help="The CPU of a rebuild, of the leanest jobs, and of a rebuild from another.")
@click.option("--repeat", default=1, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--spark-option", "options", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
@click.option("--quick", is_flag=True, help="200,000 records, to see that it works.")
@click.pass_context
def main(
    ctx: click.Context,
    *,
    sizes: str | None,
    keys: int,
    lean: bool,
    repeat: int,
    seed: int,
    options: Sequence[str],
    write: bool,
    quick: bool,
) -> None:
    """Measure rebuild and validate."""
    if ctx.invoked_subcommand:
        return
    settings = dict(option.split("=", 1) for option in options)
    sizes = sizes or ("4000000,8000000" if lean else "1000000,5000000,20000000")
    wanted = [200_000] if quick else [int(size.replace("_", "")) for size in sizes.split(",")]
    shapes = [Shape(records=size, seed=seed, keys=keys) for size in wanted]
    if lean:
        _measure_lean(shapes, settings)
        return
    found: list[Measured] = []
    folder = Path(tempfile.mkdtemp(prefix="bench-replay-"))
    try:
        with start_cluster(folder, overrides=BROKER) as cluster:
            for shape in shapes:
                found += _measure_all(cluster, shape, folder / f"{shape.records}", settings, repeat)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = _table(found)
    table.show()
    if write:
        write_readme(table, _COMMAND)
    click.echo(json.dumps([asdict(one) for one in found]))


@main.command(hidden=True)
@click.argument("task")
@click.argument("began_s", type=float)
def measure(task: str, began_s: float) -> None:
    """Measure one task; what the parent starts."""
    from spark_replay import spark_session

    given = Task(**json.loads(task))
    spark = spark_session(settings=given.settings)
    started_s = time.time()
    records = _DO[given.what](spark, given)
    seconds = time.time() - started_s
    result = {"records": records, "seconds": round(seconds, 3), "start_s": round(started_s - began_s, 3)} | _used(spark)
    # after the figures were taken, because it is work for Spark too
    if given.what == "rebuild":
        _check_rebuild(spark, given)
    spark.stop()
    click.echo(json.dumps(result))


def _measure_lean(shapes: Sequence[Shape], settings: dict[str, str]) -> None:
    results = []
    folder = Path(tempfile.mkdtemp(prefix="bench-replay-"))
    try:
        for shape in shapes:
            # the broker is gone when the jobs are measured
            with start_cluster(folder / f"broker-{shape.records}", overrides=BROKER) as cluster:
                task = _written(cluster, shape, folder / f"{shape.records}", settings)
                _run(task)
            result = _run(replace(task, what="lean", source="archive"))["records"]
            results.append(result)
            _progress.print(f"{shape.records:,} records: {json.dumps(result)}", highlight=False)
            shutil.rmtree(task.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps(ratios(results[0], results[-1]) | {"logs": results}))


def _written(cluster: Cluster, shape: Shape, folder: Path, settings: dict[str, str]) -> Task:
    """Write a changelog, and return the task that archives it."""
    topic = f"bench-state-changelog-{shape.records}"
    began_s = time.monotonic()
    asyncio.run(write_changelog(cluster, topic, shape))
    _progress.print(f"{shape.records:,} records written in {time.monotonic() - began_s:.1f} s", highlight=False)
    at = asyncio.run(ends(cluster.bootstrap, topic))
    positions = [at[number] for number in range(PARTITIONS)]
    state = write_state(shape, folder / "exports", topic=topic, topic_id="", positions=positions)
    return Task(
        what="archive",
        source="kafka",
        brokers=cluster.bootstrap,
        topic=topic,
        folder=str(folder),
        settings=settings,
        keys=state.keys,
        checksum=state.checksum,
    )


def _measure_all(cluster: Cluster, shape: Shape, folder: Path, settings: dict[str, str], repeat: int) -> list[Measured]:
    task = _written(cluster, shape, folder, settings)
    found = [_measured(task, shape)]
    for _ in range(repeat):
        for source in ("kafka", "archive"):
            found += [_measured(replace(task, what=what, source=source), shape) for what in ("rebuild", "validate")]
    asyncio.run(delete_topics(cluster.bootstrap, task.topic))
    shutil.rmtree(folder)
    return found


def _run(task: Task) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.replay", "measure", json.dumps(asdict(task)), str(time.time())]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _measured(task: Task, shape: Shape) -> Measured:
    result = _run(task)
    one = Measured(what=task.what, source=task.source, written=shape.records, keys=task.keys, **result)
    _progress.print(
        f"{one.what} from {one.source}: {one.records:,} records in {one.seconds:.1f} s, {one.records_per_s:,.0f}/s",
        highlight=False,
    )
    return one


def _source(spark: SparkSession, task: Task) -> Any:
    from spark_replay import archive, kafka

    if task.source == "kafka":
        return kafka(spark, task.brokers, task.topic)
    return archive(spark, f"{task.folder}/archive", task.topic)


def _archive(spark: SparkSession, task: Task) -> int:
    from spark_replay import Wanted, archive_topics

    wanted = Wanted(brokers=task.brokers, topics=(task.topic,))
    return archive_topics(spark, wanted, to=f"{task.folder}/archive").records


def _rebuild(spark: SparkSession, task: Task) -> int:
    from spark_replay import write_rebuild

    done = write_rebuild(_source(spark, task), to=Path(task.folder, "rebuilt"), overwrite=True, as_of_ms=NOW_MS)
    return done.records


def _validate(spark: SparkSession, task: Task) -> int:
    from spark_replay import validate_exports

    found = validate_exports(_source(spark, task), against=Path(task.folder, "exports"))
    if found.mismatches or found.counts["equal"] != task.keys:
        raise click.ClickException(f"validate found {found.totals}, expected {task.keys} equal keys")
    return found.records


def _lean(spark: SparkSession, task: Task) -> dict[str, Any]:
    return replay_lean.measure(spark, Path(task.folder), task.topic)


_DO: dict[str, Callable[[SparkSession, Task], Any]] = {
    "lean": _lean,
    "archive": _archive,
    "rebuild": _rebuild,
    "validate": _validate,
}


def _check_rebuild(spark: SparkSession, task: Task) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from spark_replay import read_rebuild

    metadata = F.concat_ws(",", "epoch", "source_offset", "expires_at_ms")
    row = F.crc32(F.concat("key", "value", F.encode(metadata, "UTF-8")))
    rows = read_rebuild(spark, Path(task.folder, "rebuilt")).agg(F.count(F.lit(1)), F.sum(row)).collect()
    if tuple(rows[0]) != (task.keys, task.checksum):
        raise click.ClickException(f"rebuilt {tuple(rows[0])}, expected {(task.keys, task.checksum)} (keys, checksum)")


def _used(spark: SparkSession) -> dict[str, int]:
    """Ask Spark what its tasks wrote, and Linux how much memory the JVM had at most."""
    jvm: Any = spark._jvm
    each = stages(spark)
    status = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "shuffle_bytes": sum(stage.shuffleWriteBytes() for stage in each),
        "spilled_bytes": sum(stage.diskBytesSpilled() for stage in each),
        "peak_rss_bytes": peak_kib << 10,
    }


def _table(found: Sequence[Measured]) -> Table:
    groups: dict[tuple[str, str, int], list[Measured]] = {}
    for one in found:
        groups.setdefault((one.what, one.source, one.written), []).append(one)
    return Table(
        name="replay",
        title=(
            "Changelogs with skewed keys, tombstones, expired keys, aborted transactions and a compacted part, folded "
            "by Spark on local[*] with a heap of 2 GiB; every result was checked. Records/s count what was read, from "
            "the call to its end; start: Python, Java and Spark before it."
        ),
        columns=[
            "", "written", "read", "keys", "records/s", "seconds", "start s", "shuffled MB", "spilled MB", "peak RSS MB"
        ],
        rows=[_row(*groups[name]) for name in sorted(groups)],
    )  # fmt: skip


def _row(*runs: Measured) -> tuple[str, ...]:
    first = runs[0]
    rates = [run.records_per_s for run in runs]
    spread = f" ({min(rates):,.0f} to {max(rates):,.0f})" if len(runs) > 1 else ""
    return (
        f"{first.what} from {first.source}",
        f"{first.written:,}",
        f"{first.records:,}",
        f"{first.keys:,}",
        f"{statistics.median(rates):,.0f}{spread}",
        f"{statistics.median(run.seconds for run in runs):.1f}",
        f"{statistics.median(run.start_s for run in runs):.1f}",
        *(
            f"{max(getattr(run, name) for run in runs) / 1e6:,.0f}"
            for name in ("shuffle_bytes", "spilled_bytes", "peak_rss_bytes")
        ),
    )


if __name__ == "__main__":
    main()
