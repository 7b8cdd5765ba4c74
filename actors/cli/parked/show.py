"""`faust -A APP parked show ACTOR KEY`: what waits of a key, in order."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from actors.admin.parked.reader import SHOWN_BYTES, Entry, ParkedQueue, ParkedReader, chosen, wanted_keys
from actors.admin.parked.showing import entry_json
from actors.cli.parked.choice import known_actor
from actors.cli.session import Session, with_session
from stores._core.printable import moment

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition


PAGE_BYTES = 16 * 1024 * 1024
"""So much content is shown at once, or one entry that has more."""
DEFAULT_LIMIT = 100


@click.command("show")
@click.argument("actor")
@click.argument("key")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="How many.")
@click.option("--after", metavar="ID", help="Those behind the one with this id.")
@click.option("--full", "is_full", is_flag=True, help="Large values too, not only their size.")
@with_session
def show(session: Session, actor: str, key: str, limit: int, after: str | None, is_full: bool) -> None:
    """Print the messages and effects that wait of KEY, in order: id, error, headers, value.

    KEY is as `parked list` shows it. Exits with 1 where nothing is parked.
    """
    definition = known_actor(session, actor)
    pages = asyncio.run(_read(session, definition, key, limit, after, is_full))
    if session.as_json:
        session.say_json([entry for _, entries in pages for entry in entries])
    for line, entries in pages:
        if not session.as_json:
            session.say(f"{line.what}s of key {line.shown_key} in partition {line.partition}: {len(line.entries)}")
            for entry in entries:
                _say(session, entry)
        if entries and entries[-1]["id"] != line.entries[-1].id:
            session.remark(f"more {line.what}s wait: --after {entries[-1]['id']} shows them")


async def _read(
    session: Session, definition: ActorDefinition, key: str, limit: int, after: str | None, is_full: bool
) -> list[tuple[ParkedQueue, list[dict[str, Any]]]]:
    pages = []
    async with ParkedReader.connect(session.setup) as reader:
        lines = chosen(definition, await reader.lines([definition], wanted_keys(definition, key)), key)
        for line in lines:
            entries = _page(line, limit, after, is_full)
            contents = await reader.contents(definition, line, entries, is_full=is_full)
            shown = [entry_json(definition, line, entry, contents.get(entry.sequence)) for entry in entries]
            pages.append((line, shown))
    return pages


def _page(line: ParkedQueue, limit: int, after: str | None, is_full: bool) -> list[Entry]:
    """Return the entries to show: so many, and no more content than fits on a page."""
    start, size, found = 0, 0, list[Entry]()
    if after is not None:
        ids = [entry.id for entry in line.entries]
        start = ids.index(after) + 1 if after in ids else len(ids)
    for entry in line.entries[start : start + limit]:
        size += entry.size if is_full or entry.size <= SHOWN_BYTES else 0
        if found and size > PAGE_BYTES:
            break
        found.append(entry)
    return found


def _say(session: Session, entry: dict[str, Any]) -> None:
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
    if not entry["is_shown"]:
        session.say(f"    value    ({entry['bytes']} bytes: --full prints it)")
    if "value" in entry:
        session.say(f"    value    {_text(entry['value'])}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
