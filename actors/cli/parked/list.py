"""`faust -A APP parked list`: which keys wait, and why."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from actors.admin.parked.reader import ParkedQueue, ParkedReader, key_json
from actors.cli.parked.choice import known_actor
from actors.cli.session import Session, with_session
from stores._core.printable import moment, one_line

DEFAULT_LIMIT = 1_000
SHOWN_ERROR_CHARS = 100
_COLUMNS = ("actor", "what", "#partition", "key", "#waiting", "#bytes", "error", "#attempts", "since")


@click.command("list")
@click.option("--actor", metavar="NAME", help="Of this actor only.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="How many keys.")
@click.option("--after", metavar="CURSOR", help="Continue behind the line with this cursor.")
@with_session
def list_parked(session: Session, actor: str | None, limit: int, after: str | None) -> None:
    """List the keys whose messages or effects were put aside, from the committed changelogs.

    Error and attempts are those of the first of a key; `waiting` counts it and all behind it.
    """
    lines, is_cut = asyncio.run(_read(session, actor, limit, after))
    if is_cut:
        session.remark(f"more keys are parked: --after {lines[-1].cursor} lists them")
    if session.as_json:
        session.say_json([_as_json(line) for line in lines])
    elif not lines:
        session.say("nothing is parked")
    else:
        session.say_table(f"Parked in {session.app.conf.id}", _COLUMNS, map(_as_row, lines))


async def _read(session: Session, actor: str | None, limit: int, after: str | None) -> tuple[list[ParkedQueue], bool]:
    definitions = list(session.app.actors.values()) if actor is None else [known_actor(session, actor)]
    async with ParkedReader.connect(session.setup) as reader:
        return await reader.page(definitions, limit=limit, after=after)


def _as_row(line: ParkedQueue) -> list[str]:
    head = line.head
    return [
        line.actor,
        line.what,
        str(line.partition),
        line.shown_key,
        str(len(line.entries)),
        str(sum(entry.size for entry in line.entries)),
        one_line(head.error or "-", SHOWN_ERROR_CHARS),
        str(head.attempts),
        moment(head.since_ms),
    ]


def _as_json(line: ParkedQueue) -> dict[str, Any]:
    return {
        "actor": line.actor,
        "what": line.what,
        "partition": line.partition,
        "key": key_json(line),
        "waiting": len(line.entries),
        "error": line.head.error,
        "attempts": line.head.attempts,
        "since_ms": line.head.since_ms,
        "bytes": sum(entry.size for entry in line.entries),
        "cursor": line.cursor,
    }
