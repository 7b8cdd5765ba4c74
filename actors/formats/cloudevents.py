"""CloudEvents 1.0 over Kafka: structured, all in the value as JSON, or binary, the attributes in headers.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from actors._core.logs import text_of
from actors.declare.values.codecs import UNTYPED, Codec, CodecError, Place, is_format
from actors.errors import ConfigurationError, UnresolvedSchemaError, show_bytes
from actors.formats.plain import Json
from actors.ports import Headers

T = TypeVar("T")
PREFIX = "ce_"
CONTENT_TYPE = "content-type"
STRUCTURED = "application/cloudevents+json"
VERSION = "1.0"
_REQUIRED = ("id", "source", "type")
_OPTIONAL = ("subject", "time", "datacontenttype", "dataschema")
_FRAME = b"\0cloudevent\0"
"""The beginning of the frame of a binary event: headers and content in MessagePack. JSON doesn't begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent(Generic[T]):
    """An event: its attributes, and its data.

    Attributes:
        id: different for each event of a source; `ctx.next_id()` is the same when a message is handled again.
        source: where it comes from, a URI.
        type: what happened, as "com.example.order.placed".
        data: of the type that the format names; None for an event without data.
        subject: what of the source it is about.
        time: when it happened, with a time zone.
        datacontenttype: the media type of the data; the format's if left out.
        dataschema: a URI of the schema of the data.
        extensions: other attributes: names of small letters and digits, and their values as text.

    Examples:
        >>> from actors.formats import CloudEvent
        >>> CloudEvent(id="1", source="/shop", type="order.placed", data={"item": "hat"}).type
        'order.placed'
    """

    id: str
    source: str
    type: str
    data: T | None = None
    subject: str | None = None
    time: datetime | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


class CloudEvents:
    """Events as `CloudEvent`; both modes are read, and one is written.

    Attributes:
        type: `CloudEvent[X]`, where X is the type of the data.

    Examples:
        >>> import msgspec
        >>> from actors import App
        >>> from actors.formats import CloudEvents
        >>> class Order(msgspec.Struct):
        ...     item: str
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders = app.topic("orders", key_type=str, format=CloudEvents(Order))
    """

    def __init__(
        self,
        data: Any = None,
        *,
        mode: Literal["binary", "structured"] = "binary",
        datacontenttype: str = "application/json",
    ) -> None:
        event: Any = CloudEvent
        self.format: Any = data if is_format(data) else Json(data)
        self.mode, self.datacontenttype = mode, datacontenttype
        self.type = event if self.format.type is None else event[self.format.type]
        if mode not in ("binary", "structured"):
            raise ConfigurationError(f'{self!r}: mode={mode!r}: it is "binary" or "structured"')

    def __repr__(self) -> str:
        return f"CloudEvents({getattr(self.format.type, '__name__', self.format.type)})"

    def bind(self, place: Place, type_: Any, app: Any) -> Codec:
        """Return the codec of events; see `Format`."""
        if place.part == "key":
            raise ConfigurationError(f"{self!r}: a key is no event: leave key_format= out, or name the key's format")
        if type_ in UNTYPED:
            type_ = CloudEvent
        if (get_origin(type_) or type_) is not CloudEvent:
            raise ConfigurationError(f"{self!r}: its values are CloudEvent, not {type_}")
        data_type = (*get_args(type_), None)[0]
        data = self.format.bind(place, None if isinstance(data_type, TypeVar) else data_type, app)
        events = _Events(data, self.datacontenttype)
        has_headers = self.mode == "binary" and not place.is_state
        return Codec(
            events.decode,
            events.encode_data if has_headers else events.encode,
            f"CloudEvent of {data.name}",
            origin=(type_, place, self),
            frame=None if place.is_state else events.frame,
            headers=None if place.is_state else events.headers if has_headers else events.structured_headers,
        )


@dataclass(frozen=True, slots=True)
class _Events:
    data: Codec
    datacontenttype: str

    def frame(self, headers: Headers, raw: bytes) -> bytes:
        """Return a binary event as one text of bytes; a structured one is one already."""
        if raw.startswith(_FRAME):
            return raw
        names = [(name.lower(), value) for name, value in headers]
        content_type = next((value for name, value in names if name == CONTENT_TYPE and value), b"")
        if content_type.lower().startswith(b"application/cloudevents") or not any(
            name == f"{PREFIX}specversion" for name, _ in names
        ):
            return raw
        attributes = {name[len(PREFIX) :]: value for name, value in names if name.startswith(PREFIX) and value}
        framed = raw if self.data.frame is None else self.data.frame(headers, raw)
        return _FRAME + msgspec.msgpack.encode((attributes, content_type or None, framed))

    def decode(self, raw: bytes) -> CloudEvent[Any]:
        """Return the event of what `frame` gives."""
        try:
            return self._binary(raw) if raw.startswith(_FRAME) else self._structured(raw)
        except (UnresolvedSchemaError, MemoryError):
            raise
        except Exception as error:
            reason = text_of(error) or type(error).__name__
            raise CodecError(f"not a valid CloudEvent: {reason}: {show_bytes(raw)}") from error

    def _binary(self, raw: bytes) -> CloudEvent[Any]:
        values, content_type, content = _decode_frame(raw[len(_FRAME) :])
        attributes = {name: value.decode() for name, value in values.items()}
        if content_type is not None:
            attributes["datacontenttype"] = content_type.decode()
        event = _event_of(attributes)
        return replace(event, data=self.data.decode(content)) if content else event

    def _structured(self, raw: bytes) -> CloudEvent[Any]:
        fields = _decode_structured(raw)
        content, encoded = fields.pop("data", None), fields.pop("data_base64", None)
        if content is not None and encoded is not None:
            raise ValueError("it has data and data_base64")
        attributes = {name: _text(msgspec.json.decode(value)) for name, value in fields.items()}
        event = _event_of({name: text for name, text in attributes.items() if text is not None})
        raw = b"null" if content is None else bytes(content)
        if encoded is not None:
            raw = msgspec.json.decode(encoded, type=bytes)
        elif raw == b"null":
            return event
        elif not self.data.is_json and raw.startswith(b'"'):
            raw = msgspec.json.decode(raw, type=str).encode()
        return replace(event, data=self.data.decode(raw))

    def encode(self, event: CloudEvent[Any]) -> bytes:
        """Return an event as JSON."""
        fields: dict[str, Any] = self._attributes(event)
        if event.data is not None:
            raw = self.encode_data(event)
            fields |= {"data": msgspec.Raw(raw)} if self.data.is_json else {"data_base64": raw}
        return msgspec.json.encode(fields)

    def encode_data(self, event: CloudEvent[Any]) -> bytes:
        """Return an event's data."""
        self._attributes(event)
        return b"" if event.data is None else self.data.encode(event.data)

    def headers(self, event: CloudEvent[Any] | None) -> list[tuple[str, bytes | None]]:
        """Return the headers of a binary event; a tombstone is no event."""
        if event is None:
            return [(CONTENT_TYPE, None)]
        attributes = self._attributes(event)
        content_type = attributes.pop("datacontenttype").encode()
        own = [] if self.data.headers is None or event.data is None else self.data.headers(event.data)
        pairs = [(f"{PREFIX}{name}", text.encode()) for name, text in attributes.items()]
        dropped = [(f"{PREFIX}{name}", None) for name in _OPTIONAL if name not in attributes]
        return [*pairs, (CONTENT_TYPE, content_type), *dropped, *own]

    def structured_headers(self, event: CloudEvent[Any] | None) -> list[tuple[str, bytes | None]]:
        """Return the header of a structured event, and that attributes in headers aren't passed on."""
        extensions = () if event is None else event.extensions
        dropped = [(f"{PREFIX}{name}", None) for name in ("specversion", *_REQUIRED, *_OPTIONAL, *extensions)]
        return [(CONTENT_TYPE, None if event is None else STRUCTURED.encode()), *dropped]

    def _attributes(self, event: Any) -> dict[str, str]:
        if not isinstance(event, CloudEvent):
            raise CodecError(f"expected CloudEvent, got {type(event).__name__}")
        values = {name: getattr(event, name) for name in (*_REQUIRED, *_OPTIONAL)}
        values["datacontenttype"] = event.datacontenttype or self.datacontenttype
        if event.time is not None:
            if event.time.utcoffset() is None:
                raise CodecError(f"CloudEvent {event.id!r}: its time has no time zone, and would be another elsewhere")
            values["time"] = event.time.isoformat().replace("+00:00", "Z")
        for name, text in (*values.items(), *event.extensions.items()):
            is_missing = not text and (name in _REQUIRED or text is not None)
            if is_missing or not isinstance(text, str | None):
                raise CodecError(f"CloudEvent {event.id!r}: its {name} is {text!r:.80}, and has to be a text")
        wrong = [name for name in event.extensions if name in values or name in _RESERVED or not _is_name(name)]
        if wrong:
            raise CodecError(
                f"CloudEvent {event.id!r}: {wrong[0]!r:.80} can't be the name of an extension: small letters and "
                "digits, and none of the attributes"
            )
        texts = {name: text for name, text in (*values.items(), *event.extensions.items()) if text is not None}
        return {"specversion": VERSION, **texts}


_decode_frame = msgspec.msgpack.Decoder(tuple[dict[str, bytes], bytes | None, bytes]).decode
_decode_structured = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_RESERVED = ("specversion", "data")


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isascii() and name.isalnum() and name == name.lower()


def _text(value: Any) -> str | None:
    """Return an attribute's value in its canonical text."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"an attribute is a text, a number or true or false, not {value!r:.80}")


def _event_of(attributes: dict[str, str]) -> CloudEvent[Any]:
    version = attributes.pop("specversion", None)
    if version != VERSION:
        raise ValueError(f"its specversion is {version!r:.80}, not {VERSION}")
    missing = [name for name in _REQUIRED if not attributes.get(name)]
    if missing:
        raise ValueError(f"its attribute {missing[0]} is missing")
    values: dict[str, Any] = {name: attributes.pop(name, None) for name in (*_REQUIRED, *_OPTIONAL)}
    if values["time"] is not None:
        values["time"] = msgspec.convert(values["time"], datetime)
    return CloudEvent(**values, extensions=attributes)
