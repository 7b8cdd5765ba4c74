"""One run of a command: the user's app, where it speaks, and how it fails."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TextIO

import click
from faust.cli.base import AppCommand

from actors._faust.setup import Setup
from actors._faust.startup.refusal import told
from actors.cli.project import name_app
from actors.errors import ActorsError, ConfigurationError
from actors.runtime.message.store import Store
from stores._core.printable import printable, printable_json
from stores.errors import StoreError
from stores.folder import DataFolder

if TYPE_CHECKING:
    from actors._faust.app import App

P = ParamSpec("P")
_SHORTEST_LEVELS = {"CRIT": "CRITICAL", "WARN": "WARNING"}


@dataclass(frozen=True, slots=True)
class Session:
    """A command at work.

    Attributes:
        app: the app of `-A`, with `-D` applied to its settings.
        setup: what follows from the app's settings.
        as_json: whether Faust's `--json` was given.
        quiet: whether Faust's `--quiet` was given.
        stdout: where results go.
        stderr: where progress and remarks go.
    """

    app: App
    setup: Setup
    as_json: bool
    quiet: bool
    stdout: TextIO
    stderr: TextIO

    def data_folder(self) -> DataFolder:
        """Return this machine's data folder of the app, which a worker may be using.

        Raises:
            StoreError: there is none, or it is another app's or a newer release's.
        """
        return DataFolder.inspect(self.setup.folder, app=str(self.app.conf.id))

    def store(self, name: str) -> Store[Any, Any]:
        """Return the app's store of that name.

        Raises:
            ConfigurationError: there is none; the text lists those there are.
        """
        found = self.app.stores.get(name)
        if found is None:
            known = ", ".join(sorted(self.app.stores)) or "none"
            raise ConfigurationError(f"app {self.app.conf.id} has no store {name!r}. Its stores: {known}")
        return found

    def owner_of(self, store: str) -> str:
        """Return the name of the actor that owns the store.

        Raises:
            ConfigurationError: no actor lists it.
        """
        owner = self.app.owner_of_store(store)
        if owner is None:
            raise ConfigurationError(f"store {store}: no actor lists it in stores=, so it has no state")
        return owner.name

    def say(self, line: str) -> None:
        """Print a line of the result, with escapes for what isn't printable."""
        if not self.quiet:
            click.echo(printable(line), file=self.stdout)

    def remark(self, line: str) -> None:
        """Print a line that isn't part of the result, with escapes for what isn't printable."""
        if not self.quiet:
            click.echo(printable(line), file=self.stderr)

    def say_content(self, text: str) -> None:
        """Print what a program may read: as it is, but to a terminal with escapes for all but line ends and tabs."""
        if not self.quiet:
            shown = printable(text, keep="\n\t") if self.stdout.isatty() else text
            # Else click would take out what it takes for colours.
            click.echo(shown, file=self.stdout, color=True)

    def say_table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table; columns whose name starts with `#` hold numbers."""
        if not self.quiet:
            from actors.cli.output import print_table

            print_table(self.stdout, title, columns, rows)

    def say_json(self, content: object) -> None:
        """Print a result as one line of JSON."""
        if not self.quiet:
            click.echo(printable_json(content), file=self.stdout)


def with_session(function: Callable[Concatenate[Session, P], None]) -> Callable[P, None]:
    """Call a click command's function with the `Session` in front of its parameters.

    The function runs outside of Faust's worker, which takes a second to start and stop.
    """

    @click.pass_context
    @functools.wraps(function)
    def invoke(context: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with one_line_errors():
            function(_session(context), *args, **kwargs)

    return invoke


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with exit code 1 and one line for each error that a user can do something about."""
    try:
        yield
    except BrokenPipeError:
        # The reader of the output has enough of it: click knows what to do.
        raise
    except (ActorsError, StoreError, OSError) as error:
        raise click.ClickException(_one_line(told(error))) from error
    except click.ClickException as error:
        error.message = printable(error.message)
        raise


def _session(context: click.Context) -> Session:
    # Finds the app, and has the app's `worker_init` apply `-D`.
    name_app(context)
    command = AppCommand(context)
    _log_as_asked(command.state.loglevel)
    if not hasattr(command.app, "actor_options"):
        raise click.UsageError(f"{command.app!r} is a plain Faust app: this command needs an `actors.App`")
    return Session(
        app=command.app,
        setup=Setup(command.app),
        as_json=bool(command.json),
        quiet=bool(command.quiet),
        stdout=command.stdout,
        stderr=command.stderr,
    )


def _log_as_asked(level: str | None) -> None:
    """Log where `--loglevel` was given; else the client's complaints would surround the one line that says all."""
    if level is None:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
        return
    name = level.upper()
    logging.basicConfig(level=_SHORTEST_LEVELS.get(name, name))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
