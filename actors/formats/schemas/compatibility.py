"""The fields that keep a program with one schema from reading what a program with another one writes.

Registries answer with yes or no; some name no field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from actors._core.logs import text_of
from actors.formats.avro import parsed
from actors.formats.proto_text import Fields, messages_of
from actors.formats.registry import Schema, schema_json

Problem = tuple[str, str]
"""The path of a field, and what is wrong with it."""

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""By what an Avro writer wrote, as what else a reader takes it."""
_WIRE = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "bool", "enum"), "a varint"),
    **dict.fromkeys(("sint32", "sint64"), "a zigzag varint"),
    **dict.fromkeys(("fixed32", "sfixed32"), "four bytes"),
    **dict.fromkeys(("fixed64", "sfixed64"), "eight bytes"),
    **dict.fromkeys(("string", "bytes"), "bytes"),
}
"""By type of Protobuf what its values are on the wire: types with the same are read as each other."""


def problems(reader: Schema, writer: Schema) -> list[Problem]:
    """Return why a program with one schema doesn't read what is written with another one; of none it is sure.

    Raises:
        ValueError: a schema isn't one of its type.
    """
    if reader.type != writer.type:
        return [("", f"it is of type {reader.type}, and was written as {writer.type}")]
    if reader.type == "PROTOBUF":
        return list(_protobuf(_messages(reader.text), _messages(writer.text)))
    if reader.type == "JSON":
        return list(_Json(schema_json(reader.text), schema_json(writer.text)).problems())
    return list(_Avro(reader, writer).problems())


def lines(schema: Schema) -> list[str]:
    """Return a schema as lines that can be compared."""
    if schema.type != "PROTOBUF":
        return json.dumps(schema_json(schema.text), indent=2, ensure_ascii=False).splitlines()
    return [
        line
        for name, fields in sorted(_messages(schema.text).items())
        for line in (
            f"message {name}",
            *(
                f"    {number} {field}: {'repeated ' * (label == 'repeated')}{kind}"
                for number, (field, kind, label) in sorted(fields.items())
            ),
        )
    ]


class _Avro:
    def __init__(self, reader: Schema, writer: Schema) -> None:
        self._names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._pairs: set[tuple[str, str]] = set()
        self._roots = [self._parsed(schema, names) for schema, names in zip((reader, writer), self._names, strict=True)]

    @staticmethod
    def _parsed(schema: Schema, names: dict[str, Any]) -> Any:
        try:
            return parsed(schema, names)
        except Exception as error:
            raise ValueError(f"a schema isn't one of Avro ({text_of(error)}): {schema.text[:80]!r}") from error

    def problems(self) -> Iterator[Problem]:
        return self._of(self._roots[0], self._roots[1], "")

    def _of(self, reader: Any, writer: Any, path: str) -> Iterator[Problem]:
        reader, writer = (
            names.get(schema, schema) if isinstance(schema, str) else schema
            for schema, names in zip((reader, writer), self._names, strict=True)
        )
        if isinstance(writer, list):
            for branch in writer:
                yield from self._of(reader, branch, path)
            return
        if isinstance(reader, list):
            tries = [list(self._of(branch, writer, path)) for branch in reader]
            if all(tries):
                nearest = [problem for attempt in tries for problem in attempt if problem[0] != path]
                yield from nearest[:1] or [(path, f"{_kind(writer)} was written, and none of its union is that")]
            return
        kinds = _kind(reader), _kind(writer)
        if kinds[0] != kinds[1]:
            if kinds[0] not in _PROMOTED.get(kinds[1], ()):
                yield path, f"{kinds[1]} was written, and {kinds[0]} is read"
        elif isinstance(reader, dict):
            yield from self._complex(kinds[0], reader, writer, path)

    def _complex(self, kind: str, reader: Any, writer: Any, path: str) -> Iterator[Problem]:
        if kind == "record":
            pair = (reader["name"], writer["name"])
            if pair not in self._pairs:
                self._pairs.add(pair)
                yield from self._fields(reader, writer, path)
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self._of(reader[inner], writer[inner], f"{path}[]")
        elif kind == "enum":
            lacking = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if lacking and "default" not in reader:
                yield path, f"the enum lacks {', '.join(lacking)}, and has no default"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield path, f"{writer['size']} bytes were written, and {reader['size']} are read"
        written, read = (f"{it.get('precision')} digits with scale {it.get('scale', 0)}" for it in (writer, reader))
        if reader.get("logicalType") == writer.get("logicalType") == "decimal" and written != read:
            yield path, f"the decimals written have {written}, those read {read}"

    def _fields(self, reader: Any, writer: Any, path: str) -> Iterator[Problem]:
        names = {reader["name"], *reader.get("aliases", ())}
        if writer["name"].rpartition(".")[2] not in {name.rpartition(".")[2] for name in names}:
            yield path, f"record {writer['name']} was written, and {reader['name']} is read: give it an alias"
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            inner = f"{path}.{field['name']}".lstrip(".")
            called = (field["name"], *field.get("aliases", ()))
            other = next((written[name] for name in called if name in written), None)
            if other is not None:
                yield from self._of(field["type"], other["type"], inner)
            elif "default" not in field:
                yield inner, "it wasn't written, and has no default"


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


class _Json:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._roots = (reader, writer)
        self._pairs: set[tuple[int, int]] = set()

    def problems(self) -> Iterator[Problem]:
        return self._of(*self._roots, "")

    def _of(self, reader: Any, writer: Any, path: str) -> Iterator[Problem]:
        reader, writer = self._target(reader, 0), self._target(writer, 1)
        if not isinstance(reader, dict) or not isinstance(writer, dict) or (id(reader), id(writer)) in self._pairs:
            return
        self._pairs.add((id(reader), id(writer)))
        branches, others = _branches(reader), _branches(writer)
        if len(branches) > 1 or len(others) > 1:
            for other in others:
                tries = [list(self._of(branch, other, path)) for branch in branches]
                if all(tries):
                    yield from min(tries, key=len)
            return
        types, written = _types(reader), _types(writer)
        if types and not written <= types | ({"integer"} if "number" in types else set()):
            lacking = ", ".join(sorted(written - types)) or "anything"
            yield path, f"{lacking} was written, and {', '.join(sorted(types))} is read"
            return
        if "enum" in reader and any(value not in reader["enum"] for value in writer.get("enum", (None,))):
            yield path, "values were written that its enum lacks"
        yield from self._properties(reader, writer, path)
        yield from self._of(reader.get("items"), writer.get("items"), f"{path}[]")

    def _properties(self, reader: Any, writer: Any, path: str) -> Iterator[Problem]:
        own, written = reader.get("properties", {}), writer.get("properties", {})
        for name in reader.get("required", ()):
            if name not in writer.get("required", ()):
                yield f"{path}.{name}".lstrip("."), "it is required, and may be missing in what was written"
        for name, schema in written.items():
            inner = f"{path}.{name}".lstrip(".")
            if name in own:
                yield from self._of(own[name], schema, inner)
            elif reader.get("additionalProperties") is False:
                yield inner, "it was written, and no other properties than declared ones are read"

    def _target(self, schema: Any, side: int) -> Any:
        """Return what a reference inside of the schema means."""
        for _ in range(20):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#"):
                return schema
            schema = self._roots[side]
            for part in filter(None, reference[1:].split("/")):
                schema = schema.get(part.replace("~1", "/").replace("~0", "~"), {})
        return None


def _branches(schema: Any) -> list[Any]:
    return schema.get("anyOf") or schema.get("oneOf") or [schema]


def _types(schema: Any) -> set[str]:
    types = schema.get("type", ())
    return {types} if isinstance(types, str) else set(types)


def _protobuf(reader: Mapping[str, Fields], writer: Mapping[str, Fields]) -> Iterator[Problem]:
    for message, fields in writer.items() if reader else ():
        own = reader.get(message)
        if own is None:
            yield message, "the message was written, and is unknown"
            continue
        for number, (name, kind, label) in fields.items():
            if number not in own:
                # Unknown fields are kept.
                continue
            other, read, read_label = own[number]
            if _WIRE.get(kind, kind) != _WIRE.get(read, read):
                yield f"{message}.{other}", f"number {number} was written as {kind} {name}, and is read as {read}"
            elif label == "repeated" != read_label and kind not in ("string", "bytes"):
                yield f"{message}.{other}", f"number {number} was written as a list, and is read as one value"
        for number, (name, _, label) in own.items():
            if label == "required" and fields.get(number, ("", "", ""))[2] != "required":
                yield f"{message}.{name}", "it is required, and may be missing in what was written"


def _messages(text: str) -> dict[str, Fields]:
    return {message.name: message.fields for message in messages_of(text)}
