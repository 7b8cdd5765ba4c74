"""What a task is made with: its actor, the worker's settings, the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from actors._core.commit import Backoff, CommitPolicy
from actors._core.takeover import StartRules
from actors.ports import Clock, GroupView, Logs, OwnerRecord, Owners, StoreProvider, TaskSink
from actors.runtime.context import Context, OutputTopic, Store
from actors.runtime.restore import Changelog, Restorer


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor as the runtime needs it. `changelogs` is by store name."""

    name: str
    topic: str
    partition_count: int
    handler: Callable[[Context, Any], Awaitable[None]]
    decode_key: Callable[[bytes], Any]
    decode_value: Callable[[bytes], Any]
    stores: tuple[Store[Any, Any], ...]
    changelogs: Mapping[str, Changelog]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What is the same for all tasks of a worker. `queue_records` bounds what is fetched ahead of the handler."""

    worker: str
    address: str
    policy: CommitPolicy
    rules: StartRules
    backoff: Backoff
    queue_records: int
    checkpoint_refresh_s: float

    def owner_record(self, actor: str, partition: int, epoch: int, at_ms: int) -> OwnerRecord:
        """Give what the registry says when this worker takes a task over."""
        return OwnerRecord(
            actor=actor, partition=partition, epoch=epoch, worker=self.worker, address=self.address, at_ms=at_ms
        )


@dataclass(frozen=True, slots=True)
class TaskServices:
    """The world as a task sees it."""

    group: GroupView
    logs: Logs
    owners: Owners
    restorer: Restorer
    stores: StoreProvider
    sink: TaskSink
    clock: Clock
    resolve_output: Callable[[Any], OutputTopic]
    encode_owner: Callable[[OwnerRecord], Any]
