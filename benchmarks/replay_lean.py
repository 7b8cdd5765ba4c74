"""`python -m benchmarks.replay --lean`: what a rebuild costs beside the leanest jobs, and from an earlier rebuild.

Costs are the CPU seconds of Spark's tasks, since wall clocks tell of a shared machine's neighbours too. All jobs run in
one session, in turn, once to warm up; of the other rounds the lowest counts.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.changelog_generator import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 2
TAIL = 0.01
"""The part of the log behind the earlier rebuild."""


def measure(spark: SparkSession, folder: Path, topic: str) -> dict[str, Any]:
    """Return by job the CPU seconds of its tasks, and how fast the rebuild is, of the archive in a folder."""
    from spark_replay import archive, write_rebuild
    from spark_replay.sources.archives import verification
    from spark_replay.sources.archives.manifest import SCHEMA

    source = archive(spark, folder / "archive", topic)
    described = source.describe()
    files = [f"file://{folder}/archive/{file.name}" for file in source.files(described)]
    rows = spark.read.option("recursiveFileLookup", "true").schema(SCHEMA).parquet(*files)
    offsets = (f"{number}={math.ceil(end * (1 - TAIL))}" for number, end in enumerate(described.ends))
    point = "offset:" + ",".join(offsets)
    write_rebuild(source, to=folder / "base", as_of=point, as_of_ms=NOW_MS)
    jobs: dict[str, Callable[[Path], Any]] = {
        "rebuild": lambda to: write_rebuild(source, to=to, as_of_ms=NOW_MS),
        "semi_join": lambda to: _semi_join(rows, to),
        "max_by": lambda to: _max_by(rows, to),
        "tail": lambda to: write_rebuild(source, to=to, as_of_ms=NOW_MS, base=folder / "base"),
    }
    costs: dict[str, float] = dict.fromkeys(jobs, math.inf)
    records_per_s = 0.0
    for number in range(1 + ROUNDS):
        for name, job in jobs.items():
            # a command is a process of its own, which has checked no file before
            verification._sound.clear()
            before, began_s = cpu_s(spark), time.monotonic()
            done = job(folder / name)
            shutil.rmtree(folder / name)
            if number == 0:
                continue
            if name == "rebuild":
                records_per_s = max(records_per_s, done.records / (time.monotonic() - began_s))
            costs[name] = min(costs[name], cpu_s(spark) - before)
    return {f"{name}_cpu_s": round(cost, 2) for name, cost in costs.items()} | {"records_per_s": round(records_per_s)}


def ratios(first: dict[str, Any], last: dict[str, Any]) -> dict[str, float]:
    """Return the ratios of task CPU: to the lean jobs on one log, to the rebuild of the tail on another."""
    return {
        "rebuild_to_semi_join": round(first["rebuild_cpu_s"] / first["semi_join_cpu_s"], 2),
        "rebuild_to_max_by": round(first["rebuild_cpu_s"] / first["max_by_cpu_s"], 2),
        "full_to_tail": round(last["rebuild_cpu_s"] / last["tail_cpu_s"], 2),
    }


def cpu_s(spark: SparkSession) -> float:
    """Return the CPU time of all tasks until now."""
    return sum(float(stage.executorCpuTime()) for stage in stages(spark)) / 1e9


def stages(spark: SparkSession) -> list[Any]:
    """Return Spark's own account of the stages until now."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    none = jvm.java.util.ArrayList()
    listed = context.statusStore().stageList(none, False, False, gateway.new_array(jvm.double, 0), none)
    return [listed.apply(number) for number in range(listed.size())]


def _semi_join(rows: DataFrame, to: Path) -> None:
    """Read twice: the last offset of each key, and the records at these offsets. Nothing is checked."""
    from pyspark.sql import functions as F  # noqa: N812

    last = rows.groupBy("partition", "key").agg(F.max("offset").alias("offset")).select("partition", "offset")
    kept = rows.join(F.broadcast(last), ["partition", "offset"], "left_semi").where("value is not null")
    _write(kept.select("partition", "key", "offset", "value", "headers"), to)


def _max_by(rows: DataFrame, to: Path) -> None:
    """Read once, and shuffle all values; what people write. Nothing is checked."""
    from pyspark.sql import functions as F  # noqa: N812

    last = F.max_by(F.struct("offset", "value", "headers"), "offset").alias("last")
    kept = rows.groupBy("partition", "key").agg(last).where("last.value is not null")
    _write(kept.select("partition", "key", "last.*"), to)


def _write(rows: DataFrame, to: Path) -> None:
    rows.write.partitionBy("partition").parquet(f"file://{to}")
