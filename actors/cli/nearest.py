"""Names the nearest command where there is none of a name."""

from __future__ import annotations

import difflib

import click


def name_nearest(group: click.Group) -> None:
    """Have a group's error for an unknown command end with the nearest one."""
    resolve = group.resolve_command

    def resolved(context: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return resolve(context, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], group.list_commands(context), n=1)
            if near and error.message.startswith("No such command"):
                error.message += f" Did you mean {near[0]}?"
            raise

    group.resolve_command = resolved  # type: ignore[assignment, method-assign]
