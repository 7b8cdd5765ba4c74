"""Values of a store with an Avro format as columns, read by Spark's own function.

The schemas come from a file that `faust -A APP schemas export` prints: neither the app nor its registry is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import InputError, ToolMissingError
from spark_replay.jars import package_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUE_COLUMNS = "value_columns"


def value_columns(state: DataFrame, schemas: str | Path, changelog: str) -> DataFrame:
    """Add the column `value_columns`, a struct with the fields of the program's schema, to rows with `value`.

    A value of a schema that the file lacks, or that doesn't decode, ends Spark's job: nothing is left out.

    Args:
        state: the rows, as of `rebuild_state`, `read_rebuild` or `read_changelog`.
        schemas: the file.
        changelog: whose values they are.

    Raises:
        InputError: The file has no schemas of the changelog.
        ToolMissingError: This Spark has no spark-avro.
    """
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
    from pyspark.sql.avro.functions import from_avro

    try:
        own = json.loads(Path(schemas).read_text(encoding="utf-8"))[changelog]
        reader, writers = _in_a_record(own["reader"]), {int(id): _in_a_record(it) for id, it in own["writers"].items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(
            f"{schemas} has no Avro schemas of {changelog} ({error!r}): write it by `faust -A APP schemas export`"
        ) from error
    jvm = state.sparkSession._jvm
    if jvm is None or isinstance(jvm.org.apache.spark.sql.avro.functions, JavaPackage):
        raise ToolMissingError(
            "this Spark has no spark-avro: hand it over with --spark-option spark.jars.packages="
            f"{package_of('avro', state.sparkSession.version)}"
        )
    value, options = F.col("value"), {"avroSchema": reader, "mode": "FAILFAST"}
    wrong = F.raise_error(F.concat(F.lit(f"{changelog}: not a value of the exported schemas: "), F.hex(value)))
    columns, first = F.when(value.isNull(), None), 1
    if own.get("has_rows"):
        # Beside its rows, a key of a map or a list has a record that counts them.
        length = F.conv(F.hex(F.substring("key", 1, 4)), 16, 10).cast("bigint")
        columns = columns.when((F.octet_length("key") == length + 5) & (F.substring("key", -1, 1) == F.lit(b"n")), None)
    if own.get("has_windows"):
        # A byte says that it is a window's value. Beside its windows a store has a record of its progress, and headers.
        first, columns = 2, columns.when(F.substring("key", 1, 1).isin(b"m", b"W", b"E"), None)
    for id, text in writers.items():
        # In front of each value: a zero byte, and the id of its schema.
        is_its = F.hex(value.substr(first, 5)) == f"{id:010X}"
        content = from_avro(F.expr(f"substring(value, {first + 5})"), text, options)
        columns = columns.when(is_its, content.getField(VALUE_COLUMNS))
    return state.withColumn(VALUE_COLUMNS, columns.otherwise(wrong))


def _in_a_record(schema: str) -> str:
    """Return the schema of a record of one field, which has the same bytes: Spark reads no union by itself."""
    field = f'{{"name": "{VALUE_COLUMNS}", "type": {schema}}}'
    return f'{{"type": "record", "name": "{VALUE_COLUMNS}", "fields": [{field}]}}'
