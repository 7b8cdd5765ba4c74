"""`faust -A APP parked show ACTOR KEY`: what waits of a key, in order."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from actors._faust.cli.parked_choice import known_actor
from actors._faust.cli.session import Session, with_session
from actors._faust.parking.lines import Line, ParkedReader, chosen
from actors._faust.parking.showing import entry_json

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
        session.say_json([entry_json(definition, line, entry) for line in lines for entry in line.entries])
        return
    for line in lines:
        session.say(f"{line.what}s of key {line.shown_key} in partition {line.partition}: {len(line.entries)}")
        for entry in line.entries:
            _say(session, entry_json(definition, line, entry))


async def _read(session: Session, definition: ActorDefinition, key: str) -> list[Line]:
    async with ParkedReader.connect(session.setup) as reader:
        return chosen(definition, await reader.lines([definition]), key)


def _say(session: Session, entry: dict[str, Any]) -> None:
    from actors._faust.cli.output import moment

    error = entry["error"] or ("(waits behind the one above)" if entry["what"] == "message" else "(not failed yet)")
    session.say("")
    session.say(f"  {entry['id']}  since {moment(entry['since_ms'])}, attempts: {entry['attempts']}")
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
