"""The columns of a row as Debezium writes them, and what they are by its schema, or else by the table's type."""

from __future__ import annotations

import base64
import json
import typing
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import msgspec

from actors._core.unions import arms_of

UNAVAILABLE = "__debezium_unavailable_value"
"""The value of a column that is stored outside of its row, and that an update didn't change."""
_UNAVAILABLE = (UNAVAILABLE, [UNAVAILABLE], UNAVAILABLE.encode(), base64.b64encode(UNAVAILABLE.encode()).decode())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEBEZIUM, _CONNECT = "io.debezium.", "org.apache.kafka.connect.data."


class Column(NamedTuple):
    """A column by its schema: the name of its logical type, and the digits behind a number's point."""

    name: str
    scale: int | None = None


Columns = Mapping[str, Column]
"""By name. Without a schema there are none."""


def json_columns(schema: Any) -> Columns:
    """Return the columns of an envelope, by the schema that Kafka Connect writes into JSON; None has none."""
    fields = [] if not isinstance(schema, dict) else schema["fields"]
    rows = [field["fields"] for field in fields if field.get("field") == "after"]
    return {
        column["field"]: Column(column["name"], _scale(column.get("parameters", {}).get("scale")))
        for column in (rows[0] if rows else ())
        if "name" in column
    }


def avro_columns(text: str) -> Columns:
    """Return the columns of an envelope, by its Avro schema."""
    envelope, records = json.loads(text), {}
    parts: list[Any] = [envelope]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            if part.get("type") == "record":
                records[part["name"]] = part
            parts += [part.get("type"), *(field["type"] for field in part.get("fields", ()))]
    after = next((field["type"] for field in envelope["fields"] if field["name"] == "after"), ())
    arms = [arm["name"] if isinstance(arm, dict) else arm.rpartition(".")[2] for arm in after]
    row = next((records[arm] for arm in arms if arm in records), {"fields": ()})
    columns = {}
    for field in row["fields"]:
        for arm in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            if isinstance(arm, dict) and "connect.name" in arm:
                columns[field["name"]] = Column(arm["connect.name"], _scale(arm.get("scale")))
    return columns


def _scale(scale: Any) -> int | None:
    return None if scale is None else int(scale)


def converted(row: Mapping[str, Any], columns: Columns, hints: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a row whose times, dates and decimals are what they say, and the columns that it doesn't have.

    Args:
        row: as Debezium writes it.
        columns: what its schema says; where it says nothing, the fields of the type do.
        hints: the types of the fields.

    Raises:
        ValueError: a value isn't of its column's type, or is none that Python has.
    """
    values, missing = {}, []
    for name, value in row.items():
        if value in _UNAVAILABLE:
            missing.append(name)
            continue
        column = columns.get(name) or (None if columns else _column_of(hints.get(name)))
        if value is None or column is None:
            values[name] = value
            continue
        try:
            values[name] = _converted_value(value, column, hints.get(name))
        except (ValueError, OverflowError, ArithmeticError, TypeError, KeyError) as error:
            raise ValueError(f"column {name}: {value!r:.80} is no {column.name}: {error}") from error
    return values, missing


def hints_of(type_: Any) -> dict[str, Any]:
    """Return the types of a type's fields; none of one that has no fields."""
    try:
        return typing.get_type_hints(type_, include_extras=True)
    except (TypeError, NameError):
        return {}


def _converted_value(value: Any, column: Column, hint: Any) -> Any:
    per_second = _PER_SECOND.get(column.name)
    if per_second is not None:
        if not isinstance(value, int):
            return value  # Avro's own logical types are read already.
        # Whole numbers all the way: a float has no room for nanoseconds.
        at = _EPOCH + timedelta(seconds=value // per_second, microseconds=value % per_second * 10**6 // per_second)
        return at.timetz().replace(tzinfo=None) if column.name.endswith("Time") else at
    if column.name in (f"{_DEBEZIUM}time.Date", f"{_CONNECT}Date"):
        return date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else value
    if column.name == f"{_CONNECT}Decimal":
        if isinstance(value, Decimal | int | float):
            return value
        return _decimal(value, column.scale)
    if column.name == f"{_DEBEZIUM}data.VariableScaleDecimal":
        return _decimal(value["value"], value["scale"])
    if column.name == f"{_DEBEZIUM}data.Json" and _is_json(hint):
        return msgspec.json.decode(value)
    if column.name == f"{_DEBEZIUM}time.MicroDuration" and timedelta in arms_of(hint):
        return timedelta(microseconds=value)
    return value


def _decimal(value: Any, scale: int | None) -> Decimal:
    if scale is None:
        raise ValueError("its scale is unknown")
    raw = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    # Of text, since arithmetic rounds to 28 digits, and a column may have more.
    return Decimal(f"{int.from_bytes(raw, signed=True)}E{-scale}") if raw else Decimal(0)


_PER_SECOND = {
    f"{_DEBEZIUM}time.Timestamp": 10**3,
    f"{_DEBEZIUM}time.MicroTimestamp": 10**6,
    f"{_DEBEZIUM}time.NanoTimestamp": 10**9,
    f"{_CONNECT}Timestamp": 10**3,
    f"{_DEBEZIUM}time.Time": 10**3,
    f"{_DEBEZIUM}time.MicroTime": 10**6,
    f"{_DEBEZIUM}time.NanoTime": 10**9,
    f"{_CONNECT}Time": 10**3,
}


def _column_of(hint: Any) -> Column | None:
    """Return what a field's type says of its column, where JSON comes without a schema."""
    arms: list[Any] = [arm for arm in arms_of(hint) if arm is not type(None)]
    arm: Any = arms[0] if len(arms) == 1 else None
    metas = [extra for extra in getattr(arm, "__metadata__", ()) if isinstance(extra, msgspec.Meta)]
    scale = next((meta.extra["scale"] for meta in metas if meta.extra and "scale" in meta.extra), None)
    plain: Any = typing.get_args(arm)[0] if typing.get_origin(arm) is Annotated else arm
    if plain is Decimal:
        return None if scale is None else Column(f"{_CONNECT}Decimal", scale)
    names = {date: "Date", datetime: "MicroTimestamp", time: "MicroTime", timedelta: "MicroDuration"}
    name = names.get(plain)
    if name is None:
        return Column(f"{_DEBEZIUM}data.Json") if _is_json(hint) else None
    return Column(f"{_DEBEZIUM}time.{name}")


def _is_json(hint: Any) -> bool:
    """Return whether a field is of a type that a column `jsonb` is parsed for."""
    arms = [typing.get_origin(arm) or arm for arm in arms_of(hint) if arm is not type(None)]
    return bool(arms) and all(isinstance(arm, type) and issubclass(arm, dict | msgspec.Struct) for arm in arms)
