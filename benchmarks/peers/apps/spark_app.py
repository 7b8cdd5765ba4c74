"""PySpark, run by the Python of its own environment as a plain file: `spark_app.py HEAP JAR…`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from settings import Settings  # type: ignore[import-not-found]

_BATCH = 10_000
"""Records of a micro-batch at most: without a bound the first one would be the whole backlog."""
_LOOK_S = 0.05
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class PassFirst(StatefulProcessor):
    """Passes on the first record of each key and ignores the others."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a key."""
        self._first = handle.getValueState("first", "value BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Handle the records of a key in a micro-batch."""
        if not self._first.exists():
            value = bytes(next(rows)["value"].iloc[0])
            self._first.update((value,))
            yield pd.DataFrame({"key": [bytes(key[0])], "value": [value]})

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def main() -> None:
    """Run until a signal comes."""
    settings = Settings.read()
    if settings.work != "dedupe" or settings.typed:
        raise SystemExit(f"PySpark has no program for {settings.work}, typed: {settings.typed}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    query = _start(settings, heap=sys.argv[1], jars=sys.argv[2:])
    committed = ""
    consumer = Consumer({"bootstrap.servers": settings.brokers, "group.id": settings.app, "enable.auto.commit": False})
    while query.isActive:
        time.sleep(_LOOK_S)
        progress = query.lastProgress
        # A batch is in the progress when it is committed to the checkpoint.
        if progress is not None and (offsets := progress["sources"][0]["endOffset"]) != committed:
            committed = offsets
            partitions = json.loads(offsets)[settings.source]
            ends = [TopicPartition(settings.source, int(number), end) for number, end in partitions.items()]
            consumer.commit(offsets=ends, asynchronous=False)
    # It raises what ended the query.
    query.awaitTermination()


def _start(settings: Settings, *, heap: str, jars: list[str]) -> StreamingQuery:
    """Start the query: one thread, the next micro-batch as soon as one has ended."""
    options: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": heap,
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.partitions),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    spark = SparkSession.Builder().master("local[1]").appName(settings.app).config(map=options).getOrCreate()
    kafka = {"kafka.bootstrap.servers": settings.brokers}
    read = {"subscribe": settings.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(_BATCH)}
    records = spark.readStream.format("kafka").options(**kafka, **read).load().select("key", "value")
    first = records.groupBy("key").transformWithStateInPandas(
        PassFirst(), outputStructType="key BINARY, value BINARY", outputMode="Append", timeMode="None"
    )
    written = {"topic": settings.target, "checkpointLocation": f"{settings.folder}/checkpoint"}
    writer = first.writeStream.format("kafka").outputMode("append").trigger(processingTime="0 seconds")
    return writer.options(**kafka, **written).start()


if __name__ == "__main__":
    main()
