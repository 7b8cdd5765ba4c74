"""`faust -A APP parked retry`: hands parked messages and effects to their handlers again."""

from __future__ import annotations

import asyncio

import click

from actors.admin.parked import commands
from actors.admin.parked.commands import AdminCommand, failure_of
from actors.admin.parked.many import Many
from actors.cli.parked.control import Choice, admin_command_for, carry_out_for_all, tell, tell_all, with_choice
from actors.cli.session import Session, with_session


@click.command("retry")
@with_session
@with_choice
def retry(session: Session, choice: Choice) -> None:
    """Hand the parked messages of KEY to their handler again, in order, or call its parked effect again.

    KEY is as `parked list` shows it; --all takes every key. Exits with 1 if one fails again: it and those behind it
    stay parked.
    """
    if choice.key is None:
        tell_all(session, "retry", asyncio.run(carry_out_for_all(session, choice, Many.retry)))
        return
    admin_command = asyncio.run(_retry(session, choice))
    tell(session, "retry", admin_command, failure_of(admin_command))


async def _retry(session: Session, choice: Choice) -> AdminCommand:
    async with admin_command_for(session, choice) as admin_command:
        await commands.retry(admin_command)
    return admin_command
