"""`faust -A APP locks break NAME`: takes a lock from its holders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

import click

from actors._faust.setup import Setup
from actors.admin.operation import Answer, Caller, Operation, argument, option
from actors.coordination.cli.reading import holder_json
from actors.coordination.cli.service import MAX_TIMEOUT_S, NAME, TIMEOUT, TIMEOUT_S, client_of
from actors.coordination.cli.text import quoted
from actors.coordination.errors import CoordinationError
from actors.coordination.locks import Holder
from actors.coordination.messages import View
from actors.errors import UsageError
from stores._core.printable import printable

NEXT = "its holders notice at their next renewal; only tokens stop them earlier"


class HoldersChangedError(CoordinationError):
    """Somebody else holds the lock than was agreed to take it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakLock(Operation):
    """Take the lock NAME from its holders.

    Shows the holders and asks first. Then the next in line gets it. A worker of the service has to run. What a
    former holder still writes is stopped by nothing but a check of its fencing token.
    """

    command: ClassVar[str] = "locks break"
    examples: ClassVar[tuple[str, ...]] = ("faust -A actors.coordination.app locks break printer-7",)
    name: str = argument("NAME", type=NAME)
    yes: bool = option("Don't ask.", False)
    timeout: float = option(TIMEOUT, TIMEOUT_S, least=0.1, most=MAX_TIMEOUT_S)

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Break the lock; say what there was to see just before.

        Raises:
            UnknownLockError: nobody ever held it.
            HoldersChangedError: others hold it than were agreed on.
        """
        name = self.name
        if not self.yes and not sys.stdin.isatty():
            raise UsageError(f"there is no terminal to ask on: give --yes if {name!r} shall be broken")
        async with client_of(setup, self.timeout) as client:
            agreed: set[int] | None = None
            view = await client.look(name)
            if not self.yes and view.holders:
                agreed = {holder.token for holder in view.holders}
                try:
                    caller.confirm(_question(name, view.holders))
                except click.Abort:
                    return Answer(content=None, failure=f"{printable(name)} wasn't broken")
                view = await client.look(name)
            if agreed is not None and not {holder.token for holder in view.holders} <= agreed:
                raise HoldersChangedError(
                    f"{name!r} is held by others than a moment ago, and wasn't broken: {_names(view.holders)}: look "
                    "again"
                )
            # Of a lock that nobody ever held it raises before it asks for anything.
            if view.holders or not view.last_token:
                await client.break_lock(name)
        return _answer(name, view)


def _question(name: str, holders: tuple[Holder, ...]) -> str:
    lines = [f"{printable(name)} is held by"]
    for holder in holders:
        data = f", data {quoted(holder.data)}" if holder.data else ""
        lines.append(f"  {printable(holder.owner)}, token {holder.token}{data}")
    return "\n".join([*lines, f"Break it? {NEXT.capitalize()}."])


def _answer(name: str, before: View) -> Answer:
    if not before.holders:
        lines = [f"nobody holds {printable(name)} (last token {before.last_token}): there is nothing to break"]
    else:
        lines = [f"broken: {printable(name)}, which was held by {_names(before.holders)}", f"next: {NEXT}"]
        if before.waiting:
            lines.append(f"{before.waiting} waited for it: the first of them has it now")
    broken = [holder_json(holder) for holder in before.holders]
    content = {"name": name, "broken": broken, "waiting": before.waiting, "last_token": before.last_token}
    return Answer(content=content, lines=lines)


def _names(holders: tuple[Holder, ...]) -> str:
    return ", ".join(f"{printable(holder.owner)} (token {holder.token})" for holder in holders)
