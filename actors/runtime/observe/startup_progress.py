"""The waits of a worker's tasks in words, for whoever watches the start. Looks, and asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from actors._core.task.lifecycle import State
from actors.ports import TopicPartition
from actors.runtime.state.restore import LONG_READ
from actors.runtime.task.task import Task

_STEPS = {
    State.FENCING: "what the former owner left open is being settled",
    State.CONFIRMING: "the group's word that the partition is still ours",
    State.LOOKING: "the group's offset and the log's bounds",
    State.RESTORING: "the store is being opened",
    State.CLAIMING: "the new epoch is being written",
}
_PREDECESSOR = "the end of this worker's former task"
_IS_OVER = (State.HALTED, State.REFUSED, State.CLOSED)
STALLED_S = 3.0
"""A restore that hasn't moved for so long waits for something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """A restore that runs: offsets of the changelog; `stalled_s` says how long it hasn't moved."""

    store: str
    partition: int
    start: int
    position: int
    end: int
    stalled_s: float = 0.0

    @property
    def name(self) -> str:
        """Return the partition's name."""
        return f"{self.store}[{self.partition}]"

    @property
    def is_stalled(self) -> bool:
        """Return whether the start waits for something."""
        return self.stalled_s >= STALLED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupProgress:
    """A worker at one moment.

    Attributes:
        owned: by actor, the partitions that run.
        halted: the places in front of which partitions stand still.
        waits: by reason, the partitions that wait for it.
        restores: those that run, oldest first.
    """

    owned: Mapping[str, list[int]] = field(default_factory=dict)
    halted: tuple[str, ...] = ()
    waits: Mapping[str, list[TopicPartition]] = field(default_factory=dict)
    restores: tuple[Restoring, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Return whether some partition isn't ready yet."""
        return bool(self.waits or self.restores)


class StartupWatch:
    """Looks at tasks again and again, and remembers since when a restore hasn't moved."""

    def __init__(self) -> None:
        self._moved: dict[tuple[str, int], tuple[int, float]] = {}

    def look(self, tasks: Iterable[Task], now_s: float) -> StartupProgress:
        """Return the progress now; `now_s` is the monotonic clock's."""
        owned: dict[str, list[int]] = {}
        halted: list[str] = []
        waits: dict[str, list[TopicPartition]] = {}
        restores: list[Restoring] = []
        for task in tasks:
            if task.state in (State.RUNNING, State.COMMITTING):
                owned.setdefault(task.spec.name, []).append(task.partition)
            elif task.state in _IS_OVER:
                if task.halted_by is not None:
                    offset = getattr(task.halted_by, "offset", None)
                    halted.append(task.name if offset is None else f"{task.name} offset {offset}")
            elif found := self._restores(task, now_s):
                restores += found
            else:
                reason = _PREDECESSOR if task.waits_for_predecessor else task.meters.waits_for or _STEPS[task.state]
                waits.setdefault(reason, []).extend(task.sources)
        self._forget({(one.store, one.partition) for one in restores})
        return StartupProgress(owned=owned, halted=tuple(halted), waits=waits, restores=tuple(restores))

    def _restores(self, task: Task, now_s: float) -> list[Restoring]:
        found = []
        for meter in task.meters.restoring:
            if meter.end > meter.start:
                key = (meter.store, task.partition)
                position, since_s = self._moved.get(key, (-1, 0.0))
                if position != meter.position:
                    since_s = now_s
                    self._moved[key] = meter.position, now_s
                one = Restoring(
                    store=meter.store,
                    partition=task.partition,
                    start=meter.start,
                    position=meter.position,
                    end=meter.end,
                    stalled_s=now_s - since_s,
                )
                found.append(one)
        return found

    def _forget(self, kept: set[tuple[str, int]]) -> None:
        for key in self._moved.keys() - kept:
            del self._moved[key]


def why_stalled(restoring: Restoring, others: Iterable[Restoring], away: Iterable[str]) -> str:
    """Say what a restore that doesn't move waits for; `away` are brokers that can't be reached."""
    if names := ", ".join(away):
        return f"broker {names}, which can't be reached"
    is_queued = restoring.position == restoring.start and restoring.end - restoring.start > LONG_READ
    if is_queued and any(not other.is_stalled for other in others):
        return "its turn: other restores come first"
    return "the last stable offset, held back by an open transaction"
