"""A worker's membership in its group: settings, and changes to aiokafka's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.consume.assignor import readable, readable_assignment
from actors.errors import ActorsError, ConfigurationError


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Where and how the worker joins. Timeouts in milliseconds; `instance_id` None means dynamic membership."""

    group: str
    instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    isolation_level: str
    fetch_bytes: int
    max_poll_records: int | None


def check_timeouts(settings: GroupSettings, revoke_s: float) -> None:
    """Refuse timeouts that contradict each other.

    Raises:
        ConfigurationError: naming both settings.
    """
    if settings.heartbeat_interval_ms * 3 > settings.session_timeout_ms:
        raise ConfigurationError(
            f"broker_heartbeat_interval={settings.heartbeat_interval_ms / 1000:g} s is more than a third of "
            f"broker_session_timeout={settings.session_timeout_ms / 1000:g} s: a late heartbeat would cost the "
            "partitions"
        )
    if revoke_s * 1000 >= settings.rebalance_timeout_ms:
        raise ConfigurationError(
            f"a rebalance waits {revoke_s:g} s for handlers, longer than the group's {settings.rebalance_timeout_ms} ms"
        )


class LostMembershipError(ActorsError):
    """The group doesn't know this worker's static identity any more."""


def prepare_join(coordinator: Any) -> None:
    """Check what a join brings before aiokafka decodes it, where an error would end the worker.

    The members' metadata, which the leader gets, and the leader's assignment are replaced where they can't be decoded;
    see `readable`. Committed offsets aren't fetched: each task fetches its own, and an input that this user may not
    describe would end the coordination.
    """
    perform, complete = coordinator._perform_assignment, coordinator._on_join_complete
    if getattr(perform, "checks_members", False):
        return

    async def perform_checked(response: Any) -> Any:
        response.members = [(*member[:-1], readable(member[-1])) for member in response.members]
        return await perform(response)

    async def complete_checked(generation: int, member_id: str, protocol: str, assignment: bytes) -> Any:
        checked = readable_assignment(assignment, coordinator._subscription.topics)
        return await complete(generation, member_id, protocol, checked)

    async def no_offsets(_: Any) -> dict[KafkaPartition, Any]:
        return {}

    perform_checked.checks_members = True  # type: ignore[attr-defined]
    coordinator._perform_assignment, coordinator._on_join_complete = perform_checked, complete_checked
    coordinator._do_fetch_commit_offsets = no_offsets


def watch_static_membership(
    coordinator: Any, instance_id: str, forgotten: Callable[[LostMembershipError], None]
) -> None:
    """Call `forgotten` when the group forgets a static member after a successful join.

    Two processes with one static id take the membership from each other every few seconds, and their heartbeats
    don't carry the id: an unknown member id after a successful join is the only sign.
    """
    reset = coordinator.reset_generation

    def lost() -> None:
        has_joined = coordinator.generation > 0
        reset()
        if has_joined:
            forgotten(
                LostMembershipError(
                    f"the group doesn't know consumer_group_instance_id={instance_id!r} any more: either another "
                    "process uses the same id, or this one didn't answer for a session. Give each worker an id of its "
                    "own, and restart this one"
                )
            )

    coordinator.reset_generation = lost


def has_ended(task: asyncio.Task[None] | None) -> bool:
    """Tell whether a task of the coordination existed and has ended; its error counts as seen, as others report it."""
    if task is None or not task.done():
        return False
    if not task.cancelled():
        task.exception()
    return True
