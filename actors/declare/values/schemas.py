"""The schemas of topics: how their keys and values become bytes, for actors and for Faust's agents alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal

import faust
from faust.exceptions import KeyDecodeError, ValueDecodeError

from actors.declare.values.codecs import (
    UNTYPED,
    Codec,
    CodecError,
    Place,
    is_format,
    resolve,
    resolve_key,
    strip_optional,
)
from actors.errors import ConfigurationError
from actors.runtime.message.outputs import sent_headers
from actors.runtime.message.unresolved import resolved

_FAUST_SCALARS = (str, bytes, int, float, Decimal)


def check_schema(owner: str, schema: Any) -> None:
    """Refuse a schema that reads or writes otherwise than its types and serializers say.

    Raises:
        ConfigurationError: naming what it overrides.
    """
    known = ActorSchema if isinstance(schema, ActorSchema) else faust.Schema
    own = [name for name in _SCHEMA_METHODS if getattr(type(schema), name) is not getattr(known, name)]
    if own:
        raise ConfigurationError(
            f"{owner}: its schema {type(schema).__name__} overrides {', '.join(own)}, which actors don't call: they "
            "read and write by value_type and value_serializer. Register what it does as a codec "
            "(faust.serializers.codecs.register) and name that in value_serializer=, or use an @app.agent"
        )


_SCHEMA_METHODS = (
    "loads_key",
    "loads_value",
    "dumps_key",
    "dumps_value",
    "decode",
    "compile",
    "on_dumps_key_prepare_headers",
    "on_dumps_value_prepare_headers",
)


def key_codec(app: Any, schema: Any) -> Codec:
    """Return the codec that reads and writes a topic's keys as a Faust agent on the topic does.

    Raises:
        ConfigurationError: see `check_schema`.
    """
    check_schema("a topic", schema)
    own = bound(app, schema, "key", schema.key_type)
    if own is not None:
        return own
    type_, serializer, default = schema.key_type, schema.key_serializer, app.serializers.key_serializer
    return _kept(
        schema,
        ("key", type_, serializer, default),
        lambda: _pass_bytes(resolve_key(type_, serializer, default=default), type_),
    )


def value_codec(app: Any, schema: Any) -> Codec:
    """Return the codec that reads and writes a topic's values as a Faust agent on the topic does.

    So `value_type=str` is a JSON string, unless the topic or the app says `value_serializer="raw"`.

    Raises:
        ConfigurationError: see `check_schema`.
    """
    check_schema("a topic", schema)
    own = bound(app, schema, "value", schema.value_type)
    if own is not None:
        return own
    type_, serializer = schema.value_type, schema.value_serializer or app.serializers.value_serializer
    return _kept(
        schema,
        ("value", type_, serializer),
        lambda: _pass_bytes(resolve(type_, serializer, for_others=True), type_),
    )


def _kept(schema: Any, place: tuple[Any, ...], make: Callable[[], Codec]) -> Codec:
    """Return the codec that the schema keeps for what it is made of: to make one takes longer than coding a value.

    `place` is the part, key or value, and then the type and the serializers, which needn't have a hash.
    """
    codecs = schema.codecs if isinstance(schema, ActorSchema) else {}
    made_of, codec = codecs.get(place[0], ((), None))
    if codec is None or any(former is not part for former, part in zip(made_of, place, strict=True)):
        codec = make()
        codecs[place[0]] = place, codec
    kept: Codec = codec
    return kept


def bound(app: Any, schema: Any, part: Literal["key", "value"], type_: Any) -> Codec | None:
    """Return the codec of a topic's format for a type, None where a serializer makes the bytes.

    Raises:
        ConfigurationError: the format can't carry the type.
    """
    serializer = getattr(schema, f"{part}_serializer")
    if not is_format(serializer):
        return None
    codec: Codec | None = schema.bound.get((part, type_))
    if codec is None:
        codec = schema.bound[part, type_] = serializer.bind(Place(schema.topic, part), type_, app)
    return codec


def _pass_bytes(codec: Codec, type_: Any) -> Codec:
    """Let bytes through an untyped topic as they are: as in Faust, the user encoded them."""
    if strip_optional(type_)[0] not in UNTYPED:
        return codec
    encode = codec.encode
    return replace(codec, encode=lambda value: value if isinstance(value, bytes) else encode(value))


class ActorSchema(faust.Schema):  # type: ignore[misc]
    """Faust's schema, for which a Struct, a dataclass and typed JSON (`dict[str, int]`) are types too, and formats.

    What Faust knows (models, `str`, `bytes`, numbers, None) is left to Faust.

    Attributes:
        topic: the name of the topic.
        bound: the codecs that the topic's formats made.
        codecs: by part, the codec that the topic's serializer made, and what it is made of.
    """

    def __init__(self, topic: str = "", **options: Any) -> None:
        self.topic = topic
        self.bound: dict[Any, Codec] = {}
        self.codecs: dict[str, tuple[tuple[Any, ...], Codec]] = {}
        self._resolved: dict[Any, Codec] = {}
        super().__init__(**options)

    def of_topic(self, topic: str) -> ActorSchema:
        """Return the same schema for another topic."""
        options = ("key_type", "value_type", "key_serializer", "value_serializer", "allow_empty")
        return ActorSchema(topic, **{name: getattr(self, name) for name in options})

    def compile(self, app: Any, **options: Any) -> Any:
        """Return Faust's decoder of messages, which waits for schemas of the registry."""
        decode = super().compile(app, **options)

        async def decode_resolved(message: Any, **more: Any) -> Any:
            return await resolved(lambda: decode(message, **more))

        return decode_resolved

    def loads_key(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        """Decode the message's key."""
        codec = self._own_codec(app, "key", serializer)
        if codec is None:
            return super().loads_key(app, message, loads=loads, serializer=serializer)
        return _load(codec, message.headers, message.key, self.key_type, KeyDecodeError)

    def loads_value(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        """Decode the message's value."""
        codec = self._own_codec(app, "value", serializer)
        if codec is None:
            return super().loads_value(app, message, loads=loads, serializer=serializer)
        return _load(codec, message.headers, message.value, self.value_type, ValueDecodeError)

    def dumps_key(self, app: Any, key: Any, *, serializer: Any = None, headers: Any) -> tuple[Any, Any]:
        """Encode a key; bytes pass as they are, as in Faust."""
        codec = self._own_codec(app, "key", serializer)
        if codec is None:
            encoded: tuple[Any, Any] = super().dumps_key(app, key, serializer=serializer, headers=headers)
            return encoded
        payload, headers = _dump(codec, key, headers)
        return payload, self.on_dumps_key_prepare_headers(key, headers)

    def dumps_value(self, app: Any, value: Any, *, serializer: Any = None, headers: Any) -> tuple[Any, Any]:
        """Encode a value; bytes pass as they are, as in Faust, and None is a tombstone."""
        codec = self._own_codec(app, "value", serializer)
        if codec is None:
            encoded: tuple[Any, Any] = super().dumps_value(app, value, serializer=serializer, headers=headers)
            return encoded
        payload, headers = _dump(codec, value, headers)
        return payload, self.on_dumps_value_prepare_headers(value, headers)

    def _own_codec(self, app: Any, part: Literal["key", "value"], serializer: Any) -> Codec | None:
        """Return the codec of keys or values, None where Faust has its own."""
        type_ = getattr(self, f"{part}_type")
        own = None if serializer else bound(app, self, part, type_)
        if own is not None or _faust_knows(type_):
            return own
        codec = self._resolved.get((part, type_, serializer))
        if codec is None and serializer:
            codec = resolve_key(type_, serializer) if part == "key" else resolve(type_, serializer, for_others=True)
        elif codec is None:
            codec = (key_codec if part == "key" else value_codec)(app, self)
        self._resolved[part, type_, serializer] = codec
        return codec


def _load(codec: Codec, headers: Any, raw: bytes | None, type_: Any, error_class: type[Exception]) -> Any:
    if raw is None:
        if strip_optional(type_)[1]:
            return None
        raise error_class(f"Expected {type_!r}, received None!")
    try:
        return codec.from_record(list(headers.items() if isinstance(headers, dict) else headers or ()), raw)
    except CodecError as error:
        raise error_class(str(error)) from error


def _dump(codec: Codec, value: Any, headers: Any) -> tuple[bytes | None, Any]:
    if value is None or isinstance(value, bytes):
        return value, headers
    payload = codec.encode(value)
    if codec.headers is not None:
        headers = {**dict(headers or {}), **dict(sent_headers(codec.headers(value)))}
    return payload, headers


def _faust_knows(type_: Any) -> bool:
    return type_ is None or type_ in _FAUST_SCALARS or hasattr(type_, "from_data")


def topic_codecs(topic: Any) -> tuple[Codec, Codec]:
    """Return the codecs of a topic's keys and values."""
    return key_codec(topic.app, topic.schema), value_codec(topic.app, topic.schema)
