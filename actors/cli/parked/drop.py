"""`faust -A APP parked drop`: forgets parked messages and effects."""

from __future__ import annotations

import asyncio

import click

from actors.admin.parked import commands
from actors.admin.parked.commands import AdminCommand
from actors.admin.parked.many import Many
from actors.admin.parked.reader import ParkedError, ParkedQueue
from actors.cli.parked.control import Choice, admin_command_for, carry_out_for_all, tell, tell_all, with_choice
from actors.cli.session import Session, with_session


@click.command("drop")
@click.option("--id", "entry_id", metavar="ID", help="This one; the first when left out.")
@click.option("--yes", is_flag=True, help="Don't ask whether many keys shall be dropped.")
@with_session
@with_choice
def drop(session: Session, choice: Choice, entry_id: str | None, yes: bool) -> None:
    """Forget the first parked message or effect of KEY, the one of an id, or all; with --all and no KEY, of all keys.

    Messages behind a dropped one stay parked until `parked retry`; effects behind it go on at once.
    """
    if entry_id is not None and choice.is_all:
        raise click.UsageError("--id and --all contradict each other")
    if choice.key is None:
        tell_all(session, "drop", asyncio.run(carry_out_for_all(session, choice, Many.drop, asks=not yes)))
        return
    admin_command = asyncio.run(_drop(session, choice, entry_id, choice.is_all))
    missed = set(_to_drop(admin_command.line, entry_id, choice.is_all)) - set(admin_command.gone)
    failure = None if not missed else f"not dropped: {', '.join(sorted(missed))}: see the log of the partition's owner"
    tell(session, "drop", admin_command, failure)


async def _drop(session: Session, choice: Choice, entry_id: str | None, is_all: bool) -> AdminCommand:
    async with admin_command_for(session, choice) as admin_command:
        await commands.drop(admin_command, _to_drop(admin_command.line, entry_id, is_all), is_all=is_all)
    return admin_command


def _to_drop(line: ParkedQueue, entry_id: str | None, is_all: bool) -> list[str]:
    """Return the ids to drop, never "the first": a command that is given twice must not drop two.

    Raises:
        ParkedError: there is none of that id.
    """
    ids = [entry.id for entry in line.entries]
    if is_all:
        return ids
    if entry_id is None:
        return ids[:1]
    if entry_id not in ids:
        raise ParkedError(f"key {line.shown_key!r} has nothing parked with id {entry_id!r}, but {', '.join(ids)}")
    return [entry_id]
