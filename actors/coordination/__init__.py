"""Locks, leaders, shared configuration, groups and barriers on Kafka, with fencing tokens."""

from actors.coordination.client import Coordination
from actors.coordination.errors import (
    BusyError,
    ConflictError,
    CoordinationError,
    CoordinationTimeoutError,
    FenceLostError,
    LeaseLostError,
    LockMismatchError,
    NotHolderError,
    ProtocolError,
    StaleTokenError,
    TtlError,
    UnknownLockError,
)
from actors.coordination.fence_log import FencedRecord, FenceState
from actors.coordination.fenced_topic import FencedReader, FencedTopic
from actors.coordination.fencing import Fence, FencedResource, FencedSqlite
from actors.coordination.leases import Lease, Leasing
from actors.coordination.messages import View
from actors.coordination.service import Coordinator, coordination
from actors.coordination.sharing import Session, Sharing
from actors.coordination.sync import SyncCoordination, SyncLease

__all__ = [
    "BusyError",
    "ConflictError",
    "Coordination",
    "CoordinationError",
    "CoordinationTimeoutError",
    "Coordinator",
    "Fence",
    "FenceLostError",
    "FenceState",
    "FencedReader",
    "FencedRecord",
    "FencedResource",
    "FencedSqlite",
    "FencedTopic",
    "Lease",
    "LeaseLostError",
    "Leasing",
    "LockMismatchError",
    "NotHolderError",
    "ProtocolError",
    "Session",
    "Sharing",
    "StaleTokenError",
    "SyncCoordination",
    "SyncLease",
    "TtlError",
    "UnknownLockError",
    "View",
    "coordination",
]
