"""An AsyncAPI 3 document of an app: its topics, what their records are, and its actors.

Topics that the app has for itself (changelogs, repartitioned inputs, answers) aren't in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from actors.declare.values.codecs import UNTYPED, Codec, Place, is_model, is_record, strip_optional
from actors.declare.values.schemas import bound, topic_codecs
from actors.formats.framing import RegistryFormat
from actors.formats.registry import Schema, schema_json
from actors.runtime.message.outputs import SCHEMA_HEADERS, TYPE_HEADER

VERSION = "3.0.0"
_FORMATS = {
    "AVRO": ("application/vnd.apache.avro+json;version=1.9.0", "application/vnd.confluent.avro"),
    "PROTOBUF": ("application/vnd.google.protobuf;version=3", "application/vnd.confluent.protobuf"),
    "JSON": ("", "application/vnd.confluent.json"),
}
"""By type of schema: the format of the schema where it isn't AsyncAPI's own, and that of the content."""
_COMPONENTS = "#/components/schemas/{name}"
_PLAIN = {str: ("text/plain", {"type": "string"}), bytes: ("application/octet-stream", {"type": "string"})}


def document(app: Any, *, title: str = "", version: str = "1") -> dict[str, Any]:
    """Return the document, as data for JSON or YAML."""
    writer = _Document(app)
    return {
        "asyncapi": VERSION,
        "info": {"title": title or str(app.conf.id), "version": version},
        "defaultContentType": "application/json",
        "servers": writer.servers(),
        **writer.content(),
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of record in a topic; `header` is the name of the type in its header, for actors that are classes."""

    name: str
    type: Any
    codec: Codec
    header: str = ""


class _Document:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._schemas: dict[str, Any] = {}
        self._messages: dict[str, Any] = {}
        self._readers: dict[str, list[Any]] = {}
        for definition in app.actors.values():
            for name in (*definition.topic_names, *definition.sources.values()):
                self._readers.setdefault(name, []).append(definition)

    def servers(self) -> dict[str, Any]:
        addresses = [urlsplit(str(url)) for url in self._app.conf.broker]
        is_secure = self._app.conf.broker_credentials is not None
        return {
            f"broker-{number}": {
                "host": f"{url.hostname}:{url.port or 9092}",
                "protocol": "kafka-secure" if is_secure else "kafka",
            }
            for number, url in enumerate(addresses, 1)
        }

    def content(self) -> dict[str, Any]:
        channels: dict[str, Any] = {}
        operations: dict[str, Any] = {}
        own = {name for definition in self._app.actors.values() for name in definition.sources}
        for topic in self._app.declared_topics:
            name = str(topic.get_topic_name()) if len(topic.topics) == 1 else ""
            if not name or name in channels or name in own:
                continue
            kinds = self._kinds(name, topic)
            messages = {kind.name: {"$ref": self._message(topic, name, kind)} for kind in kinds}
            channels[name] = {"address": name, "messages": messages}
            channel = {"$ref": f"#/channels/{name}"}
            for definition in self._readers.get(name, ()):
                operations[f"{definition.name}-{name}"] = {
                    "action": "receive",
                    "channel": channel,
                    "summary": f"Actor {definition.name}",
                }
            if name not in self._readers:
                operations[f"send-{name}"] = {"action": "send", "channel": channel}
        components = {"messages": self._messages, **({"schemas": self._schemas} if self._schemas else {})}
        return {"channels": channels, "operations": operations, "components": components}

    def _kinds(self, name: str, topic: Any) -> Iterator[_Kind]:
        readers = self._readers.get(name, ())
        classes: list[Any] = [reader.declared for reader in readers if isinstance(reader.declared, type)]
        if classes and topic.schema.value_type is None:
            for class_ in classes:
                for type_, tag in class_.type_names.items():
                    codec = bound(self._app, topic.schema, "value", type_) or topic_codecs(topic)[1]
                    yield _Kind(tag, type_, codec, tag if len(class_.type_names) > 1 else "")
            return
        type_ = strip_optional(topic.schema.value_type)[0]
        yield _Kind(
            getattr(type_, "__name__", "value") if type_ not in UNTYPED else "value", type_, topic_codecs(topic)[1]
        )

    def _message(self, topic: Any, channel: str, kind: _Kind) -> str:
        """Add a message to the components; return its address."""
        key_codec, _ = topic_codecs(topic)
        content_type, payload, header = self._payload(kind.type, kind.codec)
        key_type = strip_optional(topic.schema.key_type)[0]
        _, key, key_header = self._payload(key_type, key_codec)
        headers = {name: {"type": "string"} for name in (header, key_header) if name}
        if kind.header:
            headers[TYPE_HEADER] = {"type": "string", "const": kind.header}
        message: dict[str, Any] = {"name": kind.name, "contentType": content_type, "payload": payload}
        if headers:
            message["headers"] = {"type": "object", "properties": headers, "required": sorted(headers)}
        if "schemaFormat" not in key:
            # By the public schema a bare reference would be both a schema and a reference, and is refused.
            message["bindings"] = {"kafka": {"key": {"allOf": [key]} if "$ref" in key else key}}
        name = f"{channel}-{_id(kind.name)}"
        self._messages[name] = message
        return f"#/components/messages/{name}"

    def _payload(self, type_: Any, codec: Codec) -> tuple[str, dict[str, Any], str]:
        """Return the type of the content, its schema, and the header that has the id of one."""
        match codec.origin:
            case [_, Place() as place, RegistryFormat() as format_]:
                shape = format_.shape(type_, place)
                schema_format, content_type = _FORMATS[format_.kind]
                header = SCHEMA_HEADERS[place.part] if format_.ids == "header" else ""
                if format_.kind == "JSON" or shape.schema is None:
                    return content_type, self._json(type_), header
                schema = _schema_of(shape.schema)
                return content_type, {"schemaFormat": schema_format, "schema": schema}, header
        if type_ in _PLAIN and not codec.is_json:
            return *_PLAIN[type_], ""
        return "application/json", self._json(type_), ""

    def _json(self, type_: Any) -> dict[str, Any]:
        """Return the JSON schema of a type, whose parts become components; that of anything where it has none."""
        if type_ in UNTYPED or is_record(type_):
            return {}
        if is_model(type_):
            schema: dict[str, Any] = type_.model_json_schema(ref_template=_COMPONENTS.replace("name", "model"))
            self._schemas |= schema.pop("$defs", {})
            return schema
        try:
            (schema,), parts = msgspec.json.schema_components([type_], ref_template=_COMPONENTS)
        except (TypeError, NameError):
            return {}
        self._schemas |= parts
        return schema


def _schema_of(schema: Schema) -> Any:
    return schema.text if schema.type == "PROTOBUF" else schema_json(schema.text)


def _id(name: str) -> str:
    """Return a name as the document's identifiers may be."""
    return "".join(letter if letter.isalnum() or letter in "_-." else "-" for letter in name)
