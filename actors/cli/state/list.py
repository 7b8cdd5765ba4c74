"""`faust -A APP state list`: the stores on this machine's disk, how far each partition is, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import click

from actors.cli.session import Session, with_session
from actors.cli.state.reading import PartitionOnDisk, look_at
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOnDisk:
    """A store and its partitions on this disk.

    Attributes:
        actor: its owner; None where no actor lists it, or the app doesn't have it.
        placement: "key" or "task"; None where the app doesn't have it.
        ttl_ms: how long a value is there; None for ever.
        partitions: by number.
    """

    name: str
    actor: str | None
    placement: str | None
    ttl_ms: int | None
    partitions: Mapping[int, PartitionOnDisk]


@click.command("list")
@with_session
def list_stores(session: Session) -> None:
    """List the stores with their partitions on this disk and the position that each stands for.

    The number of keys is RocksDB's estimate, expired keys included.
    """
    folder = session.data_folder()
    declared = list(session.app.stores)
    left_over = [name for name in folder.stores_on_disk() if name not in declared]
    found = [_look(session, folder, name) for name in declared + left_over]
    if session.as_json:
        session.say_json([_as_json(store) for store in found])
    elif not found:
        session.say(f"app {session.app.conf.id} has no stores")
    else:
        rows = (row for store in found for row in _as_rows(store))
        session.say_table(f"Stores in {folder.path}", _COLUMNS, rows)


def _look(session: Session, folder: DataFolder, name: str) -> StoreOnDisk:
    store = session.app.stores.get(name)
    partitions = folder.partitions_on_disk(name)
    return StoreOnDisk(
        name=name,
        actor=session.actor_of(name),
        placement=None if store is None else store.placement,
        ttl_ms=None if store is None else store.ttl_ms,
        partitions={partition: look_at(folder, name, partition) for partition in partitions},
    )


def _as_rows(store: StoreOnDisk) -> list[list[str]]:
    ttl = "-" if store.ttl_ms is None else str(timedelta(milliseconds=store.ttl_ms))
    about = [store.name, store.actor or "-", store.placement or FOREIGN, ttl]
    if not store.partitions:
        return [[*about, *("-" * 6), "(none on this disk)"]]
    return [[*about, str(number), *_cells(partition)] for number, partition in store.partitions.items()]


def _cells(partition: PartitionOnDisk) -> list[str]:
    position, sizes = partition.position, [f"{partition.keys:,}", f"{partition.size_bytes:,}"]
    if position is None:
        return [*("-" * 3), *sizes, "(being restored)"]
    return [
        ", ".join(map(str, position.offsets)),
        str(position.changelog_offset),
        str(position.epoch),
        *sizes,
        moment(position.wall_time_ms),
    ]


def _as_json(store: StoreOnDisk) -> dict[str, Any]:
    return {
        "store": store.name,
        "actor": store.actor,
        "placement": store.placement,
        "ttl_ms": store.ttl_ms,
        "partitions": [{"partition": number, **asdict(partition)} for number, partition in store.partitions.items()],
    }
