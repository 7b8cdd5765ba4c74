"""`faust -A APP state get STORE KEY`: the committed value of a key, or its windows, or the rows below it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import asdict, dataclass
from typing import Any

import click

from actors._core.values.rows import rows_prefix
from actors._core.windows.kinds import Window
from actors.cli.cluster import owner_name
from actors.cli.session import Session, with_session
from actors.cli.state.keys import key_bytes, value_json
from actors.cli.state.placement import Placement, ask_placement, warn_if_stale
from actors.cli.state.reading import AS_OF, Reading, read_key, read_key_windows, read_rows, with_history
from actors.cli.state.scan import DEFAULT_LIMIT
from actors.cli.state.windows import span_of, span_options, window_json, window_line, windows_of
from actors.declare.values.decoder import as_json
from actors.errors import ConfigurationError
from actors.runtime.message.store import Store
from actors.runtime.rows.stores import RowStore
from actors.runtime.windows.store import WindowStore
from stores._core.printable import moment, printable_json
from stores._core.record import NEVER
from stores.folder import DataFolder


@dataclass(frozen=True, slots=True)
class Question:
    """A key of a store in this data folder to look up. `placement` is None if the broker wasn't asked.

    Of a window store `windows` is the store, and `store` has its rows. Of a map, list or set store `key` is the one
    that rows are below.
    """

    store: Store[Any, Any]
    key: str
    raw_key: bytes
    folder: DataFolder
    placement: Placement | None
    windows: WindowStore[Any, Any] | None = None

    @property
    def on_disk(self) -> list[int]:
        """The partitions of the store that are here."""
        return self.folder.partitions_on_disk(self.store.name)


@click.command("get")
@click.argument("name", metavar="STORE")
@click.argument("key")
@click.option("--partition", type=click.IntRange(min=0), help="Look into this partition only.")
@span_options
@click.option("--as-of", "as_of_ms", type=click.IntRange(min=0), help=AS_OF)
@click.option(
    "--limit", type=click.IntRange(min=1), default=DEFAULT_LIMIT, show_default=True, help="How many rows below KEY."
)
@click.option("--offline", is_flag=True, help="Don't ask the broker: look into all partitions on this disk.")
@with_session
def get(
    session: Session,
    name: str,
    key: str,
    partition: int | None,
    from_ms: int | None,
    to_ms: int | None,
    as_of_ms: int | None,
    limit: int,
    offline: bool,
) -> None:
    """Print the committed value of KEY in STORE as JSON, from this machine's data folder.

    KEY is what the store's key serializer writes: a string as it is, or JSON. Exits with 1 if the key isn't found.
    Of a window store it prints the windows of KEY, one a line: start, end, value. Of a map, list or set store it
    prints the rows below KEY, one a line: row, value; of a list the row is its place.
    """
    store, actor = session.store(name), session.owner_of(name)
    windows = windows_of(session, name, actor)
    span = span_of(name, windows, from_ms, to_ms)
    if as_of_ms is not None:
        with_history(store)
    below = store.below if isinstance(store.below, RowStore) else None
    raw_key = key_bytes(windows or below or store, key)
    folder = session.data_folder()
    placement = None if offline else asyncio.run(ask_placement(session.setup, name, actor))
    question = Question(store, key, raw_key, folder, placement, windows)
    if windows is not None:
        _show_windows(session, question, partition, span)
        return
    if below is not None:
        _show_rows(session, question, partition, limit)
        return
    candidates = _candidates(question, partition)
    readings = [read_key(folder, store, candidate, raw_key, as_of_ms) for candidate in candidates]
    for reading in readings:
        warn_if_stale(session, question.placement, reading.partition, reading.position)
    _answer(session, question, readings)


def _candidates(question: Question, partition: int | None) -> list[int]:
    """Return the partitions that may have the key; all of them are on this disk."""
    placement, store = question.placement, question.store
    if placement is not None and partition is not None and partition >= placement.partition_count:
        raise ConfigurationError(f"store {store.name} has partitions 0 to {placement.partition_count - 1}")
    if partition is None and placement is not None and store.placement == "key":
        partition = placement.partitioner.home(question.raw_key, placement.partition_count)
    on_disk = question.on_disk
    if partition is None and on_disk:
        return on_disk
    if partition is None or partition not in on_disk:
        raise click.ClickException(_not_here(question, partition))
    return [partition]


def _not_here(question: Question, partition: int | None) -> str:
    name, folder = question.store.name, question.folder.path
    if partition is None:
        return f"store {name}: no partition of it is on this disk, in {folder}"
    here = ", ".join(map(str, question.on_disk)) or "none"
    text = f"store {name}: key {question.key!r} belongs to partition {partition}, and of the store {folder} has {here}"
    if question.placement is None:
        return text
    owner = question.placement.owners.get(partition)
    if owner is None:
        return f"{text}. No worker has taken that partition over yet"
    return f"{text}. Its owner is worker {owner_name(owner)}, since epoch {owner.epoch}: ask on that machine"


def _show_windows(session: Session, question: Question, partition: int | None, span: tuple[int, int]) -> None:
    """Print the windows of a key, page by page."""
    store, raw_key, found = question.windows, question.raw_key, 0
    if store is None:
        raise AssertionError("it is called for window stores")
    for candidate in _candidates(question, partition):
        next_ms: int | None = span[0]
        is_first = True
        while next_ms is not None:
            position, page = read_key_windows(question.folder, store, candidate, raw_key, next_ms, span[1])
            if is_first:
                warn_if_stale(session, question.placement, candidate, position)
            for window, raw in page.windows:
                _say_window(session, store, window, raw)
            found, next_ms, is_first = found + len(page.windows), page.next_ms, False
    if not found:
        raise click.ClickException(f"store {store.name} has no windows of key {question.key!r} that begin then")


def _show_rows(session: Session, question: Question, partition: int | None, limit: int) -> None:
    """Print the rows below a key."""
    store, prefix, left = question.store, rows_prefix(question.raw_key), limit
    for candidate in _candidates(question, partition):
        with contextlib.closing(read_rows(question.folder, store, candidate, prefix, None)) as rows:
            for count, (position, raw_key, raw) in enumerate(itertools.islice(rows, left)):
                if not count:
                    warn_if_stale(session, question.placement, candidate, position)
                left -= 1
                row, value = as_json(store.decode_key(raw_key)[1]), value_json(store, raw_key, raw)
                if session.as_json:
                    session.say_json({"row": row, "value": value})
                else:
                    session.say(f"{printable_json(row)}  {printable_json(value)}")
    if left == limit:
        raise click.ClickException(f"store {store.name} has no rows of key {question.key!r}")
    if not left:
        session.remark("there may be more: --limit shows more rows")


def _say_window(session: Session, store: WindowStore[Any, Any], window: Window, raw: bytes) -> None:
    shown = window_json(store, window, raw)
    if session.as_json:
        session.say_json(shown)
    else:
        session.say(window_line(shown))


def _answer(session: Session, question: Question, readings: list[Reading]) -> None:
    found = [reading for reading in readings if reading.found is not None]
    if len(found) > 1:
        where = ", ".join(str(reading.partition) for reading in found)
        raise click.UsageError(f"key {question.key!r} is in partitions {where}: choose one with --partition")
    best = found or [reading for reading in readings if reading.entry is not None] or readings
    if session.as_json:
        session.say_json(_as_json(question, best[0]))
    if not found:
        raise click.ClickException(_absent(question, readings))
    if not session.as_json and found[0].found is not None:
        session.say_json(value_json(question.store, question.raw_key, found[0].found.value))


def _absent(question: Question, readings: list[Reading]) -> str:
    where = "; ".join(_state_of(reading) for reading in readings)
    return f"store {question.store.name} has no key {question.key!r}: {where}"


def _state_of(reading: Reading) -> str:
    position = reading.position
    text = (
        f"partition {reading.partition} at input offset {', '.join(map(str, position.offsets))}, changelog offset "
        f"{position.changelog_offset}, epoch {position.epoch}"
    )
    if reading.entry is not None and reading.entry.metadata is not None:
        text += f", where it expired at {moment(reading.entry.metadata.expires_at_ms)}"
    return text


def _as_json(question: Question, reading: Reading) -> dict[str, Any]:
    found, entry = reading.found, reading.entry
    metadata = None if entry is None else entry.metadata
    return {
        "store": question.store.name,
        "key": question.key,
        "partition": reading.partition,
        "found": found is not None,
        "expired": entry is not None and entry.is_expired,
        "value": None if found is None else value_json(question.store, question.raw_key, found.value),
        "epoch": None if metadata is None else metadata.epoch,
        "input": None if metadata is None else metadata.input,
        "source_offset": None if metadata is None else metadata.source_offset,
        "expires_at_ms": None if metadata is None or metadata.expires_at_ms == NEVER else metadata.expires_at_ms,
        "position": asdict(reading.position),
    }
