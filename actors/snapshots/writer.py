"""Writes snapshots of the partitions that a worker owns, one after the other, beside its actors.

{store}/partition-00003/seed.json                      the manifest, written last, by a conditional put
{store}/partition-00003/{epoch}-{offset}-{random}/…    the files of a checkpoint, never written over

A checkpoint links the tables of the database, so that the disk holds at most what one store had; reading and sending
them takes nothing from the event loop. What a crash leaves: files that no manifest names, deleted by a later owner.

A former owner that goes on writes an older state, never a wrong one. Its manifest doesn't replace a newer one: it is
written only over the version that was compared. Files of another owner are deleted only once a manifest of a newer
epoch stands: that owner compares before it writes the manifest, and gives up.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from actors._core.logs import escaping
from actors._core.task.lifecycle import State
from actors.ports import Clock
from actors.runtime.cancellation import end
from actors.runtime.task.task import Task
from actors.runtime.threads import finish_in_thread
from actors.snapshots.objects import Objects, Version
from stores._core.record import Position
from stores._core.snapshot import (
    DATABASE_FILE,
    SnapshotManifest,
    SnapshotPartition,
    SnapshotTable,
    encode_snapshot,
    manifests,
)
from stores._files import crc32, make_folder
from stores.errors import SnapshotError, StoreError
from stores.rocks import RocksStore
from stores.snapshot import read_manifest

logger = escaping(logging.getLogger(__name__))

PASSES = 10
"""How often the partitions are looked through in the time between two snapshots."""
LOOK_S = 0.2
FLUSH_S = 1.0
"""How long RocksDB gets to flush in its own thread, before a checkpoint flushes the rest on the event loop."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """The manifest of a worker that stands for a partition."""

    made_at_ms: int
    part: SnapshotPartition
    version: Version


class SnapshotWriter:
    """Writes a snapshot of each owned partition every `every_s` seconds, at most one at a time."""

    def __init__(self, objects: Objects, tasks: Callable[[], list[Task]], *, clock: Clock, every_s: float) -> None:
        self._objects = objects
        self._tasks = tasks
        self._clock = clock
        self._every_s = every_s
        self._made: dict[tuple[str, int], tuple[int, int]] = {}

    async def run(self) -> None:
        """Look through the partitions again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s / PASSES)
            for task in self._tasks():
                for store in task.spec.stores:
                    await self._write_if_due(task, store.name)

    async def _write_if_due(self, task: Task, store: str) -> None:
        epoch = task.epoch
        if not _owns(task, epoch):
            return
        known_epoch, made_at_ms = self._made.get((store, task.partition), (0, 0))
        is_due = self._clock.wall_ms() - made_at_ms >= self._every_s * 1000
        if known_epoch == epoch and not is_due:
            return
        try:
            standing = await self._standing(store, task.partition)
            self._made[store, task.partition] = epoch, made_at_ms = epoch, standing.made_at_ms if standing else 0
            if self._clock.wall_ms() - made_at_ms >= self._every_s * 1000:
                await _while_owned(task, epoch, asyncio.create_task(self._write(task, store, standing)))
        except (SnapshotError, StoreError, OSError) as error:
            text = "store %s, partition %d: no snapshot was written to %s, tried again in %.0f s: %s"
            logger.warning(text, store, task.partition, self._objects, self._every_s / PASSES, error)

    async def _standing(self, store: str, partition: int) -> _Standing | None:
        file = manifests(store, partition)[1]
        stored = await self._objects.read(file)
        if stored is None:
            return None
        manifest = read_manifest(stored[0], f"{self._objects}/{file}", app=self._objects.app, store=store)
        if len(manifest.partitions) != 1:
            raise SnapshotError(f"{self._objects}/{file} has {len(manifest.partitions)} partitions, not one")
        return _Standing(manifest.made_at_ms, manifest.partitions[0], stored[1])

    async def _write(self, task: Task, store: str, standing: _Standing | None) -> None:
        began_s, made_at_ms = self._clock.monotonic(), self._clock.wall_ms()
        home = manifests(store, task.partition)[1].rpartition("/")[0]
        await self._remove_older(home, task.epoch, standing)
        folder = self._objects.folder / "checkpoint"
        try:
            position, keys = await _checkpoint(task, store, folder)
            if standing is not None and not _is_newer(position, standing.part.position):
                return
            name = f"{position.epoch}-{position.changelog_offset}-{uuid.uuid4().hex[:8]}"
            tables = []
            for file in sorted(folder.iterdir()):
                crc = await finish_in_thread(crc32, file)
                await self._objects.put(f"{home}/{name}/{file.name}", file)
                tables.append(
                    SnapshotTable(file.name, file.stat().st_size, crc, keys if file.name == DATABASE_FILE else 0)
                )
        finally:
            await finish_in_thread(shutil.rmtree, folder, ignore_errors=True)
        changelog = task.spec.changelogs[store]
        manifest = SnapshotManifest(
            app=self._objects.app,
            store=store,
            changelog=changelog.topic,
            partition_count=changelog.partition_count,
            made_at_ms=made_at_ms,
            partitions=(SnapshotPartition(task.partition, position, tuple(tables), name),),
        )
        if not await self._publish(manifest, standing):
            logger.info("store %s, partition %d: a newer snapshot stands in %s", store, task.partition, self._objects)
            return
        self._made[store, task.partition] = task.epoch, made_at_ms
        logger.info(
            "store %s, partition %d: snapshot at offset %d written to %s, %.1f MB in %.2f s",
            store,
            task.partition,
            position.changelog_offset,
            self._objects,
            sum(table.size_bytes for table in tables) / 1e6,
            self._clock.monotonic() - began_s,
        )

    async def _publish(self, manifest: SnapshotManifest, standing: _Standing | None) -> bool:
        """Put the manifest in the place of an older one; return whether it stands."""
        part = manifest.partitions[0]
        file = manifests(manifest.store, part.partition)[1]
        raw = encode_snapshot(manifest).encode()
        while not await self._objects.replace(file, raw, None if standing is None else standing.version):
            # Another owner was faster; or the reply to this very write was lost, and it was repeated.
            standing = await self._standing(manifest.store, part.partition)
            if standing is not None and standing.part.folder == part.folder:
                return True
            if standing is not None and not _is_newer(part.position, standing.part.position):
                return False
        return True

    async def _remove_older(self, home: str, epoch: int, standing: _Standing | None) -> None:
        """Delete what no reader needs: all but the snapshot that stands, and what a newer owner may be writing.

        The one that stood before it is kept until now, for workers that are reading it.
        """
        stands_in, newest = ("", 0) if standing is None else (standing.part.folder, standing.part.position.epoch)
        for folder in await self._objects.folders(home):
            its_epoch = int(prefix) if (prefix := folder.partition("-")[0]).isdecimal() else -1
            if folder != stands_in and (its_epoch == epoch or 0 <= its_epoch < newest):
                await self._objects.remove(f"{home}/{folder}")


async def _checkpoint(task: Task, store: str, folder: Path) -> tuple[Position, int]:
    """Make a checkpoint of a task's store, at a committed position; return that and the estimated number of keys."""
    flushes = True
    while True:
        database = (task.committed or {}).get(store)
        if isinstance(database, RocksStore) and not flushes:
            position = database.position()
            if position is None:
                raise SnapshotError("the store has no position")
            make_folder(folder.parent)
            # Not in a thread: rocksdict keeps the interpreter's lock, and no commit or close can come in between.
            database.checkpoint(folder)
            return position, database.estimated_keys()
        if isinstance(database, RocksStore):
            database.begin_flush()
            flushes = False
        await asyncio.sleep(LOOK_S if database is None else FLUSH_S)


def _owns(task: Task, epoch: int) -> bool:
    is_running = task.state in (State.RUNNING, State.COMMITTING) and not task.inbox.stopping
    return is_running and task.epoch == epoch


async def _while_owned(task: Task, epoch: int, work: asyncio.Task[None]) -> None:
    """Wait for the work, and cancel it when the task doesn't own its partition any more."""
    try:
        while not work.done():
            await asyncio.wait([work], timeout=LOOK_S)
            if not work.done() and not _owns(task, epoch):
                return
        work.result()
    finally:
        await end(work)


def _is_newer(position: Position, than: Position) -> bool:
    """Return whether a snapshot at a position may replace another one."""
    if position.changelog_id != than.changelog_id:
        # Epochs of another topic may be of an app that was begun again. The time is that of a commit as the owner.
        return position.wall_time_ms > than.wall_time_ms
    return _order(position) > _order(than)


def _order(position: Position) -> tuple[int, int, int]:
    return position.epoch, position.changelog_offset, position.wall_time_ms
