"""`faust -A APP locks break NAME`: takes a lock from its holders."""

from __future__ import annotations

import asyncio
import sys

import click

from actors.cli.coordination import examples
from actors.cli.session import Session, with_session
from actors.coordination.cli.reading import holder_json
from actors.coordination.cli.service import NameType, client_of, timeout_option
from actors.coordination.cli.text import quoted
from actors.coordination.errors import CoordinationError
from actors.coordination.locks import Holder
from actors.coordination.messages import View
from stores._core.printable import printable

NEXT = "its holders notice at their next renewal; only tokens stop them earlier"


class HoldersChangedError(CoordinationError):
    """Somebody else holds the lock than was agreed to take it from."""


@click.command("break", epilog=examples("faust -A actors.coordination.app locks break printer-7"))
@click.argument("name", type=NameType())
@click.option("--yes", is_flag=True, help="Don't ask.")
@timeout_option
@with_session
def break_lock(session: Session, name: str, yes: bool, timeout: float) -> None:
    """Take the lock NAME from its holders.

    Shows the holders and asks first. Then the next in line gets it. A worker of the service has to run. What a
    former holder still writes is stopped by nothing but a check of its fencing token.
    """
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask on: give --yes if {name!r} shall be broken")
    agreed: tuple[Holder, ...] | None = None
    if not yes:
        agreed = asyncio.run(_look(session, name, timeout)).holders
        if agreed and not _is_agreed(name, agreed):
            session.remark(f"{printable(name)} wasn't broken")
            raise SystemExit(1)
    _tell(session, name, asyncio.run(_break(session, name, timeout, agreed)))


async def _look(session: Session, name: str, timeout_s: float) -> View:
    """Return the holders of a lock.

    Raises:
        UnknownLockError: nobody ever did.
    """
    async with client_of(session, timeout_s) as client:
        view = await client.look(name)
        if not view.last_token:
            # It raises before it asks for anything.
            await client.break_lock(name)
        return view


async def _break(session: Session, name: str, timeout_s: float, agreed: tuple[Holder, ...] | None) -> View:
    """Break a lock, and give what there was to see just before.

    Raises:
        UnknownLockError: nobody ever held it.
        HoldersChangedError: others hold it than were agreed on.
    """
    async with client_of(session, timeout_s) as client:
        view = await client.look(name)
        if agreed is not None and not {one.token for one in view.holders} <= {one.token for one in agreed}:
            raise HoldersChangedError(
                f"{name!r} is held by others than a moment ago, and wasn't broken: {_names(view.holders)}: look again"
            )
        if view.holders or not view.last_token:
            await client.break_lock(name)
        return view


def _is_agreed(name: str, holders: tuple[Holder, ...]) -> bool:
    click.echo(f"{printable(name)} is held by", err=True)
    for holder in holders:
        data = f", data {quoted(holder.data)}" if holder.data else ""
        click.echo(f"  {printable(holder.owner)}, token {holder.token}{data}", err=True)
    return click.confirm(f"Break it? {NEXT.capitalize()}.", err=True)


def _tell(session: Session, name: str, before: View) -> None:
    if session.as_json:
        broken = [holder_json(holder) for holder in before.holders]
        session.say_json({"name": name, "broken": broken, "waiting": before.waiting, "last_token": before.last_token})
    elif not before.holders:
        session.say(f"nobody holds {printable(name)} (last token {before.last_token}): there is nothing to break")
    else:
        session.say(f"broken: {printable(name)}, which was held by {_names(before.holders)}")
        session.say(f"next: {NEXT}")
        if before.waiting:
            session.say(f"{before.waiting} waited for it: the first of them has it now")


def _names(holders: tuple[Holder, ...]) -> str:
    return ", ".join(f"{printable(holder.owner)} (token {holder.token})" for holder in holders)
