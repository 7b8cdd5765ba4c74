"""`faust -A APP pause | resume ACTOR[:PARTITION]`: an actor, or one partition of it, handles nothing for a while."""

from __future__ import annotations

import asyncio
import getpass
import socket

import click

from actors.admin.pausing import set_pause
from actors.cli.session import Session, with_session


@click.command("pause")
@click.argument("where", metavar="ACTOR[:PARTITION]")
@with_session
def pause(session: Session, where: str) -> None:
    """Let an actor, or one partition of it, handle nothing until it is resumed.

    No records are handled, no timers fire, no windows close, and no effects are begun. Messages whose handlers run come
    to their end, and are committed. Partitions stay with their workers, keep their state and answer queries. A pause
    outlives restarts, rebalances and takeovers.
    """
    _set(session, where, is_paused=True)


@click.command("resume")
@click.argument("where", metavar="ACTOR[:PARTITION]")
@with_session
def resume(session: Session, where: str) -> None:
    """Let a paused actor, or one partition of it, go on where it was."""
    _set(session, where, is_paused=False)


def _set(session: Session, where: str, *, is_paused: bool) -> None:
    actor, partition = _place(where)
    count = asyncio.run(set_pause(session.setup, actor, partition, is_paused=is_paused, by=who()))
    if session.as_json:
        session.say_json({"actor": actor, "partition": partition, "partitions": count, "is_paused": is_paused})
        return
    what = (
        f"partition {partition}"
        if partition is not None
        else f"all {count} partitions"
        if count > 1
        else "its partition"
    )
    if is_paused:
        session.say(f"actor {actor}, {what}: paused. Workers stop handling records within about a second")
    else:
        session.say(f"actor {actor}, {what}: resumed. Workers go on within about a second")


def _place(where: str) -> tuple[str, int | None]:
    actor, colon, number = where.partition(":")
    if not colon:
        return actor, None
    if not (number.isascii() and number.isdigit() and len(number) < 8):
        raise click.UsageError(f"{where!r}: {number!r} isn't a partition's number. Write ACTOR or ACTOR:PARTITION")
    return actor, int(number)


def who() -> str:
    """Return who gives a command, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
