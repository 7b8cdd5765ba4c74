"""The end of every command: one object on standard output, errors on standard error, and the exit code."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from spark_replay.session import first_line
from stores._core.printable import printable

SCHEMA = 3
"""The version of the objects that `--json` prints: it grows when a field is taken away or means something else."""
_JSON = "spark_replay.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a command.

    Attributes:
        totals: The counts, which are printed without `--json` too.
        content: The other fields of the object.
        differs: Whether there is a mismatch: exit code 1.
        error: Why the question isn't answered, or not for all partitions: exit code 2, unless there is a mismatch.
    """

    totals: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)
    differs: bool = False
    error: str | None = None

    @property
    def exit_code(self) -> int:
        """0 equal or done, 1 differs, 2 couldn't be answered."""
        if self.differs:
            return 1
        return 0 if self.error is None else 2


class Commands(click.Group):
    """Commands that return an `Outcome`. Whatever else ends one is an error too, and never taken for a mismatch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for `--json` first: an error in the other options is an object too."""
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run a command, print its result, and end with its exit code."""
        try:
            outcome: Outcome = super().invoke(ctx)
            if outcome.error is not None:
                click.ClickException(printable(outcome.error)).show()
        except click.ClickException as error:
            error.show()
            outcome = Outcome(error=error.format_message())
        except (KeyboardInterrupt, click.Abort):
            outcome = Outcome(error="interrupted")
        except click.exceptions.Exit:
            raise
        except Exception as error:
            click.echo(printable(traceback.format_exc(), keep="\n"), err=True)
            outcome = Outcome(error=f"{type(error).__name__}: {first_line(error)}")
        ctx.exit(_printed(outcome, ctx))


def _printed(outcome: Outcome, ctx: click.Context) -> int:
    content = {**outcome.content, "totals": outcome.totals} if outcome.totals else outcome.content
    head = {"schema": SCHEMA, "command": ctx.invoked_subcommand, "exit_code": outcome.exit_code, "error": outcome.error}
    shown = {**head, **content} if ctx.meta[_JSON] else outcome.totals
    try:
        if shown:
            click.echo(json.dumps(shown))
    except OSError as error:
        # nobody reads it any more
        click.echo(printable(f"Error: the result can't be printed: {error}"), err=True)
        return 2
    return outcome.exit_code
