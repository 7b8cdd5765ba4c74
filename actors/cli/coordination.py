"""`faust -A APP locks …`: the group; its commands are in `actors.coordination.cli`."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = "actors.coordination.cli"
"""The module whose `COMMANDS` has the commands. It is above this package, so it is found by its name."""


def examples(*lines: str) -> str:
    """Return the end of a command's help: calls as they are typed, which click would fold into a paragraph."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


class LateGroup(click.Group):
    """A group whose commands are imported when it is called.

    The group exists in every app, so that an app without the service gets an error that says how to add it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of its commands."""
        return list(self._commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if there is none of that name."""
        return self._commands().get(cmd_name)

    def _commands(self) -> dict[str, click.Command]:
        commands: dict[str, click.Command] = import_module(COMMANDS).COMMANDS
        return commands


@click.group("locks", cls=LateGroup, epilog=examples("faust -A actors.coordination.app locks list --held"))
def locks() -> None:
    """Look at the lock service's locks, leaders and nodes, break a lock, and set a node."""
