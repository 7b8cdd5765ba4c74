"""The app and its worker as the web server sees them. `actors.App` is a `Host`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from actors._kafka.consume.silence import Silence
from actors.declare.host import DeclaredApp
from actors.runtime.meters import WorkerMeters
from actors.runtime.observe.status import WorkerStatus
from actors.runtime.replicas.standby_state import StandbyState
from actors.runtime.task.task import Task
from actors.runtime.worker import Worker


class WorkerService(Protocol):
    """The worker of this process, at any time of its life."""

    meters: WorkerMeters

    @property
    def worker(self) -> Worker | None:
        """The worker; None until it has joined the group."""

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks of the partitions that the worker owns."""

    @property
    def copies(self) -> Collection[StandbyState]:
        """The standbys that the worker keeps."""

    @property
    def silence(self) -> Silence | None:
        """How long brokers haven't answered."""

    @property
    def is_broken(self) -> bool:
        """Whether the dispatcher ended."""

    @property
    def should_stop(self) -> bool:
        """Whether the worker is ending."""

    @property
    def setup(self) -> Any:
        """What commands for parked messages connect with; None until the worker has started."""


class Host(DeclaredApp, Protocol):
    """The app whose web server this is."""

    @property
    def actor_service(self) -> WorkerService:
        """The worker of this process."""

    def worker_status(self) -> WorkerStatus:
        """Return the status of this process's worker. Call it on the worker's event loop."""
