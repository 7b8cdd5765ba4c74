"""The content of a parked message or effect, for JSON and for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.admin.parked.reader import Content, Entry, ParkedQueue, key_json, shown
from actors.declare.values.decoder import as_json
from actors.runtime.quarantine.entries import ParkedMessage

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition


def entry_json(definition: ActorDefinition, line: ParkedQueue, entry: Entry, content: Content | None) -> dict[str, Any]:
    """Return an entry of a line for JSON: what it is, what failed, and its value decoded.

    Without its content, which is left out where it is large, `is_shown` is false and `bytes` says how large it is.
    """
    about = {
        "what": line.what,
        "partition": line.partition,
        "key": key_json(line),
        "id": entry.id,
        "error": entry.error,
        "attempts": entry.attempts,
        "since_ms": entry.since_ms,
        "bytes": entry.size,
        "is_shown": content is not None,
    }
    if content is None:
        return about if entry.offset is None else {**about, "offset": entry.offset}
    if not isinstance(content, ParkedMessage):
        return {
            **about,
            "effect": content.name,
            "args": content.args,
            "kwargs": content.kwargs,
            "parked": content.parked,
            "next_ms": content.next_ms,
        }
    return {
        **about,
        "topic": content.topic,
        "offset": content.offset,
        "timestamp_ms": content.timestamp_ms,
        "timer": content.timer,
        "headers": [[name, None if data is None else shown(data)] for name, data in content.headers],
        "value": _value(definition, content),
    }


def _value(definition: ActorDefinition, message: ParkedMessage) -> Any:
    raw = message.value
    if raw is None:
        return None
    codec = definition.messages(definition.input_called(message.topic))
    try:
        if codec.by_headers is None:
            return as_json(codec.decode(raw))
        return as_json(codec.by_headers([(name, data or b"") for name, data in message.headers], raw))
    except Exception:
        # Whatever a user's type says about bytes that aren't one of it: that may be why the message is here.
        return shown(raw)
