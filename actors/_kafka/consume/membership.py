"""A worker's membership in its group: settings, and how it ends.

aiokafka gives up all partitions when a rebalance begins, and makes a new assignment object at its end. So that a worker
fetches and handles on meanwhile, `Consumer.keep_assignment` changes its coordinator:

- `_on_join_prepare` begins no reassignment, in which `getmany` would wait, if the worker keeps its tasks.
- `assign_from_subscribed` changes the assignment in place: partitions that stay keep positions and fetched records.
- `reset_generation`, which aiokafka calls when the group has forgotten the member, reports that.

After a static member was forgotten, `Consumer.stop_joining` ends its joins: the process that has its id now would be
the next one to be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiokafka.errors import UnknownMemberIdError

from actors._kafka.client import Hook
from actors._kafka.codes import FENCED_INSTANCE_ID
from actors.errors import ActorsError, ConfigurationError

METADATA_AGE_MS = 10_000
"""How soon new partitions of a topic are noticed."""


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

    def options(self) -> dict[str, Any]:
        """Return what every consumer of committed records in a group is made with."""
        return {
            "group_id": self.group,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "session_timeout_ms": self.session_timeout_ms,
            "heartbeat_interval_ms": self.heartbeat_interval_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "max_poll_interval_ms": 2**31 - 1,
            "metadata_max_age_ms": METADATA_AGE_MS,
            "max_partition_fetch_bytes": self.fetch_bytes,
        }


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


class Fencing(Hook):
    """Takes the answer that a static id is another process's, an error unknown to aiokafka, for a forgotten member."""

    def after(self, node: Any, request: Any, response: Any) -> Any:
        if getattr(response, "error_code", None) == FENCED_INSTANCE_ID:
            response.error_code = UnknownMemberIdError.errno
        return response


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
