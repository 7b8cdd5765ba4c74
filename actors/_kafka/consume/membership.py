"""A worker's membership in its group: settings, and changes to aiokafka's coordinator.

aiokafka gives up all partitions when a rebalance begins, and makes a new assignment object at its end. So that a worker
fetches and handles on meanwhile:

- `_on_join_prepare` begins no reassignment, in which `getmany` would wait, if the worker keeps its tasks.
- `assign_from_subscribed` changes the assignment in place: partitions that stay keep positions and fetched records.
- `reset_generation`, which aiokafka calls when the group has forgotten the member, reports that.
- `ensure_active_group` joins no more after a static member was forgotten: the process that has its id now would be the
  next one to be forgotten.
- `_send_req` reports a static id that is another process's, an error unknown to aiokafka, as a forgotten member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from aiokafka.consumer.subscription_state import Assignment, TopicPartitionState
from aiokafka.errors import UnknownMemberIdError
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.codes import FENCED_INSTANCE_ID
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


def prepare_join(coordinator: Any) -> bool:
    """Check what a join brings before aiokafka decodes it, where an error would end the worker; tell if that is new.

    The members' metadata, which the leader gets, and the leader's assignment are replaced where they can't be decoded;
    see `readable`.
    """
    perform, complete = coordinator._perform_assignment, coordinator._on_join_complete
    if getattr(perform, "checks_members", False):
        return False

    async def perform_checked(response: Any) -> Any:
        response.members = [(*member[:-1], readable(member[-1])) for member in response.members]
        return await perform(response)

    async def complete_checked(generation: int, member_id: str, protocol: str, assignment: bytes) -> Any:
        checked = readable_assignment(assignment, coordinator._subscription.topics)
        return await complete(generation, member_id, protocol, checked)

    perform_checked.checks_members = True  # type: ignore[attr-defined]
    coordinator._perform_assignment, coordinator._on_join_complete = perform_checked, complete_checked
    return True


def keep_assignment(coordinator: Any, keeps: Callable[[], bool], forgotten: Callable[[], None]) -> None:
    """Have a coordinator keep its assignment during a join if `keeps` says so, and change it in place at the end.

    `forgotten` is called when the group doesn't know the member any more after a successful join.
    """
    prepare, reset, subscriptions = (
        coordinator._on_join_prepare,
        coordinator.reset_generation,
        coordinator._subscription,
    )

    async def prepare_kept(assignment: Any) -> None:
        if keeps():
            # As the original does, so that nothing of the former leader's topics is watched.
            coordinator._group_subscription = None
        else:
            await prepare(assignment)

    def reset_noted() -> None:
        has_joined = coordinator.generation > 0
        reset()
        if has_joined:
            forgotten()

    def assign_in_place(partitions: Collection[KafkaPartition]) -> None:
        subscription = subscriptions.subscription
        held = subscription._assignment = subscription.assignment or Assignment(())
        for partition in held.tps.difference(partitions):
            # What was fetched of it still looks for its state.
            held.state_value(partition).pause()
        for partition in set(partitions) - held.tps:
            state = held._tp_state[partition] = TopicPartitionState(held)
            # With a position, which its task sets, aiokafka doesn't look for the committed offset.
            state.seek(0)
            state.pause()
        held._topic_partitions = frozenset(partitions)
        subscription._reassignment_in_progress = False
        subscriptions._notify_assignment_waiters()

    coordinator._on_join_prepare, coordinator.reset_generation = prepare_kept, reset_noted
    subscriptions.assign_from_subscribed = assign_in_place


def know_fencing(coordinator: Any) -> None:
    """Have a coordinator take the answer that its static id is another process's for that it is forgotten."""
    ask = coordinator._send_req

    async def ask_known(request: Any) -> Any:
        response = await ask(request)
        if getattr(response, "error_code", None) == FENCED_INSTANCE_ID:
            response.error_code = UnknownMemberIdError.errno
        return response

    coordinator._send_req = ask_known


def stop_joining(coordinator: Any) -> None:
    """Have a coordinator never join again: it waits until it is closed."""

    async def closing(*_: Any) -> None:
        await asyncio.wait([coordinator._closing])

    coordinator.ensure_active_group = closing


def forgotten_static(instance_id: str) -> LostMembershipError:
    """Return the error of a static member that the group has forgotten.

    Two processes with one static id take the membership from each other every few seconds, and their heartbeats
    don't carry the id: an unknown member id after a successful join is the only sign.
    """
    return LostMembershipError(
        f"consumer_group_instance_id={instance_id!r} is unknown to the group: either another "
        "process uses the same id, or this one didn't answer for a session. Give each worker an id of its "
        "own, and restart this one"
    )


def has_ended(task: asyncio.Task[None] | None) -> bool:
    """Return whether a coordination task existed and has ended; its error counts as seen, as others report it."""
    if task is None or not task.done():
        return False
    if not task.cancelled():
        task.exception()
    return True
