"""Protobuf: messages of generated classes. Fields that a class doesn't know are kept."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from actors._core.unions import arms_of
from actors.declare.values.codecs import Place
from actors.errors import ConfigurationError
from actors.formats.framing import Read, RegistryFormat, read_varint
from actors.formats.proto_text import MAX_DEPTH, names_of, proto_text
from actors.formats.registry import Schema, SchemaType

_BUILT_IN = ("google/protobuf/", "confluent/")


class Protobuf(RegistryFormat):
    """Protobuf with Confluent's wire format; the type is a class that `protoc` generated.

    The registry says whether a record has this message. Its fields are read by the class alone.

    Examples:
        >>> from google.protobuf.wrappers_pb2 import StringValue
        >>> from actors import App
        >>> from actors.formats import Protobuf
        >>> app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry="http://127.0.0.1:8081")
        >>> notes = app.topic("notes", key_type=str, format=Protobuf(StringValue))
    """

    kind: ClassVar[SchemaType] = "PROTOBUF"

    def shape(self, type_: Any, place: Place) -> ProtobufShape | MessagesShape:
        """Return how a class is read and written; see `RegistryFormat`."""
        arms = arms_of(type_)
        for arm in arms:
            if not hasattr(arm, "DESCRIPTOR") or not hasattr(arm, "FromString"):
                raise ConfigurationError(f"{self!r}: {arm} is no class that protoc generated, as order_pb2.Order")
        shapes = [ProtobufShape(arm, is_exact=place.part == "key" or place.is_state) for arm in arms]
        return MessagesShape({shape.record: shape for shape in shapes}) if shapes[1:] else shapes[0]


class MessagesShape:
    """How one of several classes is read, the one that the registry names; see `actors.formats.framing.Shape`."""

    infix, schema = b"", None

    def __init__(self, shapes: Mapping[str, ProtobufShape]) -> None:
        self._shapes = shapes
        self.record = " | ".join(shapes)

    def reader(self, schema: Schema) -> Read:
        """Return what reads messages of a schema."""
        names = names_of(schema.text)
        reads = {name: shape.reader(schema) for name, shape in self._shapes.items()}

        def read_value(raw: bytes, start: int) -> Any:
            name = names.get(_read_index(raw, start)[0], "")
            return reads.get(name, next(iter(reads.values())))(raw, start)

        return read_value

    def writer(self, schema: Schema) -> Callable[[Any], bytes]:
        """Return what writes messages: each class has its own shape for that."""
        raise ValueError(f"{self.record} are written by their classes")


class ProtobufShape:
    """How one class is read and written; see `actors.formats.framing.Shape`."""

    def __init__(self, type_: Any, *, is_exact: bool) -> None:
        self._type, self._is_exact = type_, is_exact
        self.record: str = type_.DESCRIPTOR.full_name
        self.schema = _schema_of(type_.DESCRIPTOR.file)
        index = _index_of(type_.DESCRIPTOR)
        self.infix = b"\0" if index == (0,) else b"".join(_varint(number) for number in (len(index), *index))
        self._floats = _floats_of(type_.DESCRIPTOR, {})

    def reader(self, schema: Schema) -> Read:
        """Return what reads messages of a schema."""
        parse, record, floats = self._type.FromString, self.record, self._floats
        names = names_of(schema.text)

        def read_value(raw: bytes, start: int) -> Any:
            index, at = ((0,), start + 1) if raw[start : start + 1] == b"\0" else _read_index(raw, start)
            if names.get(index) != record:
                other = names.get(index, "no message of the schema")
                raise ValueError(f"its index {list(index)} is {other}, not {record}")
            message = parse(raw[at:])
            if floats:
                _refuse_nan(message, floats)
            return message

        return read_value

    def writer(self, schema: Schema) -> Callable[[Any], bytes]:
        """Return what writes messages."""
        type_, is_exact, floats = self._type, self._is_exact, self._floats

        def write_value(message: Any) -> bytes:
            if not isinstance(message, type_):
                raise TypeError(f"expected {type_.__name__}, got {type(message).__name__}")
            if floats:
                _refuse_nan(message, floats)
            raw: bytes = message.SerializeToString(deterministic=is_exact)
            return raw

        return write_value


def _schema_of(file: Any) -> Schema:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    uses = tuple((used.name, _schema_of(used)) for used in file.dependencies if not used.name.startswith(_BUILT_IN))
    encoded = base64.b64encode(file.serialized_pb).decode()
    text = proto_text(FileDescriptorProto.FromString(file.serialized_pb))
    return Schema(text or encoded, "PROTOBUF", uses=uses, other_text=encoded)


def _index_of(descriptor: Any) -> tuple[int, ...]:
    """Return the place of a message among those of its file, with those around it."""
    around = descriptor.containing_type
    beside = descriptor.file.message_types_by_name.values() if around is None else around.nested_types
    place = [message.full_name for message in beside].index(descriptor.full_name)
    return (place,) if around is None else (*_index_of(around), place)


def _varint(number: int) -> bytes:
    number, raw = number << 1, bytearray()
    while number > 127:
        raw.append(number & 127 | 128)
        number >>= 7
    return bytes([*raw, number])


def _read_index(raw: bytes, start: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(raw, start, "its message index")
    if not 0 <= count <= MAX_DEPTH:
        raise ValueError(f"its message index has {count} numbers")
    index = []
    for _ in range(count):
        number, at = read_varint(raw, at, "its message index")
        index.append(number)
    return tuple(index) or (0,), at


def _holds_floats(field: Any, seen: set[str]) -> bool:
    message = field.message_type
    if message is None:
        return field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
    if message.full_name in seen:
        return False
    seen.add(message.full_name)
    return any(_holds_floats(inner, seen) for inner in message.fields)


def _floats_of(descriptor: Any, known: dict[str, list[Any]]) -> list[Any]:
    """Return the fields of a message that hold floats, each with those of the messages that it has, None for floats."""
    if descriptor.full_name not in known:
        fields = known[descriptor.full_name] = []
        for field in descriptor.fields:
            message = field.message_type
            if message is not None and message.GetOptions().map_entry:
                message = message.fields_by_name["value"].message_type
            if _holds_floats(field, set()):
                fields.append((field, None if message is None else _floats_of(message, known)))
    return known[descriptor.full_name]


def _refuse_nan(message: Any, floats: list[Any]) -> None:
    for field, inner in floats:
        value = getattr(message, field.name)
        if type(value) is float:
            parts: Any = (value,)
        elif hasattr(value, "ListFields"):
            parts = (value,) if message.HasField(field.name) else ()
        else:
            parts = value.values() if hasattr(value, "values") else value
        for part in parts:
            if inner is not None:
                _refuse_nan(part, inner)
            elif not math.isfinite(part):
                raise ValueError(f"{field.full_name} is {part!r}, which JSON can't hold")
