"""Spark's errors while a job runs, as one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from spark_replay.errors import AppError, ReadError, ReplayError
from spark_replay.session import first_line, java_reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COPIES = 8
"""So often a value is in a task's memory: as it was read, as a row, as it is sorted, and as it is written."""
NO_SPACE = "No space left on device"
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_KILLED = ("OutOfMemoryError", "ExecutorLostFailure")
_OVERFLOW = "ArithmeticException: long overflow"
_LONGEST = 400
_OURS = ("spark_replay", "actors", "stores", "rocksdict")
# the last lines of tracebacks of Spark's Python workers
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_OWN = re.compile(r"^spark_replay\.errors\.(\w+): (.+)", re.MULTILINE)


def keep(rows: DataFrame) -> DataFrame:
    """Read rows now, and keep them on the executors: what is asked of them later is of the same read.

    Each row is kept on two executors, so that the loss of one changes nothing: the log can't be read again, because
    compaction may have removed records since. If both are lost, `reading` says so.
    """
    level = None if _is_one_machine(rows.sparkSession) else StorageLevel.MEMORY_AND_DISK_2
    return rows.localCheckpoint(storageLevel=level)


def _is_one_machine(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "").partition("[")[0] == "local"


def with_limit(records: DataFrame, topic: Column) -> DataFrame:
    """Return records of a topic; a job on them ends with a `ReadError` that names one that is too large for a task.

    Args:
        records: `partition`, `offset`, `key`, `value`, and others.
        topic: Their topic.
    """
    spark = records.sparkSession
    jvm: Any = spark._jvm
    setting, heap = "spark.driver.memory", jvm.java.lang.Runtime.getRuntime().maxMemory()
    if not _is_one_machine(spark):
        setting = "spark.executor.memory"
        heap = jvm.org.apache.spark.SparkEnv.get().conf().getSizeAsBytes(setting, "1g")
    size = F.octet_length("value")
    text = F.format_string(
        # a line as of an error that a task of ours raises
        "\nspark_replay.errors.ReadError: %s partition %d, offset %d, key base64:%s: the value has %d bytes, and a "
        f"task needs {COPIES} times as much memory: raise {setting} to more than %d MiB, by --spark-option\n",
        *(topic, "partition", "offset", F.base64("key"), size, F.shiftright(size.cast("bigint") * COPIES, 20)),
    )
    return records.withColumn("value", F.when(size > heap // COPIES, F.raise_error(text)).otherwise(F.col("value")))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what Spark raises inside into a `ReadError` that names `what`, or into what a task of ours raised."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        text, is_gone = str(error), not isinstance(error, PySparkException | Py4JJavaError)
        if is_gone and "Trace:" in text:
            # a wrong call: the JVM is there
            raise
        _raise_own(text)
        if _LOST in text or "Checkpoint block" in text:
            raise ReadError(
                f"executors were lost with rows of {what} that had been read, and the log may have others by now: run "
                "it again"
            ) from error
        if is_gone or any(mark in text for mark in _KILLED):
            raise ReadError(
                f"Spark ran out of memory, or was killed, while it read {what}: raise spark.driver.memory, on a "
                "cluster spark.executor.memory, by --spark-option, or read with fewer cores (--master local[1])"
            ) from error
        if NO_SPACE in text:
            raise ReadError(
                f"a disk is full: Spark read {what}, and could not write: {_reason(error)}. Its temporary files are in "
                "spark.local.dir (/tmp by default), another folder is chosen by --spark-option spark.local.dir=DIR"
            ) from error
        if _OVERFLOW in text:
            raise ReadError(
                f"Spark could not read {what}: a record's timestamp is behind the year 294246, which Spark can't hold. "
                "Its producer may take nanoseconds for milliseconds; set message.timestamp.after.max.ms on the topic"
            ) from error
        raise ReadError(f"Spark could not read {what}: {_reason(error)}") from error


def _raise_own(text: str) -> None:
    """Raise the error that a task raised, or an `AppError` that names the module that the executors' Python lacks."""
    missing = _MISSING.search(text)
    if missing is not None and missing[1].partition(".")[0] in _OURS:
        raise AppError(
            f"the executors' Python has no module {missing[1]!r}: install faust-actors[parquet] there (--app needs it, "
            "and the app and what it imports; so does a snapshot), or run without --app"
        )
    kinds = {kind.__name__: kind for kind in ReplayError.__subclasses__()}
    # the last one has the others as its causes
    for name, reason in reversed(_OWN.findall(text)):
        raise kinds.get(name, ReplayError)(reason)


def _reason(error: Exception) -> str:
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        return first_line(error)[:_LONGEST]
    texts = []
    while cause is not None:
        texts.append(java_reason(cause))
        cause = cause.getCause()
    # the first says where (a file, an offset), the last why
    return ": ".join(dict.fromkeys([texts[0][:_LONGEST], texts[-1][:_LONGEST]]))
