"""JSON Schema: JSON behind the id of its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from actors._core.unions import arms_of, is_union
from actors.declare.values.codecs import UNTYPED, Codec, Place, is_model, is_record, resolve
from actors.errors import ConfigurationError
from actors.formats.framing import Read, RegistryFormat, Subject, json_of
from actors.formats.plain import Json
from actors.formats.registry import Schema, SchemaType, schema_json

DRAFT = "https://json-schema.org/draft/2020-12/schema"


class JsonSchema(RegistryFormat):
    """JSON with Confluent's wire format, and the schema of the type in the registry.

    The type says what is read and written. Its schema is derived, or given with `schema=` (text, plain data or the path
    of a file); what is written is checked by a schema that was given, or that `version=` names.

    Examples:
        >>> import msgspec
        >>> from actors import App
        >>> from actors.formats import JsonSchema
        >>> class Order(msgspec.Struct):
        ...     item: str
        >>> app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry="http://127.0.0.1:8081")
        >>> orders = app.topic("orders", key_type=str, format=JsonSchema(Order))
    """

    kind: ClassVar[SchemaType] = "JSON"

    def __init__(self, type: Any = None, *, schema: Any = None, subject: Subject = "topic", **options: Any) -> None:
        super().__init__(type, subject=subject, **options)
        self.schema = json_of(schema)

    def shape(self, type_: Any, place: Place) -> JsonShape:
        """Return how a type is read and written; see `RegistryFormat`."""
        schema = _derived(type_) if self.schema is None and type_ not in UNTYPED else self.schema
        codec = Json().bind(place, type_, None)
        return JsonShape(type_, schema, codec, is_checked=self.schema is not None or self.version is not None)


def _derived(type_: Any) -> Any:
    if is_model(type_):
        return type_.model_json_schema()
    if is_record(type_):
        raise ConfigurationError(f"{type_} is a faust.Record, which has no JSON schema: give one with schema=")
    try:
        schema = msgspec.json.schema(type_)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{type_} has no JSON schema: {error}: give one with schema=") from error
    return {"$schema": DRAFT, "title": getattr(type_, "__name__", ""), **schema}


class JsonShape:
    """How one type is read and written; see `actors.formats.framing.Shape`."""

    infix = b""

    def __init__(self, type_: Any, schema: Any, codec: Codec, *, is_checked: bool) -> None:
        self._codec, self._is_checked = codec, is_checked
        arms = arms_of(type_) if is_union(type_) else ()
        self._arms = {getattr(arm, "__name__", str(arm)): resolve(arm, "json") for arm in arms}
        title = schema.get("title") if isinstance(schema, dict) else None
        self.record = str(title or getattr(type_, "__name__", "value"))
        self.schema = None if schema is None else Schema(json.dumps(schema), "JSON")

    def reader(self, schema: Schema) -> Read:
        """Return what reads JSON, by the type alone; by the arm of a union that the schema names."""
        title = schema_json(schema.text).get("title") if self._arms else None
        decode = self._arms.get(title, self._codec).decode
        return lambda raw, start: decode(raw[start:])

    def writer(self, schema: Schema) -> Callable[[Any], bytes]:
        """Return what writes JSON that a schema allows."""
        encode = self._codec.encode
        if not self._is_checked:
            return encode
        check = _checker(schema)

        def write_value(value: Any) -> bytes:
            raw = encode(value)
            check(json.loads(raw))
            return raw

        return write_value


def _checker(schema: Schema) -> Callable[[Any], None]:
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    content = json.loads(schema.text)
    used = {name: DRAFT202012.create_resource(json.loads(text)) for name, text in schema.resolved.items()}
    validator = validator_for(content)(content, registry=Registry().with_resources(used.items()))

    def check(data: Any) -> None:
        error = next(iter(validator.iter_errors(data)), None)
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message}")

    return check
