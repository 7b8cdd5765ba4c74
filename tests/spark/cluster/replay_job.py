"""A rebuild and a validation as a job for `spark-submit`: prints what was found, and whether Python was started.

Then, on executors that see another folder at `target`: prints what each command made of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import (
    ReplayError,
    Wanted,
    archive_topics,
    kafka,
    spark_session,
    validate_exports,
    write_rebuild,
    write_snapshot,
)
from spark_replay.sources.kafka import KafkaSource


def main(brokers: str, topic: str, folder: str, apart: str) -> None:
    spark = spark_session()
    log = kafka(spark, brokers, topic)
    result = replayed(spark, log, Path(folder))
    if apart:
        result["apart"] = told_apart(spark, log, Path(folder))
    spark.stop()
    print(json.dumps(result))


def replayed(spark: SparkSession, log: KafkaSource, folder: Path) -> dict[str, object]:
    started = folder / "python-was-started"
    # where the executors see what the driver sees
    done = write_rebuild(log, to=folder / "rebuilt", as_of_ms=int((folder / "as_of_ms").read_text()))
    found = validate_exports(log, against=folder / "exports")
    executors = spark._jsc.sc().statusTracker().getExecutorInfos()
    python_by_replay = started.exists()
    # the executors' Python says that it was called: what does call it shows that it can be seen
    spark.range(1).select(F.udf(lambda number: number, "bigint")("id")).collect()
    return {
        "master": spark.sparkContext.master,
        # the driver is one of them
        "executors": len(executors) - 1,
        "keys": done.keys,
        "records": done.records,
        "totals": found.totals,
        "python_by_replay": python_by_replay,
        "python_by_udf": started.exists(),
    }


def told_apart(spark: SparkSession, log: KafkaSource, folder: Path) -> dict[str, str]:
    target, wanted = folder / "target", Wanted(brokers=log.brokers, topics=(log.topic,))
    # `good` has a rebuild that isn't to be lost; of the new one the driver sees nothing
    return {
        "rebuild": told(lambda: write_rebuild(log, to=target / "rebuilt")),
        "overwrite": told(lambda: write_rebuild(log, to=target / "good", overwrite=True)),
        "archive": told(lambda: archive_topics(spark, wanted, to=target / "archive")),
        "again": told(lambda: archive_topics(spark, wanted, to=target / "archive")),
        "snapshot": told(lambda: write_snapshot(log, app="app", to=target / "snapshots")),
    }


def told(act: Callable[[], object]) -> str:
    try:
        return f"done: {act()}"
    except ReplayError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
