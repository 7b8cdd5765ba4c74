"""A job for executors that see another folder at the target: prints what each command made of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from spark_replay import ReplayError, Wanted, archive_topics, kafka, spark_session, write_rebuild, write_snapshot


def told(act: Callable[[], object]) -> str:
    try:
        return f"done: {act()}"
    except ReplayError as error:
        return f"{type(error).__name__}: {error}"


def main(brokers: str, topic: str, folder: str) -> None:
    spark = spark_session()
    log, target, there = kafka(spark, brokers, topic), Path(folder, "target"), Path(folder, "there")
    # `there` has a rebuild that isn't to be lost; of the new one the driver sees nothing
    result = {
        "rebuild": told(lambda: write_rebuild(log, to=target / "rebuilt")),
        "overwrite": told(lambda: write_rebuild(log, to=target / "good", overwrite=True)),
        "archive": told(lambda: archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=target / "archive")),
        "again": told(lambda: archive_topics(spark, Wanted(brokers=brokers, topics=(topic,)), to=target / "archive")),
        "snapshot": told(lambda: write_snapshot(log, app="app", to=target / "snapshots")),
        "shared": told(lambda: write_rebuild(log, to=there / "rebuilt").keys),
    }
    executors = spark._jsc.sc().statusTracker().getExecutorInfos()
    result["executors"] = len(executors) - 1
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
