"""What the test driver gives the worker and the set-up beside the fakes of the ports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from actors._kafka.admin.control import TopicInfo
from actors.runtime.worker import WorkerSettings
from actors.testing.fakes.cluster import EPOCH_MS, SimKafka
from actors.testing.fakes.ports import FakeClock
from tests.sim.fakes.loop import VirtualLoop

IDLE_S = 3600.0
BUSY_S = 0.05
_TOPIC_CONFIG = {"max.message.bytes": "1048588", "delete.retention.ms": "86400000", "cleanup.policy": "delete"}


@dataclass(frozen=True)
class PatientSettings(WorkerSettings):
    """A worker's settings with long polls once there is nothing left to do: a takeover doesn't end one."""

    is_settled: Callable[[], bool] = bool

    def __getattribute__(self, name: str) -> Any:
        if name == "poll_s":
            return IDLE_S if self.is_settled() else BUSY_S
        return super().__getattribute__(name)


class OutsideClock(FakeClock):
    """The virtual time, also for a test that reads a view while the loop stands still."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return EPOCH_MS + int(self._loop.time() * 1000)


class SimTopics:
    """What `Setup` asks of `actors._kafka.admin.topics.Topics`, from the simulated cluster."""

    def __init__(self, cluster: SimKafka) -> None:
        self._cluster = cluster

    async def existing(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those of the topics that exist."""
        found = {}
        for name in names:
            with contextlib.suppress(KeyError):
                topic = self._cluster.topic(name)
                found[name] = TopicInfo(name, UUID(topic.topic_id), len(topic.partitions))
        return found

    async def configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each."""
        return {name: dict(_TOPIC_CONFIG) for name in names}
