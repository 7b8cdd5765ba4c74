"""The part that formats with a registry share: Confluent's wire format, subjects, and the ids of schemas.

prefix      magic byte 0, four bytes of id, then what the format adds, then the content
header      the same before the content, or magic byte 1 and the sixteen bytes of a GUID, in a header of the record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol
from uuid import UUID

from actors._core.logs import text_of
from actors._core.unions import arms_of
from actors.declare.values.codecs import Codec, CodecError, Place, strip_optional
from actors.errors import ConfigurationError, UnresolvedSchemaError, show_bytes
from actors.formats.registry import MissingSchemaError, RegistryClient, Schema, SchemaType, client_of, schema_json
from actors.ports import Headers
from actors.runtime.message.outputs import SCHEMA_HEADERS

MAGIC_ID, MAGIC_GUID = 0, 1
ID_BYTES, GUID_BYTES = 5, 17
MAX_READERS = 10_000

Read = Callable[[bytes, int], Any]
"""Makes a value of bytes, from an offset on."""
Subject = Literal["topic", "record", "topic-record"] | Callable[[str, str, str], str]


class Shape(Protocol):
    """How a format reads and writes one type.

    Attributes:
        record: the name of the type in schemas, for subjects.
        infix: what stands between a schema's id and the content.
    """

    record: str
    infix: bytes

    @property
    def schema(self) -> Schema | None:
        """The schema that values are written with, unless the format has a version; None without a type."""

    def reader(self, schema: Schema) -> Read:
        """Return what reads content that was written with a schema.

        Raises:
            ValueError: nothing can.
        """

    def writer(self, schema: Schema) -> Callable[[Any], bytes]:
        """Return what writes values with a schema; it raises any error.

        Raises:
            ValueError: nothing can.
        """


class RegistryFormat:
    """A format whose values go with the id of a schema.

    Attributes:
        type: of the values, None where the declaration says it.
        subject: under which name the schema is registered: "topic" is `{topic}-value`, "record" the name of the type,
            "topic-record" `{topic}-{name}`; or a function of topic, part ("key" or "value") and name of the type.
        version: of the subject, by whose schema values are written; "latest", or a number. The type's own schema when
            left out.
        ids: where values that are written have the id of the schema. Values are read with both.
    """

    kind: ClassVar[SchemaType]

    def __init__(
        self,
        type: Any = None,
        *,
        subject: Subject = "topic",
        version: int | Literal["latest"] | None = None,
        ids: Literal["prefix", "header"] = "prefix",
    ) -> None:
        self.type, self.subject, self.version, self.ids = type, subject, version, ids
        is_right = {
            "subject": callable(subject) or subject in ("topic", "record", "topic-record"),
            "version": version in (None, "latest") or (type_is_int(version) and int(version or 0) > 0),
            "ids": ids in ("prefix", "header"),
        }
        wrong = [f"{name}={getattr(self, name)!r}" for name, right in is_right.items() if not right]
        if wrong:
            raise ConfigurationError(
                f"{self!r}: {', '.join(wrong)} can't be used: see the documentation's page 'Formats'"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.type is None else getattr(self.type, '__name__', self.type)})"

    def shape(self, type_: Any, place: Place) -> Shape:
        """Return how a type is read and written.

        Raises:
            ConfigurationError: the format can't carry it.
        """
        raise NotImplementedError

    def bind(self, place: Place, type_: Any, app: Any) -> Codec:
        """Return the codec of a type; see `Format`."""
        plain, _ = strip_optional(type_)
        try:
            framed = Framed(self, self.shape(plain, place), place, app)
            types = self.arms(plain)
            arms = {arm: Framed(self, self.shape(arm, place), place, app) for arm in types} if len(types) > 1 else {}
        except ImportError as error:
            raise ConfigurationError(f"{self!r}: {error}: pip install 'faust-actors[formats]'") from error
        has_header = self.ids == "header" and not place.is_state
        reads_header = place.part == "value" and not place.is_state
        if has_header and place.part == "key" and arms:
            raise ConfigurationError(f"{self!r}: keys of several types need the ids of their schemas: ids='prefix'")
        # Hot: one type is written without a look at its value's. A deletion is of any.
        method = partial(_by_type, {**arms, type(None): framed}) if arms else partial(getattr, framed)
        return Codec(
            framed.decode_bare if has_header and place.part == "key" else framed.decode,
            method("encode_bare" if has_header else "encode"),
            f"{getattr(plain, '__name__', plain)} as {self!r}",
            origin=(plain, place, self),
            frame=framed.frame if reads_header else None,
            headers=None if place.is_state else method("headers") if has_header else framed.no_headers,
        )

    def arms(self, type_: Any) -> tuple[Any, ...]:
        """Return the types that are written with a schema and a subject each: the arms of a union, or the type."""
        arms = tuple(arms_of(type_)) if self.subject != "topic" or self.kind == "PROTOBUF" else ()
        is_named = all(isinstance(arm, type) and arm.__module__ != "builtins" for arm in arms)
        return arms if arms and is_named else (type_,)

    def subject_of(self, place: Place, record: str) -> str:
        """Return the subject of a type."""
        if callable(self.subject):
            return self.subject(place.topic, place.part, record)
        if self.subject == "topic":
            return f"{place.topic}-{place.part}"
        return record if self.subject == "record" else f"{place.topic}-{record}"


def json_of(schema: Any) -> Any:
    """Return `schema=` of a format as plain data, which it is, or which its text or its file is in JSON.

    Raises:
        ConfigurationError: it is no JSON.
    """
    text = schema.read_text(encoding="utf-8") if isinstance(schema, Path) else schema
    try:
        return schema_json(text) if isinstance(text, str) else text
    except ValueError as error:
        raise ConfigurationError(f"schema=: {error}") from error


def type_is_int(value: Any) -> bool:
    """Return whether it is a whole number, which True isn't."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_varint(raw: bytes, at: int, what: str = "a number") -> tuple[int, int]:
    """Return a number of Avro's, or of a message index, and the offset behind it."""
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise ValueError(f"it ends in {what}")
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def id_of(raw: bytes) -> tuple[bytes, int | UUID] | None:
    """Return the beginning of a value that has the id of its schema, and that id; None without one."""
    if raw[:1] == bytes([MAGIC_ID]) and len(raw) >= ID_BYTES:
        return raw[:ID_BYTES], int.from_bytes(raw[1:ID_BYTES])
    if raw[:1] == bytes([MAGIC_GUID]) and len(raw) >= GUID_BYTES:
        return raw[:GUID_BYTES], UUID(bytes=raw[1:GUID_BYTES])
    return None


def _by_type(arms: Mapping[Any, Framed], method: str) -> Callable[[Any], Any]:
    """Return a method that is called on what stands for the type of its value."""
    methods = {arm: getattr(framed, method) for arm, framed in arms.items()}

    def called(value: Any) -> Any:
        if type(value) not in methods:
            names = ", ".join(arm.__name__ for arm in arms if arm is not type(None))
            raise CodecError(f"expected one of {names}, got {type(value).__name__}")
        return methods[type(value)](value)

    return called


class Framed:
    """Values of one type at one place, with the ids of their schemas."""

    def __init__(self, format_: RegistryFormat, shape: Shape, place: Place, app: Any) -> None:
        self._format, self._shape, self._place, self._app = format_, shape, place, app
        self.subject = format_.subject_of(place, shape.record)
        self._header = SCHEMA_HEADERS[place.part]
        self._readers: dict[bytes, Read] = {}
        self._write: Callable[[Any], bytes] | None = None
        self._id = b""
        self._own_headers: list[tuple[str, bytes | None]] = []

    def frame(self, headers: Headers, raw: bytes) -> bytes:
        """Return a record's content behind the id of its schema, wherever that came."""
        for name, value in headers:
            if name == self._header and value:
                return value + raw
        return raw

    def no_headers(self, _: Any) -> list[tuple[str, bytes | None]]:
        """Return that a header of another schema isn't passed on."""
        return [(self._header, None)]

    def headers(self, value: Any) -> list[tuple[str, bytes | None]]:
        """Return the header with the id of the schema; a deletion has none."""
        if value is None:
            return self.no_headers(value)
        if self._write is None:
            self.resolve()
        return self._own_headers

    def encode(self, value: Any) -> bytes:
        """Return a value's bytes with the id of the schema."""
        content = self.encode_bare(value)
        return self._id + content

    def encode_bare(self, value: Any) -> bytes:
        """Return a value's bytes without the id."""
        write = self._write or self.resolve()
        try:
            return write(value)
        except MemoryError:
            raise
        except Exception as error:
            reason = text_of(error) or type(error).__name__
            raise CodecError(f"can't encode {self._shape.record} (subject {self.subject}): {reason}") from error

    def decode(self, raw: bytes) -> Any:
        """Return the value of bytes that begin with the id of their schema."""
        read, start = self._readers.get(raw[:ID_BYTES]), ID_BYTES
        if read is None:
            read, start = self._reader(raw)
        try:
            return read(raw, start)
        except MemoryError:
            raise
        except Exception as error:
            _, id = id_of(raw) or (b"", None)
            reason = text_of(error) or type(error).__name__
            raise CodecError(
                f"not a valid {self._shape.record} of schema {id} (subject {self.subject}): {reason}: {show_bytes(raw)}"
            ) from error

    def decode_bare(self, raw: bytes) -> Any:
        """Return the value of bytes without an id, written with the schema that values are written with."""
        if self._write is None:
            self.resolve()
        return self.decode(self._id + raw)

    def resolve(self) -> Callable[[Any], bytes]:
        """Find the schema that values are written with; return what writes with it.

        Raises:
            CodecError: it can't be used with the type.
            UnresolvedSchemaError: it isn't here yet.
        """
        client, version, declared = client_of(self._app), self._format.version, self._shape.schema
        if version is not None:
            schema, id, guid = client.version(self.subject, version)
        elif declared is None:
            raise CodecError(
                f"subject {self.subject}: without a type nothing can be written: declare a type, or "
                f'{type(self._format).__name__}(version="latest")'
            )
        else:
            schema = declared
            id, guid = client.writer(self.subject, declared)
        try:
            write = self._shape.writer(schema)
        except Exception as error:
            raise CodecError(
                f"schema {id} of subject {self.subject} can't be written with: {text_of(error)}"
            ) from error
        self._id = bytes([MAGIC_ID]) + id.to_bytes(4) + self._shape.infix
        value = self._id if guid is None else bytes([MAGIC_GUID]) + guid.bytes + self._shape.infix
        self._own_headers, self._write = [(self._header, value)], write
        return write

    def _reader(self, raw: bytes) -> tuple[Read, int]:
        parts = id_of(raw)
        if parts is None:
            raise CodecError(
                f"not a value with the id of a schema: it begins with neither 0 and an id nor 1 and a GUID (subject "
                f"{self.subject}): {show_bytes(raw)}"
            )
        prefix, id = parts
        read = self._readers.get(prefix)
        if read is None:
            read = self._make_reader(client_of(self._app), id)
            if len(self._readers) < MAX_READERS:
                self._readers[prefix] = read
        return read, len(prefix)

    def _make_reader(self, client: RegistryClient, id: int | UUID) -> Read:
        try:
            return self._shape.reader(client.schema(id, self._format.kind))
        except (UnresolvedSchemaError, MemoryError):
            raise
        except MissingSchemaError as error:
            raise CodecError(f"{error} (subject {self.subject})") from error
        except Exception as error:
            reason = text_of(error) or type(error).__name__
            raise CodecError(
                f"schema {id} can't be read as {self._shape.record} (subject {self.subject}): {reason}"
            ) from error
