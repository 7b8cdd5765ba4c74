"""`faust -A APP state export STORE --to DIR`: what this machine holds of a store, as Parquet for an audit."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import time
from importlib.util import find_spec
from pathlib import Path

import click

from actors._core.partitioner import MURMUR2
from actors._faust.setup import Setup
from actors.cli.cluster import Cluster
from actors.cli.progress import reporting
from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError
from stores._core.manifest import MANIFEST, Manifest, decode_manifest
from stores.errors import StoreError

_OF_AN_EXPORT = re.compile(r"(partition-\d+\.parquet|manifest\.json)(\.tmp)?")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@click.command("export")
@click.argument("name", metavar="STORE")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where this machine's folder goes; machines may share DIR.",
)
@with_session
def export(session: Session, name: str, to: Path) -> None:
    """Write what this machine's data folder holds of STORE as Parquet, with positions, for `spark_replay validate`.

    The last line on stdout is JSON with the number of partitions and keys.
    """
    _require_pyarrow(name)
    from stores.export import export_store

    store = session.store(name)
    folder = session.data_folder()
    worker = worker_name(folder.path)
    _check_target(to / worker, app=folder.app, store=name)
    partition_count = asyncio.run(_partition_count(session.setup, name))
    # Readers know murmur2 only: to them, keys of another partitioner may be anywhere.
    placement: str = "task"
    if session.app.partitioner_of_store(name) is MURMUR2:
        placement = store.placement if store.below is None else "row"
    partitions = folder.partitions_on_disk(name)
    with reporting(session.stderr, quiet=session.quiet) as report:
        manifest = export_store(
            folder.path,
            name,
            to,
            app=folder.app,
            changelog=session.setup.changelog_topic(name),
            placement=placement,
            partition_count=partition_count,
            worker=worker,
            now_ms=time.time_ns() // 1_000_000,
            progress=report,
        )
    if left_out := sorted(set(partitions) - {part.partition for part in manifest.partitions}):
        which = ", ".join(map(str, left_out))
        session.remark(f"left out, because a worker is restoring them: partitions {which}")
    _remove_left_over(to / worker, manifest)
    session.say_json(
        {
            "store": name,
            "partitions": len(manifest.partitions),
            "keys": sum(part.keys for part in manifest.partitions),
            "to": str(to),
        }
    )


def _require_pyarrow(store: str) -> None:
    if find_spec("pyarrow") is None:
        raise ConfigurationError(
            f"store {store} can't be exported to Parquet: pyarrow isn't installed. "
            "Install it with pip install 'faust-actors[parquet]'"
        )


def worker_name(folder: Path) -> str:
    """Return the exporting worker's name: of one data folder always the same, of two never."""
    place = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{_NOT_IN_A_NAME.sub('-', socket.gethostname())}-{place}"


async def _partition_count(setup: Setup, store: str) -> int:
    async with Cluster.connect(setup) as cluster:
        return await cluster.partition_count(store)


def _check_target(target: Path, *, app: str, store: str) -> None:
    """Refuse to write over anything but an export of the same store.

    Raises:
        StoreError: the folder holds something else.
    """
    if not target.exists():
        return
    strangers = sorted(entry.name for entry in target.iterdir() if not _OF_AN_EXPORT.fullmatch(entry.name))
    if strangers:
        raise StoreError(f"{target} isn't an export, {strangers[0]} is in it: choose another folder for --to")
    try:
        before = decode_manifest((target / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        # An export that was cut short.
        return
    except ValueError as error:
        raise StoreError(f"{target / MANIFEST}: {error}: choose another folder for --to") from error
    if (before.app, before.store) != (app, store):
        raise StoreError(
            f"{target} is the export of store {before.store} of app {before.app}: choose another folder for --to"
        )


def _remove_left_over(target: Path, manifest: Manifest) -> None:
    """Delete what a former export had and this one doesn't: readers of the bare files would count it."""
    listed = {part.file for part in manifest.partitions} | {MANIFEST}
    for entry in target.iterdir():
        if entry.name not in listed and _OF_AN_EXPORT.fullmatch(entry.name):
            entry.unlink()
