"""Avro, read and written by fastavro; the writer's schema is resolved against the type's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, ClassVar

from msgspec import inspect

from actors.declare.values.codecs import UNTYPED, Place
from actors.errors import ConfigurationError
from actors.formats.avro_schema import MAX_DEPTH, Walk, depth_of, is_left_out, read_default, record_name, schema_of
from actors.formats.data import PlainData, plain_data
from actors.formats.framing import Read, RegistryFormat, Subject, json_of
from actors.formats.registry import Schema, SchemaType, schema_json

_MEANINGLESS = ("doc", "default", "aliases", "order")
"""Of two schemas that differ in these only, one reads what the other wrote as it is."""


class Avro(RegistryFormat):
    """Avro with Confluent's wire format.

    A type's schema is derived from it, or given: as text, plain data, or the path of an `.avsc` file. Values are read
    with the schema that they were written with, resolved against the type's: added fields have their defaults, removed
    ones are dropped. Without a type they are plain data.

    Examples:
        >>> import msgspec
        >>> from actors import App
        >>> from actors.formats import Avro
        >>> class Order(msgspec.Struct):
        ...     item: str
        ...     count: int = 1
        >>> app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry="http://127.0.0.1:8081")
        >>> orders = app.topic("orders", key_type=str, format=Avro(Order))
    """

    kind: ClassVar[SchemaType] = "AVRO"

    def __init__(
        self, type: Any = None, *, schema: Any = None, namespace: str = "", subject: Subject = "topic", **options: Any
    ) -> None:
        super().__init__(type, subject=subject, **options)
        self.schema, self.namespace = json_of(schema), namespace

    def shape(self, type_: Any, place: Place) -> AvroShape:
        """Return how a type is read and written; see `RegistryFormat`."""
        is_derived = self.schema is None and type_ not in UNTYPED
        schema = schema_of(type_, self.namespace) if is_derived else self.schema
        try:
            return AvroShape(type_, schema, is_key=place.part == "key")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(f"{self!r}: its schema is none of Avro: {error!r}") from error


class AvroShape:
    """How one type is read and written; see `actors.formats.framing.Shape`."""

    infix = b""

    def __init__(self, type_: Any, schema: Any, *, is_key: bool) -> None:
        self.schema = None if schema is None else Schema(json.dumps(schema))
        self._own = None if self.schema is None else _with_read_defaults(parsed(self.schema, {}))
        self.record = _name_of(self._own) or str(getattr(type_, "__name__", "value"))
        self._data: PlainData = plain_data(type_, is_key=is_key)
        infos = list(_infos_of(type_))
        self._tags = {record_name(info.cls): (info.tag_field, info.tag) for info in infos if getattr(info, "tag", None)}
        is_sparse = any(is_left_out(field) for info in infos for field in getattr(info, "fields", ()))
        self._sparse = infos[0] if is_sparse else None
        # In a union fastavro takes a tuple for a record and its name.
        has_tuples = any(isinstance(arm, inspect.VarTupleType) for info in infos for arm in getattr(info, "types", ()))
        self._is_hinted = bool(self._tags) or has_tuples or is_sparse

    def reader(self, schema: Schema) -> Read:
        """Return what reads content of a schema."""
        import fastavro

        named: dict[str, Any] = {}
        writers = parsed(schema, named)
        own = None if self._own is None or _content_of(writers) == _content_of(self._own) else self._own
        walk, read, load, tags = Walk(writers, named), fastavro.schemaless_reader, self._data.load, self._tags
        sparse = self._sparse
        # A topic may have records of a union's arms, each with a schema of its own.
        arm = _name_of(writers)
        check: Callable[[bytes, int], None] | None = walk.check if walk.is_needed else None

        def read_value(raw: bytes, start: int) -> Any:
            if check is not None:
                check(raw, start)
            stream = BytesIO(raw)
            stream.seek(start)
            data = read(stream, writers, own, return_record_name=bool(tags))
            if stream.tell() != len(raw):
                raise ValueError(f"{len(raw) - stream.tell()} bytes are behind its end")
            if tags:
                data = _tagged((arm, data) if arm and isinstance(data, dict) else data, tags)
            return load(data if sparse is None else _without_nulls(data, sparse))

        return read_value

    def writer(self, schema: Schema) -> Callable[[Any], bytes]:
        """Return what writes values with a schema."""
        import fastavro

        named: dict[str, Any] = {}
        own = _with_read_defaults(parsed(schema, named))
        write, dump, tags = fastavro.schemaless_writer, self._data.dump, self._tags
        is_hinted = self._is_hinted
        is_recursive = Walk(own, named).is_needed

        def write_value(value: Any) -> bytes:
            data = dump(value)
            if is_recursive and depth_of(data) >= MAX_DEPTH:
                raise ValueError(f"it is deeper than {MAX_DEPTH} levels")
            stream = BytesIO()
            write(stream, own, _hinted(data, own, tags, named) if is_hinted else data)
            return stream.getvalue()

        return write_value


def parsed(schema: Schema, named: dict[str, Any]) -> Any:
    """Return a schema as fastavro takes it, and put the types that it and those that it uses name into `named`."""
    import fastavro

    for text in schema.resolved.values():
        fastavro.parse_schema(schema_json(text), named_schemas=named)
    return fastavro.parse_schema(schema_json(schema.text), named_schemas=named)


def _with_read_defaults(schema: Any) -> Any:
    """Return a parsed schema whose defaults are values: fastavro reads them as they are in the schema's JSON."""
    if isinstance(schema, dict):
        parts = {name: _with_read_defaults(part) for name, part in schema.items() if name != "default"}
        if {"type", "default"} <= schema.keys():
            parts["default"] = read_default(schema["type"], schema["default"])
        return parts
    return [_with_read_defaults(part) for part in schema] if isinstance(schema, list) else schema


def _name_of(schema: Any) -> str:
    return str(schema.get("name", "")) if isinstance(schema, dict) else ""


def _content_of(schema: Any) -> Any:
    """Return what of a schema says how values are written."""
    if isinstance(schema, dict):
        return {
            name: _content_of(part)
            for name, part in schema.items()
            if name not in _MEANINGLESS and not name.startswith("__")
        }
    return [_content_of(part) for part in schema] if isinstance(schema, list) else schema


def _infos_of(type_: Any) -> Iterator[Any]:
    """Yield what msgspec says of a type and of its parts."""
    try:
        waiting: list[Any] = [inspect.type_info(type_)]
    except (TypeError, NameError):
        return
    seen: set[int] = set()
    while waiting:
        info = waiting.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        yield info
        waiting += [getattr(info, name) for name in ("type", "item_type", "value_type") if hasattr(info, name)]
        waiting += [field.type for field in getattr(info, "fields", ())]
        waiting += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]


def _without_nulls(data: Any, info: Any) -> Any:
    """Return what was read without the nulls of fields that were left out."""
    if isinstance(info, inspect.Metadata):
        return _without_nulls(data, info.type)
    if isinstance(info, inspect.UnionType):
        arm = next((arm for arm in info.types if _is_of(arm, data)), None)
        return data if arm is None else _without_nulls(data, arm)
    if isinstance(data, list) and hasattr(info, "item_type"):
        return [_without_nulls(part, info.item_type) for part in data]
    if not isinstance(data, dict):
        return data
    if hasattr(info, "value_type"):
        return {name: _without_nulls(part, info.value_type) for name, part in data.items()}
    fields = {field.encode_name: field for field in getattr(info, "fields", ())}
    lacking = [name for name, field in fields.items() if is_left_out(field) and not _is_of(field.type, None)]
    return {
        name: _without_nulls(part, fields[name].type) if name in fields else part
        for name, part in data.items()
        if part is not None or name not in lacking
    }


def _is_of(info: Any, data: Any) -> bool:
    """Return whether a list, a dict or a null may be of a type."""
    if isinstance(info, inspect.Metadata):
        return _is_of(info.type, data)
    if isinstance(info, inspect.UnionType):
        return any(_is_of(arm, data) for arm in info.types)
    if data is None:
        return isinstance(info, inspect.NoneType | inspect.AnyType) or bool(None in getattr(info, "values", ()))
    if isinstance(data, list):
        return hasattr(info, "item_type")
    tag = getattr(info, "tag", None)
    has_fields = hasattr(info, "fields") and (tag is None or data.get(info.tag_field) == tag)
    return isinstance(data, dict) and bool(has_fields or hasattr(info, "value_type"))


def _tagged(data: Any, tags: Mapping[str, tuple[str, Any]]) -> Any:
    """Return what fastavro read, in which a union's record is a pair of name and fields, as msgspec takes it."""
    if isinstance(data, tuple):
        name, fields = data
        if not isinstance(fields, dict):
            # Enums and fixed bytes have names too.
            return fields
        tag = tags.get(name.rpartition(".")[2])
        fields = {key: _tagged(part, tags) for key, part in fields.items()}
        return fields if tag is None else {**fields, tag[0]: tag[1]}
    if isinstance(data, dict):
        return {key: _tagged(part, tags) for key, part in data.items()}
    return [_tagged(part, tags) for part in data] if isinstance(data, list) else data


def _hinted(data: Any, schema: Any, tags: Mapping[str, tuple[str, Any]], named: Mapping[str, Any]) -> Any:
    """Return data in which a union's record that has a tag names its arm, as fastavro takes it."""
    if isinstance(schema, list):
        arms = [named.get(arm, arm) if isinstance(arm, str) else arm for arm in schema]
        for arm in arms:
            name = _name_of(arm)
            tag = tags.get(name.rpartition(".")[2])
            if isinstance(data, dict) and tag is not None and data.get(tag[0]) == tag[1]:
                return {**_hinted(data, arm, tags, named), "-type": name}
        kinds = ("array",) if isinstance(data, list | tuple) else ("record", "map") if isinstance(data, dict) else ()
        schema = next((arm for arm in arms if isinstance(arm, dict) and arm["type"] in kinds), None)
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array" and isinstance(data, list | tuple):
        return [_hinted(part, schema["items"], tags, named) for part in data]
    if isinstance(data, dict) and kind == "map":
        return {name: _hinted(part, schema["values"], tags, named) for name, part in data.items()}
    if isinstance(data, dict) and kind == "record":
        parts = {field["name"]: field["type"] for field in schema["fields"] if field["name"] in data}
        return {**data, **{name: _hinted(data[name], part, tags, named) for name, part in parts.items()}}
    return data
