"""`faust -A APP locks …` and `config …`: the groups; their commands are in `actors.coordination.cli`."""

from __future__ import annotations

import click


def examples(*lines: str) -> str:
    """Give the end of a command's help: calls as they are typed, which click would fold into a paragraph."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


class LateGroup(click.Group):
    """A group whose commands are imported when it is called.

    `actors.coordination` is made with `actors`, and can't be imported by it; and an app without the service shall hear
    more than that there is no such command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names of its commands."""
        return list(self._commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give a command, None if there is none of that name."""
        return self._commands().get(cmd_name)

    def _commands(self) -> dict[str, click.Command]:
        from actors.coordination.cli import COMMANDS

        return COMMANDS[str(self.name)]


@click.group("locks", cls=LateGroup, epilog=examples("faust -A actors.coordination.app locks list --held"))
def locks() -> None:
    """Look at the lock service's locks and leaders, and break a lock."""


@click.group("config", cls=LateGroup, epilog=examples("faust -A actors.coordination.app config set prices/vat 19"))
def config() -> None:
    """Read, write and watch the lock service's configuration nodes."""
