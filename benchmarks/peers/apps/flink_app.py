"""PyFlink, run by the Python of its own environment as a plain file: `flink_app.py HEAP JAR`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyflink.common import Configuration, Types  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]
from pyflink.table import DataTypes, Schema, StreamTableEnvironment  # type: ignore[import-not-found]
from settings import Settings  # type: ignore[import-not-found]

_TABLE = """CREATE TABLE {name} (k BYTES, v BYTES) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{brokers}',
  'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY', {more})"""
_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())


class PassFirst(KeyedProcessFunction):  # type: ignore[misc]
    """Passes on the first record of each key and ignores the others."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the state of a key."""
        self._first = runtime_context.get_state(ValueStateDescriptor("first", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Handle a record."""
        if self._first.value() is None:
            self._first.update(value[1])
            yield value


def main() -> None:
    """Run until a signal comes."""
    settings = Settings.read()
    if settings.work != "dedupe" or settings.typed:
        raise SystemExit(f"PyFlink has no program for {settings.work}, typed: {settings.typed}")
    # The gateway to the JVM has no setting for its heap that doesn't need a file.
    os.environ["JDK_JAVA_OPTIONS"] = f"-Xmx{sys.argv[1]}"
    options = {
        "pipeline.jars": f"file://{sys.argv[2]}",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "parallelism.default": "1",
        "rest.port": "0",
        "rest.bind-port": "0",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": f"{round(settings.commit_s * 1000)}ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{settings.folder}/checkpoints",
    }
    configuration = Configuration()
    for name, value in options.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(environment)
    read = f"'properties.group.id' = '{settings.app}', 'scan.startup.mode' = 'earliest-offset'"
    write = (
        f"'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{settings.app}', "
        "'properties.transaction.timeout.ms' = '60000'"
    )
    for name, topic, more in (("source", settings.source, read), ("target", settings.target, write)):
        tables.execute_sql(_TABLE.format(name=name, topic=topic, brokers=settings.brokers, more=more))
    row = Types.ROW_NAMED(["k", "v"], [_BYTES, _BYTES])
    records = tables.to_data_stream(tables.from_path("source"))
    first = records.key_by(lambda record: bytes(record[0]), Types.PICKLED_BYTE_ARRAY()).process(PassFirst(), row)
    schema = Schema.new_builder().column("k", DataTypes.BYTES()).column("v", DataTypes.BYTES()).build()
    tables.from_data_stream(first, schema).execute_insert("target").wait()


if __name__ == "__main__":
    main()
