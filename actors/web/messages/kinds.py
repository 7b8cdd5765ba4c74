"""The messages of an actor that can be sent by HTTP, by the names that URLs have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import msgspec

from actors._core.unions import arms_of
from actors._faust.setup import inbox_of
from actors.declare.definition import ActorDefinition
from actors.declare.values.codecs import UNTYPED, resolve
from actors.errors import ConfigurationError
from actors.runtime.message.outputs import OutputTopic
from actors.runtime.requests.replies import ReplyCodec
from actors.web.problems import Problem

UNNAMED = "message"
"""The name of the messages of an actor whose topic declares no type."""


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One type of message.

    Attributes:
        name: of the type in URLs: the tag of a tagged `Struct`, the name of another class.
        type: the type, None for any JSON.
        decode: makes a message of JSON; raises `CodecError` or `msgspec.MsgspecError`.
        answer: the codec of the answer, None if the actor gives none to such messages.
    """

    name: str
    type: Any
    decode: Callable[[bytes], Any]
    answer: ReplyCodec | None


@dataclass(frozen=True, slots=True)
class Addressee:
    """An actor that messages can be sent to.

    Attributes:
        definition: the actor.
        kinds: its messages by name.
        output: how messages become records of its input.
    """

    definition: ActorDefinition
    kinds: Mapping[str, MessageKind]
    output: OutputTopic

    @classmethod
    def of(cls, definition: ActorDefinition) -> Addressee:
        """Return the addressee of an actor."""
        kinds = (_kind(definition, type_, name) for type_, name in _types(definition).items())
        return cls(definition, {kind.name: kind for kind in kinds if kind is not None}, inbox_of(definition))

    def kind(self, name: str) -> MessageKind:
        """Return the kind of a name; `Problem` if the actor takes none such."""
        kind = self.kinds.get(name)
        if kind is None:
            names = ", ".join(sorted(self.kinds)) or "none that JSON can say"
            detail = f"actor {self.definition.name} takes no message {name!r}; it takes: {names}"
            raise Problem(404, "unknown-message", "There is no such message", detail)
        return kind


def _types(definition: ActorDefinition) -> Mapping[Any, str]:
    """Return the types of the messages of the first input, with the names that the class actor has for them."""
    declared, value_type = definition.declared, definition.topic.schema.value_type
    names: Mapping[Any, str] = getattr(declared, "type_names", {})
    types = names if names and value_type is None else arms_of(value_type)
    return {type_: names.get(type_, "") for type_ in types if type_ is not NoneType}


def _kind(definition: ActorDefinition, type_: Any, name: str) -> MessageKind | None:
    try:
        # JSON has bytes as base64, and Faust's codec would take the body for them.
        decode = msgspec.json.Decoder(bytes).decode if type_ is bytes else resolve(type_, "json").decode
    except ConfigurationError:
        return None
    types = definition.answer_types
    is_plain = not isinstance(type_, type)
    answer = None if types is None else types.codec_for_type(object if is_plain else type_)
    return MessageKind(_name(type_, name), type_, decode, answer)


def _name(type_: Any, name: str) -> str:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct) and type_.__struct_config__.tag is not None:
        return str(type_.__struct_config__.tag)
    if type_ in UNTYPED:
        return UNNAMED
    return name or str(getattr(type_, "__name__", UNNAMED))
