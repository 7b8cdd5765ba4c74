"""`faust -A APP state list`: the stores on this machine's disk, how far each partition is, and what it takes."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from actors.cli.session import Session, with_session
from actors.cli.state.reading import look_at
from stores._core.printable import moment
from stores.folder import DataFolder

FOREIGN = "(not in the app)"
_COLUMNS = (
    "store",
    "actor",
    "placement",
    "ttl",
    "#partition",
    "#input offset",
    "#changelog offset",
    "#epoch",
    "#keys",
    "#bytes on disk",
    "as of",
)


@click.command("list")
@with_session
def list_stores(session: Session) -> None:
    """List the stores with their partitions on this disk and the position that each stands for.

    The number of keys is RocksDB's estimate, expired keys included.
    """
    folder = session.data_folder()
    declared = list(session.app.stores)
    left_over = [name for name in folder.stores_on_disk() if name not in declared]
    stores = [_look(session, folder, name) for name in declared + left_over]
    if session.as_json:
        session.say_json(stores)
    elif not stores:
        session.say(f"app {session.app.conf.id} has no stores")
    else:
        rows = (row for store in stores for row in _rows(store))
        session.say_table(f"Stores in {folder.path}", _COLUMNS, rows)


def _look(session: Session, folder: DataFolder, name: str) -> dict[str, Any]:
    """Return a store and its partitions on this disk as JSON has them; without what the app doesn't know of it."""
    store, owner = session.app.stores.get(name), session.app.owner_of_store(name)
    return {
        "store": name,
        "actor": None if owner is None else owner.name,
        "placement": None if store is None else store.placement,
        "ttl_ms": None if store is None else store.ttl_ms,
        "partitions": [
            {"partition": partition, **asdict(look_at(folder, name, partition))}
            for partition in folder.partitions_on_disk(name)
        ],
    }


def _rows(store: dict[str, Any]) -> list[list[str]]:
    ttl = "-" if store["ttl_ms"] is None else str(timedelta(milliseconds=store["ttl_ms"]))
    about = [store["store"], store["actor"] or "-", store["placement"] or FOREIGN, ttl]
    if not store["partitions"]:
        return [[*about, *("-" * 6), "(none on this disk)"]]
    return [[*about, str(partition["partition"]), *_cells(partition)] for partition in store["partitions"]]


def _cells(partition: dict[str, Any]) -> list[str]:
    position, sizes = partition["position"], [f"{partition['keys']:,}", f"{partition['size_bytes']:,}"]
    if position is None:
        return [*("-" * 3), *sizes, "(being restored)"]
    offsets = ", ".join(map(str, (position["source_offset"], *position["more_offsets"])))
    where = [offsets, str(position["changelog_offset"]), str(position["epoch"])]
    return [*where, *sizes, moment(position["wall_time_ms"])]
