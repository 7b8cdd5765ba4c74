"""Window stores on the command line: which stores they are, the options of their times, and how windows are printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from actors._core.windows.kinds import Window
from actors.cli.session import Session
from actors.declare.values.decoder import as_json
from actors.runtime.message.unresolved import resolved_now
from actors.runtime.windows.changes import ChangeStore
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.store import LAST_MS, WindowStore
from stores._core.printable import moment, printable_json

F = TypeVar("F", bound=Callable[..., Any])
_TIME = click.IntRange(min=0, max=LAST_MS)


def span_options(command: F) -> F:
    """Add the options `--from` and `--to`: in which span of time windows begin."""
    from_option = click.option("--from", "from_ms", type=_TIME, help="Of a window store: the first start, Unix ms.")
    to_option = click.option("--to", "to_ms", type=_TIME, help="Of a window store: the last start, Unix ms.")
    return from_option(to_option(command))


def windows_of(session: Session, store: str, actor: str) -> WindowStore[Any, Any] | None:
    """Return a store as a window store, None where it is none.

    Raises:
        click.UsageError: it has the records of a join.
    """
    window_store = next((each for each in session.app.actors[actor].windows if each.name == store), None)
    if isinstance(window_store, JoinStore):
        raise click.UsageError(
            f"store {store} has the records that join {actor} may still match, and can't be asked for a key: "
            f"`faust state export {store} --to DIR` writes all of its rows"
        )
    return None if isinstance(window_store, ChangeStore) else window_store


def span_of(
    store: str, windows: WindowStore[Any, Any] | None, from_ms: int | None, to_ms: int | None
) -> tuple[int, int]:
    """Return the span of time in which windows begin, both bounds included.

    Raises:
        click.UsageError: a bound for a store without windows.
    """
    if windows is None and (from_ms is not None or to_ms is not None):
        raise click.UsageError(f"store {store} has no windows: leave --from and --to out")
    return from_ms or 0, LAST_MS if to_ms is None else to_ms


def window_json(store: WindowStore[Any, Any], window: Window, raw: bytes) -> dict[str, Any]:
    """Return a window with its encoded value as JSON can say it.

    Raises:
        CodecError: the bytes aren't a value of the store.
    """
    value = resolved_now(lambda: as_json(store.result(raw)))
    return {"start_ms": window.start_ms, "end_ms": window.end_ms, "value": value}


def window_line(shown: dict[str, Any]) -> str:
    """Format the result of `window_json` as a line for people."""
    return f"{moment(shown['start_ms'])}  {moment(shown['end_ms'])}  {printable_json(shown['value'])}"
