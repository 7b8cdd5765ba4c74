"""How the messages of a class actor become bytes, and how their types are told apart.

the topic declares a type     its codec decodes all; each type that it can give needs a handler
tagged Structs, or one type   msgspec's tagged union: the tag is a field of the JSON
anything else                 the header `fa-type` of each record names the type
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Union

import msgspec

from actors._core.outside import MALFORMED
from actors._core.unions import arms_of
from actors.declare.values.codecs import Codec, CodecError, resolve
from actors.declare.values.schemas import bound, value_codec
from actors.errors import ConfigurationError, NewerVersionError, UnknownTypeError, UsageError, show_bytes
from actors.ports import Headers
from actors.runtime.handlers.actor import Actor
from actors.runtime.inputs.event_times import with_content
from actors.runtime.message.context import Context
from actors.runtime.message.outputs import SCHEMA_HEADERS, TYPE_HEADER, TypeHeaders, sent_headers

Handler = Callable[[Context, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class MessageCodec:
    """Messages of an actor to bytes and back.

    Where the header names the type, `decode` leaves the bytes as they are, `by_headers` makes the message of the
    headers and the bytes, and `type_headers` gives the headers that a message goes with.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    by_headers: Callable[[Headers, bytes], Any] | None = None
    type_headers: TypeHeaders | None = None
    frame: Callable[[Headers, bytes], bytes] | None = None

    def of_record(self, headers: Headers, raw: bytes) -> Any:
        """Return the message of a record."""
        return self.decode(raw) if self.by_headers is None else self.by_headers(headers, raw)

    @property
    def of_content(self) -> Callable[[bytes], Any]:
        """The decoder of bytes that a store keeps of a record; see `around`."""
        return self.decode if self.by_headers is None else functools.partial(self.by_headers, ())

    def with_headers(self, message: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Return a message's bytes and the headers that it goes with.

        Raises:
            UsageError: the actor doesn't take such messages.
        """
        return self.encode(message), [] if self.type_headers is None else sent_headers(self.type_headers(message))

    def around(self, handler: Handler) -> Handler:
        """Return the handler for what `decode` gives.

        A message that doesn't decode is an undecodable record, though only the handler sees it.
        """
        by_headers, frame = self.by_headers, self.frame
        if by_headers is None:
            return handler

        async def handle(ctx: Context, raw: Any) -> Any:
            try:
                if frame is not None and raw is not None and (content := frame(ctx.headers, raw)) is not raw:
                    # Tables, joins and topics that get the record's bytes keep them whole.
                    raw, ctx._record = content, with_content(ctx._record, content, SCHEMA_HEADERS["value"])
                message = None if raw is None else by_headers(ctx.headers, raw)
            except (CodecError, NewerVersionError) as error:
                raise ctx.undecodable(error) from error
            return await handler(ctx, message)

        return handle


def function_codec(topic: Any) -> MessageCodec:
    """Return the codec of a function actor's messages: its topic's."""
    codec, name = value_codec(topic.app, topic.schema), topic.get_topic_name()
    types = _without_none(arms_of(topic.schema.value_type))
    encode = _refusing(
        _readable(codec),
        f"the messages of its actor are what topic {name} declares with value_type=: add the type there",
    )
    if not _are_tagged(types):
        return _of_records(codec, codec.decode, encode)
    known = ", ".join(str(type_.__struct_config__.tag) for type_ in types)
    return _of_records(codec, _explaining(codec, types, f"topic {name} carries {known}"), encode)


def message_codec(actor: type[Actor[Any]], topic: Any) -> MessageCodec:
    """Return the codec of a class actor's messages.

    Raises:
        ConfigurationError: the topic can give what no handler takes, or the types can't be told apart.
    """
    types = tuple(actor.type_names)
    declared = topic.schema.value_type
    if declared is not None:
        _check_declared(actor, topic, arms_of(declared))
        types = _without_none(arms_of(declared))
        codec = value_codec(topic.app, topic.schema)
        codec = replace(codec, encode=_readable(codec))
    elif len(types) == 1 or _are_tagged(types):
        codec = _codec_of(topic, Union[types])  # noqa: UP007
    else:
        return _by_header(actor, topic)
    known = ", ".join(sorted(actor.type_names.values()))
    encode = _refusing(codec.encode, f"{actor.__name__} takes {known}: give it a method for the type, marked @receive")
    return _of_records(codec, _explaining(codec, types, f"{actor.__name__} takes {known}"), encode)


def _codec_of(topic: Any, type_: Any) -> Codec:
    return bound(topic.app, topic.schema, "value", type_) or resolve(type_, topic.schema.value_serializer)


def _of_records(codec: Codec, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> MessageCodec:
    """Return the codec of messages: where headers have a part of a value, what `decode` takes is made of both."""
    frame = codec.frame
    return MessageCodec(
        decode if frame is None else lambda raw: raw,
        encode,
        None if frame is None else lambda came, raw: decode(frame(came, raw)),
        codec.headers,
        frame,
    )


def _readable(codec: Codec) -> Callable[[Any], bytes]:
    """Return an encoder that refuses what a topic takes for other readers, and its actor doesn't decode."""

    def encode_readable(message: Any) -> bytes:
        raw = codec.encode(message)
        codec.from_record(() if codec.headers is None else sent_headers(codec.headers(message)), raw)
        return raw

    return encode_readable


def _refusing(encode: Callable[[Any], bytes], remedy: str) -> Callable[[Any], bytes]:
    """Return an encoder that names a message which an actor doesn't take, and says what to do."""

    def encode_or_refuse(message: Any) -> bytes:
        try:
            return encode(message)
        except CodecError as error:
            raise UsageError(f"{type(message).__name__} can't be sent: {error}; {remedy}") from error

    return encode_or_refuse


def _check_declared(actor: type[Actor[Any]], topic: Any, arms: Sequence[Any]) -> None:
    missing = [arm for arm in arms if arm not in actor.receivers]
    if missing:
        names = ", ".join(getattr(arm, "__name__", str(arm)) for arm in missing)
        raise ConfigurationError(
            f"actor {actor.__name__}: topic {topic.get_topic_name()} is declared to carry {names}, which no handler "
            "takes: add a method marked @receive, or leave value_type out"
        )


def _without_none(arms: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(arm for arm in arms if arm is not NoneType)


def _are_tagged(types: Sequence[Any]) -> bool:
    structs = [type_ for type_ in types if isinstance(type_, type) and issubclass(type_, msgspec.Struct)]
    tags = {(struct.__struct_config__.tag_field, struct.__struct_config__.tag) for struct in structs}
    fields = {field for field, _ in tags}
    return len(structs) == len(types) == len(tags) and len(fields) == 1 and None not in fields


def _explaining(codec: Codec, types: Sequence[Any], known: str) -> Callable[[bytes], Any]:
    """Return a decoder whose errors say what is known, and tell a type that isn't from a message that is damaged."""
    decode = codec.decode
    configs = [type_.__struct_config__ for type_ in types] if _are_tagged(types) else []
    tags = {config.tag for config in configs}

    def explaining(raw: bytes) -> Any:
        try:
            return decode(raw)
        except CodecError as error:
            tag = _tag_in(raw, configs[0].tag_field) if configs else None
            if tag is not None and tag not in tags:
                raise UnknownTypeError(f"a message of the unknown type {_shown(tag)}: {known}") from error
            raise CodecError(f"{error} ({known})") from error

    return explaining


def _shown(tag: str | int) -> str:
    return show_bytes(tag.encode(errors="backslashreplace")) if isinstance(tag, str) else str(tag)[:80]


def _tag_in(raw: bytes, field: str) -> str | int | None:
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any]).get(field)
    except MALFORMED:
        return None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def _by_header(actor: type[Actor[Any]], topic: Any) -> MessageCodec:
    types = _Types(actor, topic)
    return MessageCodec(lambda raw: raw, types.encode, types.decode, types.headers)


class _Types:
    """The types of an actor's messages by their names in the header."""

    def __init__(self, actor: type[Actor[Any]], topic: Any) -> None:
        self._actor = actor.__name__
        self._names = {type_: name.encode() for type_, name in actor.type_names.items()}
        self._codecs = {type_: _codec_of(topic, type_) for type_ in self._names}
        self._by_name = {name: self._codecs[type_] for type_, name in self._names.items()}
        self._known = ", ".join(sorted(actor.type_names.values()))
        self._takes_none = NoneType in actor.receivers
        if len(self._by_name) < len(self._names):
            raise ConfigurationError(
                f"actor {self._actor}: two types of message have one name in the header {TYPE_HEADER}: give one of "
                'them another, @receive(name="…")'
            )

    def decode(self, headers: Headers, raw: bytes) -> Any:
        """Return the message."""
        name = next((value for header, value in headers if header == TYPE_HEADER), None)
        if name is None:
            raise CodecError(f"the header {TYPE_HEADER} is missing, by which {self._actor} tells {self._known} apart")
        codec = self._by_name.get(name)
        if codec is None:
            raise UnknownTypeError(
                f"a message of the unknown type {show_bytes(name)} (header {TYPE_HEADER}): {self._actor} takes "
                f"{self._known}"
            )
        return codec.from_record(headers, raw)

    def encode(self, message: Any) -> bytes:
        """Return the message's bytes."""
        return self._codecs[self._type_of(message)].encode(message)

    def headers(self, message: Any) -> list[tuple[str, bytes | None]]:
        """Return the header that names the message's type; a tombstone has none."""
        if message is None and self._takes_none:
            return []
        type_ = self._type_of(message)
        own = self._codecs[type_].headers
        return [(TYPE_HEADER, self._names[type_]), *([] if own is None else own(message))]

    def _type_of(self, message: Any) -> Any:
        for base in type(message).__mro__:
            if base in self._names:
                return base
        raise UsageError(
            f"{type(message).__name__} can't be sent: {self._actor} takes {self._known}: give it a method for the "
            "type, marked @receive"
        )
