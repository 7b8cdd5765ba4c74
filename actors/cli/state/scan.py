"""`faust -A APP state scan STORE`: the committed keys and values of a store, or of a table as of a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import click

from actors.cli.session import Session, with_session
from actors.cli.state.get import windows_of
from actors.cli.state.keys import value_json
from actors.cli.state.placement import ask_placement, warn_if_stale
from actors.cli.state.reading import AS_OF, read_rows
from actors.declare.values.decoder import as_json
from stores._core.printable import printable_json

DEFAULT_LIMIT = 100


@click.command("scan")
@click.argument("name", metavar="STORE")
@click.option("--prefix", default="", help="Only keys whose stored bytes begin so.")
@click.option("--partition", type=click.IntRange(min=0), help="Look into this partition only.")
@click.option("--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="How many keys.")
@click.option("--as-of", "as_of_ms", type=click.IntRange(min=0), help=AS_OF)
@click.option("--offline", is_flag=True, help="Don't ask the broker whether another worker has newer state.")
@with_session
def scan(
    session: Session,
    name: str,
    prefix: str,
    partition: int | None,
    limit: int,
    as_of_ms: int | None,
    offline: bool,
) -> None:
    """Print keys and values of STORE as JSON, a line each, from the partitions in this machine's data folder.

    Partition by partition, and in each in the order of the stored keys.
    """
    store, actor = session.store(name), session.owner_of(name)
    if windows_of(session, name, actor) is not None:
        raise click.UsageError(f"store {name} has windows: `faust state get {name} KEY` prints those of a key")
    folder = session.data_folder()
    here = folder.partitions_on_disk(name)
    if not here or partition not in (None, *here):
        text = ", ".join(map(str, here)) or "none"
        raise click.ClickException(f"store {name}: {folder.path} has these partitions of it: {text}")
    placement, left = None if offline else asyncio.run(ask_placement(session.setup, name, actor)), limit
    for number in here if partition is None else [partition]:
        rows = read_rows(folder, store, number, prefix.encode(errors="surrogateescape"), as_of_ms)
        with contextlib.closing(rows):
            for count, (position, raw_key, raw) in enumerate(itertools.islice(rows, left)):
                if not count:
                    warn_if_stale(session, placement, number, position)
                left -= 1
                key, value = as_json(store.decode_key(raw_key)), value_json(store, raw)
                if session.as_json:
                    session.say_json({"key": key, "value": value, "partition": number})
                else:
                    session.say(f"{printable_json(key)}  {printable_json(value)}")
        if not left:
            session.remark("there may be more: --limit shows more keys, --prefix those that begin so")
            return
