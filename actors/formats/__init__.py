"""How keys and values become bytes: `format=` of topics, stores and apps.

The engine doesn't import this package. A format is an object with `type` and `bind`: see
`actors.declare.values.codecs.Format`.
"""

from actors.declare.values.codecs import Codec, CodecError, Format, Place
from actors.formats.avro import Avro
from actors.formats.cloudevents import CloudEvent, CloudEvents
from actors.formats.json_schema import JsonSchema
from actors.formats.plain import Json, Raw
from actors.formats.protobuf import Protobuf
from actors.formats.registry import Registry

__all__ = [
    "Avro",
    "CloudEvent",
    "CloudEvents",
    "Codec",
    "CodecError",
    "Format",
    "Json",
    "JsonSchema",
    "Place",
    "Protobuf",
    "Raw",
    "Registry",
]
