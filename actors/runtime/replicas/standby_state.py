"""What is known of a worker's copies."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from actors._core.group.members import TaskId
from actors._core.task.takeover import LogBounds
from actors.ports import TopicPartition
from actors.runtime.replicas.followed import FollowedStore
from actors.runtime.spec import ActorSpec
from actors.runtime.state.restore import Changelog
from actors.runtime.windows.removal import Removal


class Role(enum.StrEnum):
    """Why a copy is kept."""

    STANDBY = "standby"
    WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class StandbyState:
    """A store's partition as this worker's copy has it.

    `position` is the next changelog offset to apply, `lag` how many offsets it lacked at the last look, None if that
    isn't known. `current_ms` is the time of the last look whose end it has reached, None before the first one,
    `looked_ms` that of the last look at all: an old one tells that the copy isn't followed now.
    """

    actor: str
    store: str
    partition: int
    role: Role
    position: int
    lag: int | None
    current_ms: int | None
    looked_ms: int


@dataclass(slots=True, kw_only=True)
class StandbyStore(FollowedStore):
    """One store of a task.

    Attributes:
        end: the log's end at the last look, at `looked_s`.
        is_bulk: whether it is so far behind that it is loaded past the write-ahead log.
        current_ms: see `StandbyState`.
        kept_ms: the wall time that is on disk, at least.
        is_noted: whether the log says that it has become current.
        removal: of a window store, removes what is past its retention.
    """

    changelog: Changelog
    source: TopicPartition
    end: int
    looked_s: float
    is_bulk: bool
    current_ms: int | None = None
    kept_ms: int = 0
    is_noted: bool = False
    removal: Removal | None = None

    @property
    def lag(self) -> int:
        """How many offsets it lacked at the last look."""
        return max(0, self.end - self.position.changelog_offset)

    def look(self, asked_ms: int, bounds: LogBounds, now_s: float) -> None:
        """Note the log's end."""
        self.end, self.looked_s = bounds.end, now_s
        self.expect(asked_ms, bounds.end)
        self.reached()

    def reached(self) -> None:
        """See whether the mark is reached; the next write keeps it."""
        mark, self.position = self.mark, self.timed(self.position)
        if mark is not None and self.mark is None:
            self.current_ms = mark[0]


@dataclass(slots=True)
class StandbyTask:
    """A task's stores."""

    task: TaskId
    spec: ActorSpec
    stores: list[StandbyStore] = field(default_factory=list)
    is_ready: bool = False


class RebuildError(Exception):
    """A copy can't be followed on."""

    def __init__(self, copy: StandbyTask, store: StandbyStore, why: str) -> None:
        super().__init__(why)
        self.copy, self.store, self.why = copy, store, why
