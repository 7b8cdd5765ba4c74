"""The content of a parked message or effect, for JSON and for a person."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from actors._core.logs import escaping, text_of
from actors.admin.parked.reader import Content, Entry, ParkedQueue, key_json, shown
from actors.declare.values.decoder import as_json
from actors.errors import UnresolvedSchemaError
from actors.runtime.message.unresolved import resolved
from actors.runtime.quarantine.entries import ParkedMessage

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition

logger = escaping(logging.getLogger(__name__))


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
        **({} if content.method is msgspec.UNSET else {"method": content.method}),
        "headers": [[name, None if data is None else shown(data)] for name, data in content.headers],
        "value": _value(definition, content),
    }


def _value(definition: ActorDefinition, message: ParkedMessage) -> Any:
    raw = message.value
    if raw is None:
        return None
    try:
        return as_json(_decoded(definition, message))
    except Exception:
        # Whatever a user's type says about bytes that aren't one of it: that may be why the message is here.
        return shown(raw)


def _decoded(definition: ActorDefinition, message: ParkedMessage) -> Any:
    if message.method is not msgspec.UNSET:
        return msgspec.json.decode(message.value or b"null")
    codec = definition.messages(definition.input_called(message.topic))
    return codec.of_record([(name, data or b"") for name, data in message.headers], message.value or b"")


async def fetch_schemas(definition: ActorDefinition, contents: Iterable[Content]) -> None:
    """Fetch the schemas of parked messages, so that their values can be shown, unless the registry is down."""
    for message in contents:
        if isinstance(message, ParkedMessage) and message.value is not None:
            try:
                await resolved(partial(_decoded, definition, message), is_patient=False)
            except UnresolvedSchemaError:
                return
            except Exception as error:
                logger.debug("a parked message doesn't decode, and is shown as bytes: %s", text_of(error))
