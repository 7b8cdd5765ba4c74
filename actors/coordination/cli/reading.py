"""Committed state of the service's names, from its changelog: no worker has to run.

The high watermark is taken when the command begins, and all below it is read once its transactions have ended: what
was committed before is in it. What only time ends (leases, waits, ephemeral nodes) may still be there, since a worker
lets it go: it is marked by the clock of this machine, or the service's where that is ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actors._core.partitioner import partition_for
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.consume.logs import KafkaLogs
from actors.coordination.cli.service import existing, service_of
from actors.coordination.locks import Holder, Waiter
from actors.coordination.messages import ACTOR
from actors.coordination.registry import Node
from actors.coordination.service.resource import Resource
from actors.ports import TopicPartition

MAX_READERS = 8
"""How many partitions are read at a time; each takes a consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Committed state of a name.

    Attributes:
        changed_at_ms: when it was last written, Unix milliseconds.
        now_ms: the time by which something is over: of this machine, or of the service where that is ahead.
    """

    name: str
    partition: int
    resource: Resource
    changed_at_ms: int
    now_ms: int

    @property
    def uses(self) -> list[str]:
        """All uses that the name ever had."""
        found = self.resource
        used = {
            "lock": found.lock.last_token > 0,
            "node": found.node.version > 0,
            "group": found.group.last_joined > 0,
            "barrier": found.barrier.generation > 0 or bool(found.barrier.waiting),
        }
        return [use for use, is_one in used.items() if is_one]

    @property
    def kind(self) -> str:
        """The use of the name, for a person."""
        lock = self.resource.lock
        words = {"lock": f"semaphore of {lock.limit}" if lock.kind == "semaphore" else "lock"}
        return ", ".join(words.get(use, use) for use in self.uses) or "(nothing)"

    @property
    def is_held(self) -> bool:
        """True if the lock has a holder whose lease isn't over."""
        return any(not self.is_over(holder.expires_ms) for holder in self.resource.lock.holders)

    @property
    def node(self) -> Node | None:
        """The node, None if it is missing, or if its session's time is over and no worker has seen it yet."""
        node = self.resource.node
        is_gone = node.data is None or (node.expires_ms is not None and self.is_over(node.expires_ms))
        return None if is_gone else node

    def is_over(self, ends_ms: int) -> bool:
        """Return whether something that ends then is over."""
        return ends_ms <= self.now_ms

    def end_json(self, ends_ms: int) -> dict[str, Any]:
        """Return an end for JSON."""
        return {"expires_at_ms": ends_ms, "left_ms": max(0, ends_ms - self.now_ms), "over": self.is_over(ends_ms)}

    def lock_json(self) -> dict[str, Any]:
        """Return the lock for JSON."""
        lock = self.resource.lock
        return {
            "name": self.name,
            "partition": self.partition,
            "uses": self.uses,
            "kind": lock.kind,
            "limit": lock.limit,
            "held": self.is_held,
            "holders": [{**holder_json(holder), **self.end_json(holder.expires_ms)} for holder in lock.holders],
            "waiting": len(lock.waiters),
            "last_token": lock.last_token,
            "changed_at_ms": self.changed_at_ms,
        }

    def waiter_json(self, waiter: Waiter) -> dict[str, Any]:
        """Return one who waits for JSON."""
        want = waiter.want
        return {
            "owner": want.owner,
            "shared": want.shared,
            "permits": want.permits,
            "data": want.data,
            "since_ms": waiter.since_ms,
            "waited_ms": max(0, self.now_ms - waiter.since_ms),
            **self.end_json(waiter.deadline_ms),
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """Committed state by name, as of `read_at_ms` (Unix milliseconds)."""

    read_at_ms: int
    found: list[Found]


def holder_json(holder: Holder) -> dict[str, Any]:
    """Return a holder for JSON, without the end of its lease."""
    return {
        "owner": holder.owner,
        "token": holder.token,
        "shared": holder.shared,
        "permits": holder.permits,
        "count": holder.count,
        "data": holder.data,
    }


async def read(setup: Setup, name: str | None = None) -> Reading:
    """Read all names, or one, if it is there.

    Raises:
        ConfigurationError: the app has no service, or it was never started.
        BrokerUnavailableError: no broker answers.
    """
    service_of(setup)
    store, topic = setup.app.stores[ACTOR], setup.changelog_topic(ACTOR)
    readers = asyncio.Semaphore(MAX_READERS)
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        count = (await existing(setup, control, topic)).partitions
        logs = KafkaLogs(setup.connection, control)
        read_at_ms = _wall_ms()

        async def newest(partition: int) -> Iterable[Found]:
            source, held = TopicPartition(topic, partition), dict[bytes, tuple[bytes, int]]()
            async with readers:
                bounds = await logs.bounds(source)
                async for records, _ in logs.read(source, bounds.start, bounds.end):
                    for record in records:
                        if record.key is None or (name is not None and record.key != name.encode()):
                            continue
                        if record.value is None:
                            held.pop(record.key, None)
                        else:
                            held[record.key] = record.value, record.timestamp
            return [
                _found(key, partition, store.decode_value(raw), changed_at_ms)
                for key, (raw, changed_at_ms) in held.items()
            ]

        partitions = range(count) if name is None else [partition_for(name.encode(), count)]
        found = await asyncio.gather(*map(newest, partitions))
    return Reading(read_at_ms, sorted((one for some in found for one in some), key=lambda one: one.name))


def _found(key: bytes, partition: int, resource: Resource, changed_at_ms: int) -> Found:
    return Found(
        name=key.decode(errors="backslashreplace"),
        partition=partition,
        resource=resource,
        changed_at_ms=changed_at_ms,
        now_ms=max(resource.clock_ms, _wall_ms()),
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
