"""A job for `spark-submit` whose executors are killed by their pids while it rebuilds: prints what came of each."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from spark_replay import ReplayError, kafka, read_rebuild, rebuild_state, spark_session, write_rebuild
from spark_replay.fold import rebuild
from spark_replay.sources.reading import reading

EXECUTORS = 2
DEADLINE_S = 60.0


def main(brokers: str, topic: str, folder: str, as_of_ms: str) -> None:
    spark = spark_session()
    log, at_ms, to = kafka(spark, brokers, topic), int(as_of_ms), Path(folder) / "rebuilt"
    result: dict[str, Any] = {}
    first = both(spark)
    state = rebuild_state(log, as_of_ms=at_ms)
    kill(1)
    result["one after the read"] = told(lambda: rows(state))
    second = both(spark, first)
    killing("write_files")
    result["one in the middle"] = told(
        lambda: write_rebuild(log, to=to, as_of_ms=at_ms) and rows(read_rebuild(spark, to))
    )
    both(spark, second)
    state = rebuild_state(log, as_of_ms=at_ms)
    once = spark.range(0, 100, 1, 8).localCheckpoint()
    kill(1)
    result["kept once"] = told(lambda: once.collect())
    # the other one, and one that has taken the place of the first
    kill(EXECUTORS)
    result["both after the read"] = told(lambda: rows(state))
    spark.stop()
    print(json.dumps(result))


def rows(state: Any) -> dict[str, str]:
    return {bytes(row["key"]).decode(): bytes(row["value"]).decode() for row in state.collect()}


def told(act: Callable[[], Any]) -> Any:
    try:
        with reading("the log"):
            return act()
    except ReplayError as error:
        return f"{type(error).__name__}: {error}"


def killing(name: str) -> None:
    """Kill an executor when a step of the rebuild begins, once."""
    step = getattr(rebuild, name)

    def killed(*args: Any, **more: Any) -> Any:
        setattr(rebuild, name, step)
        kill(1)
        return step(*args, **more)

    setattr(rebuild, name, killed)


def processes() -> list[psutil.Process]:
    """Return the executors, which are children of the driver's JVM."""
    jvm = psutil.Process(os.getpid()).parent()
    return [child for child in jvm.children() if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())]


def kill(count: int) -> None:
    killed = processes()[:count]
    assert killed
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(killed, timeout=DEADLINE_S)
    print(f"killed {[process.pid for process in killed]}", file=sys.stderr)


def both(spark: SparkSession, before: frozenset[int] = frozenset()) -> frozenset[int]:
    """Wait until there are as many executors as at the beginning, and a new one if it is known which were `before`."""
    deadline = time.monotonic() + DEADLINE_S
    # the driver is one of them
    while len(ports := executors(spark)) != EXECUTORS + 1 or (before and ports <= before):
        assert time.monotonic() < deadline, "the master didn't replace an executor"
        time.sleep(0.1)
    return ports


def executors(spark: SparkSession) -> frozenset[int]:
    return frozenset(info.port() for info in spark._jsc.sc().statusTracker().getExecutorInfos())


if __name__ == "__main__":
    main(*sys.argv[1:])
