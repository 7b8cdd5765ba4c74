"""`faust -A APP state get | list | export`: the committed state that lies on this machine's disk."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from actors._faust.cli.cluster import Cluster
from actors._faust.cli.get import get
from actors._faust.cli.reading import read_position
from actors._faust.cli.session import Session, with_session
from actors._faust.service import Setup
from actors.errors import ConfigurationError
from stores._core.manifest import MANIFEST, Manifest, decode_manifest
from stores._core.record import Position
from stores.errors import StoreError
from stores.folder import DataFolder

_COLUMNS = (
    "store", "actor", "placement", "ttl", "#partition", "#input offset", "#changelog offset", "#epoch", "as of",
)  # fmt: skip
_OF_AN_EXPORT = re.compile(r"(partition-\d+\.parquet|manifest\.json)(\.tmp)?")


@click.group("state")
def state() -> None:
    """Look at the committed state on this machine's disk, also while a worker runs."""


state.add_command(get)


# --- list ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """A store with the partitions that are here; a position is None while the partition is being restored."""

    name: str
    actor: str | None
    placement: str | None
    ttl_ms: int | None
    positions: dict[int, Position | None]


@state.command("list")
@with_session
def list_stores(session: Session) -> None:
    """List the stores with their partitions on this disk and the position that each stands for."""
    found = [_look(session, name) for name in _names(session)]
    if session.as_json:
        session.say_json([_store_json(store) for store in found])
    elif not found:
        session.say(f"app {session.app.conf.id} has no stores")
    elif not session.quiet:
        from actors._faust.cli.output import print_table

        rows = (row for store in found for row in _store_rows(store))
        print_table(session.stdout, f"Stores in {session.setup.folder}", _COLUMNS, rows)


def _names(session: Session) -> list[str]:
    """Give the app's stores in their order, then what else is on the disk."""
    declared = list(session.app.stores)
    return declared + [name for name in session.data_folder().stores_on_disk() if name not in declared]


def _look(session: Session, name: str) -> StoreOnDisk:
    folder, store = session.data_folder(), session.app.stores.get(name)
    positions = {
        partition: read_position(folder, name, partition) for partition in folder.partitions_on_disk(name)
    }
    return StoreOnDisk(
        name,
        session.actor_of(name),
        None if store is None else store.placement,
        None if store is None else store.ttl_ms,
        positions,
    )
