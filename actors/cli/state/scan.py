"""`faust -A APP state scan STORE`: the committed keys and values of a store, also as of a time, or its windows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import click

from actors.cli.session import Session, with_session
from actors.cli.state.keys import value_json
from actors.cli.state.placement import ask_placement, warn_if_stale
from actors.cli.state.reading import AS_OF, read_all_windows, read_rows, with_history
from actors.cli.state.windows import span_of, span_options, window_json, window_line, windows_of
from actors.declare.values.decoder import as_json
from actors.runtime.message.store import Store
from actors.runtime.windows.store import WindowStore
from stores._core.printable import printable_json
from stores._core.record import Position
from stores.folder import DataFolder

DEFAULT_LIMIT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """Rows to print: of a window store `windows` is the store, and `store` has its rows."""

    store: Store[Any, Any]
    windows: WindowStore[Any, Any] | None
    prefix: bytes
    span: tuple[int, int]
    as_of_ms: int | None


@click.command("scan")
@click.argument("name", metavar="STORE")
@click.option("--prefix", default="", help="Only keys whose stored bytes begin so.")
@click.option("--partition", type=click.IntRange(min=0), help="Look into this partition only.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="How many keys, or windows."
)
@span_options
@click.option("--as-of", "as_of_ms", type=click.IntRange(min=0), help=AS_OF)
@click.option("--offline", is_flag=True, help="Don't ask the broker whether another worker has newer state.")
@with_session
def scan(
    session: Session,
    name: str,
    prefix: str,
    partition: int | None,
    limit: int,
    from_ms: int | None,
    to_ms: int | None,
    as_of_ms: int | None,
    offline: bool,
) -> None:
    """Print keys and values of STORE as JSON, a line each, from the partitions in this machine's data folder.

    Partition by partition, and in each in the order of the stored keys. Of a window store it prints the windows of all
    keys, one a line: key, start, end, value.
    """
    store, actor = session.store(name), session.owner_of(name)
    windows = windows_of(session, name, actor)
    span = span_of(name, windows, from_ms, to_ms)
    if as_of_ms is not None:
        with_history(store)
    raw_prefix = prefix.encode(errors="surrogateescape")
    asked = _Scan(store=store, windows=windows, prefix=raw_prefix, span=span, as_of_ms=as_of_ms)
    folder = session.data_folder()
    here = folder.partitions_on_disk(name)
    if not here or partition not in (None, *here):
        text = ", ".join(map(str, here)) or "none"
        raise click.ClickException(f"store {name}: {folder.path} has these partitions of it: {text}")
    placement, left = None if offline else asyncio.run(ask_placement(session.setup, name, actor)), limit
    for number in here if partition is None else [partition]:
        with contextlib.closing(_rows(folder, asked, number)) as rows:
            for count, (position, key, shown) in enumerate(itertools.islice(rows, left)):
                if not count:
                    warn_if_stale(session, placement, number, position)
                left -= 1
                if session.as_json:
                    session.say_json({"key": key} | shown | {"partition": number})
                else:
                    text = printable_json(shown["value"]) if windows is None else window_line(shown)
                    session.say(f"{printable_json(key)}  {text}")
        if not left:
            what = "keys" if windows is None else "windows"
            session.remark(f"there may be more: --limit shows more {what}, --prefix those of keys that begin so")
            return


def _rows(
    folder: DataFolder, asked: _Scan, partition: int
) -> Generator[tuple[Position, Any, dict[str, Any]], None, None]:
    """Return (position, key, what is shown of it) of one partition."""
    store, windows = asked.store, asked.windows
    if windows is None:
        with contextlib.closing(read_rows(folder, store, partition, asked.prefix, asked.as_of_ms)) as rows:
            for position, raw_key, raw in rows:
                yield position, as_json(store.decode_key(raw_key)), {"value": value_json(store, raw_key, raw)}
        return
    with contextlib.closing(read_all_windows(folder, windows, partition, *asked.span)) as held:
        for position, raw_key, window, raw in held:
            if raw_key.startswith(asked.prefix):
                yield position, as_json(windows.decode_key(raw_key)), window_json(windows, window, raw)
