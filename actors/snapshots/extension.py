"""Sets up snapshots in object storage for a worker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors._faust.extensions import StartingWorker, WorkerExtension
from actors._faust.setup import Setup
from actors.errors import ConfigurationError
from actors.runtime.cancellation import end

if TYPE_CHECKING:
    from actors.snapshots.objects import Objects


class ObjectSnapshots(WorkerExtension):
    """Lets a worker begin from snapshots in object storage, and write them; nothing without the settings."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, settings)
        self._objects: Objects | None = None
        self._writing: asyncio.Task[None] | None = None

    def check(self, setup: Setup) -> None:
        """Refuse a place that can't be used; have the worker look there."""
        options = self.app.actor_options
        place, every = options.state_snapshot, options.state_snapshot_every
        if place is None and every:
            raise ConfigurationError("state_snapshot_every is set: set state_snapshot too, where snapshots are written")
        if place is None or ("://" not in str(place) and not every):
            return
        try:
            from actors.snapshots.objects import Objects
        except ImportError as error:
            raise ConfigurationError(
                f"state_snapshot={str(place)!r} in object storage, and state_snapshot_every, take obstore: "
                "pip install 'faust-actors[s3]'"
            ) from error
        is_uri = "://" in str(place)
        uri = str(place) if is_uri else Path(place).absolute().as_uri()
        self._objects = Objects.open(uri, app=setup.app.conf.id, folder=setup.folder / "snapshots")
        if is_uri:
            setup.snapshots = self._objects

    async def start(self, worker: StartingWorker) -> None:
        """Delete what a killed process left, and begin to write."""
        objects, every = self._objects, self.app.actor_options.state_snapshot_every
        if objects is None:
            return
        await asyncio.to_thread(shutil.rmtree, objects.folder, ignore_errors=True)
        if every:
            from actors.snapshots.writer import SnapshotWriter

            tasks, clock = worker.worker, self.app.actor_clock
            writer = SnapshotWriter(objects, lambda: list(tasks.tasks), clock=clock, every_s=every.total_seconds())
            self._writing = asyncio.create_task(writer.run(), name="actors snapshots")

    async def stop(self) -> None:
        """Write no more."""
        writing, self._writing = self._writing, None
        await end(writing)
