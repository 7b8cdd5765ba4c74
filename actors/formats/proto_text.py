"""A Protobuf descriptor as the text of a `.proto` file, which every registry takes, and the messages of such a text."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Fields = dict[int, tuple[str, str, str]]
"""By number: name, type and label."""
_TOKEN = re.compile(
    # No part looks further than a part that begins in it: hostile text costs one pass, so what isn't closed has no end.
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\])*(?:"|\Z)|'(?:\\.|[^'\\])*(?:'|\Z)|\bpackage\s+(?P<package>[\w.]+)"""
    r"|\b(?P<block>message|enum|oneof|service|extend)\s+(?P<name>[\w.]+)\s*\{"
    r"|\bgroup\s+(?P<group>\w+)\s*=\s*\d+\s*(?:\[[^][{;]*\]\s*)?\{"
    r"|(?<![\w.])(?:(?P<label>repeated|required|optional)\s+)?(?!group\b)(?P<type>map\s*<[^<>]*>|\.?[A-Za-z_][\w.]*)"
    r"\s+(?P<field>\w+)\s*=\s*(?P<number>\d+)|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)


class Message(NamedTuple):
    """A message of a text: its place among those of its file, with those around it, its full name and its fields."""

    place: tuple[int, ...]
    name: str
    fields: Fields


MAX_DEPTH = 64
"""How deep messages are declared in each other, at most."""
_GROUP, _REPEATED, _REQUIRED = 10, 3, 2
_END = 1 << 29


def proto_text(file: Any) -> str | None:
    """Return the text of a file, without comments and options; None of one with extensions, groups or editions."""
    if file.syntax not in ("", "proto2", "proto3") or file.extension or not all(map(_is_plain, file.message_type)):
        return None
    syntax = file.syntax or "proto2"
    lines = [f'syntax = "{syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    public = set(file.public_dependency)
    for place, name in enumerate(file.dependency):
        lines.append(f'import {"public " if place in public else ""}"{name}";')
    for enum in file.enum_type:
        lines += _enum(enum)
    for message in file.message_type:
        lines += _message(message, syntax)
    return "\n".join(lines) + "\n"


def _is_plain(message: Any) -> bool:
    is_own = not (message.extension or message.extension_range)
    return is_own and all(field.type != _GROUP for field in message.field) and all(map(_is_plain, message.nested_type))


def _message(message: Any, syntax: str) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _inside(_body(message, syntax))
    yield "}"


def _body(message: Any, syntax: str) -> Iterator[str]:
    yield from _reserved(message, is_open=True)
    for enum in message.enum_type:
        yield from _enum(enum)
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    maps = {field.type_name.rpartition(".")[2]: field for field in message.field if _is_map(field, entries)}
    # A map's entry is a message too: readers count messages in this order.
    for nested in message.nested_type:
        if nested.name in maps:
            key, value = (_kind(part) for part in nested.field)
            field = maps[nested.name]
            yield f"map<{key}, {value}> {field.name} = {field.number};"
        else:
            yield from _message(nested, syntax)
    for place, choice in enumerate(message.oneof_decl):
        fields = [
            field
            for field in message.field
            if field.HasField("oneof_index") and field.oneof_index == place and not field.proto3_optional
        ]
        if fields:
            yield f"oneof {choice.name} {{"
            yield from _inside(_declared(field, "") for field in fields)
            yield "}"
    for field in message.field:
        is_choice = field.HasField("oneof_index") and not field.proto3_optional
        if not is_choice and not _is_map(field, entries):
            yield _declared(field, _label(field, syntax))


def _is_map(field: Any, entries: dict[str, Any]) -> bool:
    return field.label == _REPEATED and field.type_name.rpartition(".")[2] in entries


def _label(field: Any, syntax: str) -> str:
    if field.label == _REPEATED:
        return "repeated "
    if field.label == _REQUIRED:
        return "required "
    return "optional " if syntax == "proto2" or field.proto3_optional else ""


def _declared(field: Any, label: str) -> str:
    options = []
    if field.HasField("default_value"):
        is_text = _kind(field) in ("string", "bytes")
        options.append(f"default = {json.dumps(field.default_value) if is_text else field.default_value}")
    options += [
        f"{name} = {str(getattr(field.options, name)).lower()}"
        for name in ("packed", "deprecated")
        if field.options.HasField(name)
    ]
    return f"{label}{_kind(field)} {field.name} = {field.number}{' [' + ', '.join(options) + ']' if options else ''};"


def _kind(field: Any) -> str:
    return str(field.type_name) or str(type(field).Type.Name(field.type)).removeprefix("TYPE_").lower()


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.options.allow_alias:
        yield "  option allow_alias = true;"
    yield from _inside(_reserved(enum, is_open=False))
    for value in enum.value:
        yield f"  {value.name} = {value.number};"
    yield "}"


def _reserved(owner: Any, *, is_open: bool) -> Iterator[str]:
    for span in owner.reserved_range:
        last = span.end - is_open
        yield f"reserved {span.start};" if last == span.start else f"reserved {span.start} to {_last(last, is_open)};"
    if owner.reserved_name:
        yield f"reserved {', '.join(json.dumps(name) for name in owner.reserved_name)};"


def _last(number: int, is_open: bool) -> str:
    return "max" if number >= (_END - 1 if is_open else (1 << 31) - 1) else str(number)


def _inside(lines: Any) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def names_of(text: str) -> dict[tuple[int, ...], str]:
    """Return the names of the messages of a schema, a `.proto` file or base64 of its descriptor, by their places."""
    file = _descriptor(text)
    if file is None:
        return {message.place: message.name for message in _messages_in(text)}
    names: dict[tuple[int, ...], str] = {}
    waiting: list[tuple[tuple[int, ...], str, Any]] = [((), file.package, file)]
    while waiting:
        index, name, owner = waiting.pop()
        if index:
            names[index] = name
        inner = owner.nested_type if index else owner.message_type
        waiting += [((*index, place), _dotted(name, part.name), part) for place, part in enumerate(inner)]
    return names


def messages_of(text: str) -> list[Message]:
    """Return the messages of a schema with their fields, none where nothing is sure."""
    file = _descriptor(text)
    return list(_messages_in(text if file is None else proto_text(file) or ""))


def _descriptor(text: str) -> Any:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    return FileDescriptorProto.FromString(raw)


def _messages_in(text: str) -> Iterator[Message]:
    enums = {token["name"] for token in _TOKEN.finditer(text) if token["block"] == "enum"}
    package, counts, blocks = "", [0], list[str]()
    around: list[Message] = []
    for token in _TOKEN.finditer(text):
        package = token["package"] or package
        name = token["group"] or (token["name"] if token["block"] == "message" else None)
        if name:
            if len(around) >= MAX_DEPTH:
                raise ValueError(f"its messages are deeper than {MAX_DEPTH} levels")
            outer = around[-1] if around else Message((), package, {})
            around.append(Message((*outer.place, counts[-1]), _dotted(outer.name, name), {}))
            counts[-1] += 1
            counts.append(0)
            blocks.append("message")
            yield around[-1]
        elif token["block"] or token["open"]:
            blocks.append(token["block"] or "")
        elif token["close"] and blocks and blocks.pop() == "message":
            around.pop()
            counts.pop()
        elif token["field"] and around and blocks[-1] in ("message", "oneof"):
            kind, label = token["type"], token["label"] or "optional"
            if kind.startswith("map"):
                # It is a list of messages, which have a place too.
                counts[-1] += 1
                kind, label = "map", "repeated"
            own = kind.rpartition(".")[2]
            around[-1].fields[int(token["number"])] = token["field"], "enum" if own in enums else own, label


def _dotted(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name
