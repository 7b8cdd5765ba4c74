"""The Avro schema of a type, and what a schema of somebody else's may ask of its reader."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from msgspec import inspect

from actors._core.unions import is_union
from actors.declare.values.codecs import is_model, is_record, strip_optional
from actors.errors import ConfigurationError
from actors.formats.data import NATIVE
from actors.formats.framing import read_varint

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE: dict[Any, Any] = {
    inspect.NoneType: "null",
    inspect.BoolType: "boolean",
    inspect.IntType: "long",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
}
_DECIMAL = (
    "Avro's decimals have a fixed number of digits: write Annotated[Decimal, msgspec.Meta(extra={'precision': 12, "
    "'scale': 2})]"
)
_FAMILIES = {
    **{"null": "null", "boolean": "boolean", "string": "string", "bytes": "bytes"},
    **dict.fromkeys(("int", "long", "float", "double"), "number"),
}
"""By primitive type, what its values may be taken for."""
MAX_DEPTH = 200
"""How deep values of a recursive schema may be: fastavro reads and writes them on the C stack, which ends."""


def schema_of(type_: Any, namespace: str = "") -> Any:
    """Return the Avro schema of a type.

    Raises:
        ConfigurationError: Avro has nothing like it.
    """
    return _Deriver(namespace).of(type_)


class _Deriver:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._names: dict[str, Any] = {}

    def of(self, type_: Any) -> Any:
        plain, _ = strip_optional(type_)
        if is_record(plain) or is_model(plain):
            schema = self._model(plain)
            return schema if plain is type_ else ["null", schema]
        try:
            return self._info(inspect.type_info(type_))
        except (TypeError, NameError) as error:
            raise ConfigurationError(f"{type_} has no Avro schema: {error}: give one with schema=") from error

    def _model(self, class_: Any) -> Any:
        if is_record(class_):
            own = class_._options.descriptors.values()
            return self._record(class_, ((it.output_name, self.of(it.type), it.required, it.default) for it in own))
        fields = (
            (it.serialization_alias or it.alias or name, self.of(_with_digits(it)), it.is_required(), it.default)
            for name, it in class_.model_fields.items()
        )
        return self._record(class_, fields)

    def _record(self, class_: Any, fields: Iterator[tuple[str, Any, bool, Any]]) -> Any:
        """Return the schema of a class; its fields are derived by the iterator, when its name is known to them."""
        schema = self._named(class_, "record")
        if isinstance(schema, dict):
            schema["fields"] = [
                self._field(f"{schema['name']}.{name}", name, of_field, required=required, default=default)
                for name, of_field, required, default in fields
            ]
        return schema

    def _named(self, class_: Any, kind: str) -> Any:
        """Return the beginning of the schema of a class, or its name where the schema has it already."""
        name, own = record_name(class_), {"namespace": self._namespace} if self._namespace else {}
        if name not in self._names:
            self._names[name] = class_
            return {"type": kind, "name": name, **own}
        if self._names[name] != class_:
            raise ConfigurationError(f"two types are called {name}, and Avro tells types by their names: rename one")
        return f"{self._namespace}.{name}" if own else name

    def _field(self, place: str, name: str, schema: Any, *, required: bool, default: Any) -> Any:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{place} is no name that Avro takes")
        field = {"name": name, "type": schema}
        if not required:
            try:
                value = msgspec.to_builtins(default, builtin_types=NATIVE)
            except TypeError:
                return field
            if default is msgspec.NODEFAULT or not (_is_plain(value) or isinstance(value, NATIVE)):
                return field
            if isinstance(schema, list) and (schema := _led_by(schema, value)) is None:
                return field
            field |= {"type": schema, "default": json_default(schema, value)}
        return field

    def _info(self, info: Any) -> Any:
        if type(info) in _SIMPLE:
            return _SIMPLE[type(info)]
        if isinstance(info, inspect.Metadata):
            return self._annotated(info)
        if isinstance(info, inspect.DecimalType):
            raise ConfigurationError(_DECIMAL)
        if isinstance(info, inspect.EnumType):
            return self._enum(info.cls)
        if isinstance(info, inspect.LiteralType):
            kinds = {type(value) for value in info.values}
            arms = [name for kind, name in ((type(None), "null"), (int, "long"), (str, "string")) if kind in kinds]
            return arms if arms[1:] else arms[0]
        if isinstance(info, inspect.UnionType):
            schemas = [self._info(arm) for arm in info.types]
            arms = [arm for schema in schemas for arm in (schema if isinstance(schema, list) else [schema])]
            # Writers take the first arm that fits: an int would be a double, or a time, too.
            return sorted(arms, key=_place_of)
        return self._parts(info)

    def _parts(self, info: Any) -> Any:
        if isinstance(info, inspect.DictType):
            if not isinstance(info.key_type, inspect.StrType):
                raise ConfigurationError("Avro's maps have keys of text: declare dict[str, …]")
            return {"type": "map", "values": self._info(info.value_type)}
        if isinstance(info, inspect.CustomType):
            return self.of(info.cls) if is_record(info.cls) or is_model(info.cls) else self._none(info)
        if hasattr(info, "item_type"):
            return {"type": "array", "items": self._info(info.item_type)}
        if hasattr(info, "fields") and not getattr(info, "array_like", False):
            fields = ((field.encode_name, self._part(field), field.required, _default(field)) for field in info.fields)
            return self._record(getattr(info, "cls", None), fields)
        return self._none(info)

    def _part(self, field: inspect.Field) -> Any:
        schema = self._info(field.type)
        arms = schema if isinstance(schema, list) else [schema]
        return ["null", *arms] if is_left_out(field) and "null" not in arms else schema

    def _annotated(self, info: inspect.Metadata) -> Any:
        if isinstance(info.type, inspect.DecimalType):
            extra = info.extra or {}
            if not {"precision", "scale"} <= extra.keys():
                raise ConfigurationError(_DECIMAL)
            return {"type": "bytes", "logicalType": "decimal", "precision": extra["precision"], "scale": extra["scale"]}
        return self._info(info.type)

    def _enum(self, class_: Any) -> Any:
        values = [member.value for member in class_]
        if all(isinstance(value, int) for value in values):
            return "long"
        if not all(isinstance(value, str) and _NAME.fullmatch(value) for value in values):
            return "string"
        schema = self._named(class_, "enum")
        return {**schema, "symbols": values} if isinstance(schema, dict) else schema

    def _none(self, info: Any) -> Any:
        shown = getattr(info, "cls", None) or type(info).__name__.removesuffix("Type").lower()
        raise ConfigurationError(f"{shown} has no Avro schema: give one with schema=")


def _default(field: Any) -> Any:
    if field.default_factory in (list, dict, set):
        return field.default_factory()
    return None if is_left_out(field) else field.default


def is_left_out(field: inspect.Field) -> bool:
    """Return whether a value may lack a field, for which Avro has null."""
    is_missing = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return not field.required and (is_missing or field.default is msgspec.UNSET)


def record_name(class_: Any) -> str:
    """Return the name of a type's record; that of a generic type has its arguments, as `Page_Line`."""
    return re.sub(r"\W+", "_", _shown(class_)).strip("_")


def _shown(type_: Any) -> str:
    arguments = typing.get_args(type_)
    name = getattr(typing.get_origin(type_) or type_, "__name__", str(type_)) if not is_union(type_) else ""
    return "_".join([name, *map(_shown, arguments)])


def _with_digits(field: Any) -> Any:
    """Return the type of a field of Pydantic's, with the digits of a decimal that the field's metadata says."""
    extra: dict[str, Any] = {}
    for part in field.metadata:
        extra |= getattr(part, "extra", None) or {}
        digits = {"precision": getattr(part, "max_digits", None), "scale": getattr(part, "decimal_places", None)}
        extra |= {name: number for name, number in digits.items() if number is not None}
    plain, is_optional = strip_optional(field.annotation)
    if plain is not Decimal or not extra:
        return field.annotation
    type_: Any = Annotated[plain, msgspec.Meta(extra=extra)]
    return type_ | None if is_optional else type_


def _place_of(arm: Any) -> int:
    return 0 if arm == "null" else 2 if arm == "double" else 3 if _logical(arm) else 1


def _logical(schema: Any) -> str | None:
    """Return the kind of a logical type as fastavro calls it, as `int-date`."""
    name = schema.get("logicalType") if isinstance(schema, dict) else None
    return f"{schema['type']}-{name}" if name else None


def _led_by(union: list[Any], value: Any) -> list[Any] | None:
    """Return a union whose first arm is that of a default; None if values of other arms would become of that arm."""
    place = next((place for place, arm in enumerate(union) if _fits(arm, value)), None)
    if place is None or _family(union[place]) in map(_family, union[:place]):
        return None
    rest = [*union[:place], *union[place + 1 :]]
    return [union[place], *sorted(rest, key=lambda arm: arm == "null")] if place else union


def _fits(arm: Any, value: Any) -> bool:
    from fastavro.validation import validate

    kind = arm["type"] if isinstance(arm, dict) else arm
    if isinstance(value, list | dict) or kind in ("array", "map"):
        return isinstance(value, list if kind == "array" else dict) and kind in ("array", "map")
    return bool((kind in _FAMILIES or kind == "enum") and validate(value, arm, raise_errors=False))


def _family(arm: Any) -> Any:
    kind = arm["type"] if isinstance(arm, dict) else arm
    return _FAMILIES.get(kind, kind)


def json_default(schema: Any, value: Any) -> Any:
    """Return a default as a schema has it: bytes as Latin-1, logical types as what is written."""
    from fastavro.write import LOGICAL_WRITERS

    schema = schema[0] if isinstance(schema, list) else schema
    prepare = LOGICAL_WRITERS.get(_logical(schema) or "")
    raw = value if prepare is None else prepare(value, schema)
    return raw.decode("latin-1") if isinstance(raw, bytes) else raw


def read_default(schema: Any, default: Any) -> Any:
    """Return the value of a default in a schema."""
    from fastavro.read import LOGICAL_READERS

    schema = schema[0] if isinstance(schema, list) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    raw = default.encode("latin-1") if kind in ("bytes", "fixed") and isinstance(default, str) else default
    read = LOGICAL_READERS.get(_logical(schema) or "")
    return raw if read is None else read(raw, schema, None)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str) or value in ([], {})


class Walk:
    """A walk through content that makes no values: it bounds what fastavro would make of hostile content.

    It is needed where a schema is recursive, or has lists whose items take no bytes: 2**60 nulls take ten.

    Attributes:
        is_needed: whether the schema has one of these.
    """

    def __init__(self, schema: Any, names: Mapping[str, Any]) -> None:
        self._schema, self._names = schema, names
        self._open: list[str] = []
        self._none: dict[str, bool] = {}
        self.is_needed = False
        self._takes_none(schema)

    def check(self, raw: bytes, start: int) -> None:
        """Raise ValueError for content that is too deep, or has more items than bytes."""
        self._skip(self._schema, raw, start, 0)

    def _takes_none(self, schema: Any) -> bool:
        """Return whether values take no bytes."""
        if isinstance(schema, list):
            for arm in schema:
                self._takes_none(arm)
            return False
        if isinstance(schema, str):
            if schema in self._open:
                self.is_needed = True
                return False
            if schema in self._names and schema not in self._none:
                self._takes_none(self._names[schema])
            return schema == "null" or self._none.get(schema, False)
        kind = schema["type"]
        if kind in ("record", "error"):
            self._open.append(schema["name"])
            taken = [self._takes_none(field["type"]) for field in schema["fields"]]
            self._none[self._open.pop()] = takes_none = all(taken)
            return takes_none
        if kind in ("array", "map"):
            if self._takes_none(schema["items" if kind == "array" else "values"]) and kind == "array":
                self.is_needed = True
            return False
        if kind == "fixed":
            return not schema["size"]
        return kind != "enum" and self._takes_none(kind)

    def _skip(self, schema: Any, raw: bytes, at: int, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            arm, at = read_varint(raw, at)
            if not 0 <= arm < len(schema):
                raise ValueError(f"its union has no arm {arm}")
            return self._skip(schema[arm], raw, at, depth + 1)
        if isinstance(schema, str) and schema in self._names:
            return self._skip(self._names[schema], raw, at, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            for field in schema["fields"]:
                at = self._skip(field["type"], raw, at, depth + 1)
            return at
        if kind in ("array", "map"):
            return self._skip_items(schema, raw, at, depth)
        if isinstance(kind, str) and kind not in self._names:
            return _skip_simple(kind, schema, raw, at)
        return self._skip(kind, raw, at, depth)

    def _skip_items(self, schema: Any, raw: bytes, at: int, depth: int) -> int:
        is_map = schema["type"] == "map"
        item = schema["values" if is_map else "items"]
        while True:
            count, at = read_varint(raw, at)
            if count < 0:
                count, (_, at) = -count, read_varint(raw, at)
            if count > len(raw):
                raise ValueError(f"{count} items are in {len(raw)} bytes")
            if not count:
                return at
            for _ in range(count):
                at = self._skip(item, raw, self._skip("string", raw, at, depth) if is_map else at, depth + 1)


_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def _skip_simple(kind: str, schema: Any, raw: bytes, at: int) -> int:
    if kind == "fixed":
        return at + int(schema["size"])
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    number, at = read_varint(raw, at)
    if kind in ("int", "long", "enum"):
        return at
    if not 0 <= number <= len(raw) - at:
        raise ValueError(f"{number} bytes of text are in {len(raw) - at}")
    return at + number


def depth_of(value: Any, most: int = MAX_DEPTH) -> int:
    """Return how deep dicts and lists are in each other, `most` for all that is deeper."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 0 if most <= 0 or not parts else 1 + max(depth_of(part, most - 1) for part in parts)
