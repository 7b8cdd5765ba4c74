"""`faust -A APP parked show ACTOR KEY`: what waits of a key, in order."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from actors._faust.cli.keys import value_json
from actors._faust.cli.parked_choice import known_actor
from actors._faust.cli.session import Session, with_session
from actors._faust.codecs import key_codec
from actors._faust.parking.lines import Entry, Line, ParkedReader, chosen, key_json, shown
from actors.runtime.context import Store
from actors.runtime.parked import ParkedMessage

if TYPE_CHECKING:
    from actors._faust.definition import ActorDefinition


@click.command("show")
@click.argument("actor")
@click.argument("key")
@with_session
def show(session: Session, actor: str, key: str) -> None:
    """Print the messages and effects that wait of KEY, in order: id, error, headers, value.

    KEY is as `parked list` shows it. Exits with 1 where nothing is parked.
    """
    definition = known_actor(session, actor)
    lines = asyncio.run(_read(session, definition, key))
    if session.as_json:
        session.say_json([_as_json(definition, line, entry) for line in lines for entry in line.entries])
        return
    for line in lines:
        session.say(f"{line.what}s of key {line.shown_key} in partition {line.partition}: {len(line.entries)}")
        for entry in line.entries:
            _say(session, _as_json(definition, line, entry))


async def _read(session: Session, definition: ActorDefinition, key: str) -> list[Line]:
    async with ParkedReader.connect(session.setup) as reader:
        return chosen(definition, await reader.lines([definition]), key)


def _say(session: Session, entry: dict[str, Any]) -> None:
    from actors._faust.cli.output import moment

    error = entry["error"] or ("(waits behind the one above)" if entry["what"] == "message" else "(not failed yet)")
    session.say(f"\n  {entry['id']}  since {moment(entry['since_ms'])}, attempts: {entry['attempts']}")
    session.say(f"    error    {' '.join(error.split())}")
    if "timestamp_ms" in entry:
        session.say(f"    sent     {moment(entry['timestamp_ms'])}")
    for name in ("timer", "effect", "args", "kwargs"):
        if entry.get(name) is not None:
            session.say(f"    {name:<8} {_text(entry[name])}")
    for name, text in entry.get("headers", ()):
        session.say(f"    header   {name}: {text}")
    if "value" in entry:
        session.say(f"    value    {_text(entry['value'])}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_json(definition: ActorDefinition, line: Line, entry: Entry) -> dict[str, Any]:
    content = entry.content
    about = {
        "what": line.what,
        "partition": line.partition,
        "key": key_json(line),
        "id": entry.id,
        "error": entry.error,
        "attempts": entry.attempts,
        "since_ms": entry.since_ms,
    }
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
        "offset": content.offset,
        "timestamp_ms": content.timestamp_ms,
        "timer": content.timer,
        "headers": [[name, None if data is None else shown(data)] for name, data in content.headers],
        "value": _value(definition, content),
    }


def _value(definition: ActorDefinition, message: ParkedMessage) -> Any:
    """Give the value decoded, or as text where it doesn't decode."""
    raw = message.value
    if raw is None:
        return None
    codec = definition.messages()
    key = key_codec(definition.topic.app, definition.topic.schema)

    def decode(value: bytes) -> Any:
        if codec.by_headers is None:
            return codec.decode(value)
        return codec.by_headers([(name, data or b"") for name, data in message.headers], value)

    # As a store would hold it: what `state get` prints of values goes for messages too.
    messages: Store[Any, Any] = Store(
        definition.topic_name,
        encode_key=key.encode,
        decode_key=key.decode,
        encode_value=codec.encode,
        decode_value=decode,
    )
    try:
        return value_json(messages, raw)
    except Exception:
        # Whatever a user's type says about bytes that aren't one of it: that may be why the message is here.
        return shown(raw)
