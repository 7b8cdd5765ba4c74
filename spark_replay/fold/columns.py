"""Values of a store with an Avro or Protobuf format as columns, read by Spark's own functions.

The schemas come from a file that `faust -A APP schemas export` prints: neither the app nor its registry is needed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.errors import InputError, ToolMissingError
from spark_replay.jars import package_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
        ToolMissingError: This Spark has no spark-avro, or no spark-protobuf.
    """
    own = schemas_of(schemas, changelog)
    kind = own["kind"]
    read = _protobuf(own["reader"], own["message"]) if kind == "protobuf" else _avro(own["reader"])
    _require(state, kind)
    value = F.col("value")
    wrong = F.raise_error(F.concat(F.lit(f"{changelog}: not a value of the exported schemas: "), F.hex(value)))
    columns, first = F.when(value.isNull(), None), 1
    if own.get("has_rows"):
        # Beside its rows, a key of a map or a list has a record that counts them.
        length = F.conv(F.hex(F.substring("key", 1, 4)), 16, 10).cast("bigint")
        columns = columns.when((F.octet_length("key") == length + 5) & (F.substring("key", -1, 1) == F.lit(b"n")), None)
    if own.get("has_windows"):
        # A byte says that it is a window's value. Beside its windows a store has a record of its progress.
        first, columns = 2, columns.when(F.substring("key", 1, 1) == F.lit(b"m"), None)
    for id, text in own["writers"].items():
        # In front of each value: a zero byte, the id of its schema, and Protobuf's place of the message.
        head = f"{id:010X}{text.upper() if kind == 'protobuf' else ''}"
        content = F.expr(f"substring(value, {first + len(head) // 2})")
        columns = columns.when(F.hex(value.substr(first, len(head) // 2)) == head, read(content, text))
    return state.withColumn(VALUE_COLUMNS, columns.otherwise(wrong))


def schemas_of(schemas: str | Path, changelog: str) -> dict[str, Any]:
    """Return what a file of schemas has of a changelog, with its `kind`, avro or protobuf.

    Raises:
        InputError: It has nothing of it.
    """
    try:
        own = json.loads(Path(schemas).read_text(encoding="utf-8"))[changelog]
        writers, reader = {int(id): str(text) for id, text in own["writers"].items()}, own["reader"]
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(
            f"{schemas} has no schemas of {changelog} ({error!r}): write it by `faust -A APP schemas export`"
        ) from error
    return {**own, "reader": reader, "writers": writers, "kind": "protobuf" if "message" in own else "avro"}


def _avro(reader: str) -> Callable[[Column, str], Column]:
    from pyspark.sql.avro.functions import from_avro

    return lambda content, text: from_avro(content, text, {"avroSchema": reader, "mode": "FAILFAST"})


def _protobuf(reader: str, message: str) -> Callable[[Column, str], Column]:
    from pyspark.sql.protobuf.functions import from_protobuf

    descriptors, options = base64.b64decode(reader, validate=True), {"mode": "FAILFAST", "emit.default.values": "true"}
    return lambda content, _: from_protobuf(content, message, None, options, descriptors)


def _require(state: DataFrame, kind: str) -> None:
    from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

    jvm = state.sparkSession._jvm
    if jvm is None or isinstance(getattr(jvm.org.apache.spark.sql, kind).functions, JavaPackage):
        raise ToolMissingError(
            f"this Spark has no spark-{kind}: hand it over with --spark-option spark.jars.packages="
            f"{package_of(kind, state.sparkSession.version)}"
        )
