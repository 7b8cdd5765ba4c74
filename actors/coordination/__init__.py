"""Locks, leaders, shared configuration, groups and barriers on Kafka, with fencing tokens."""

from actors.coordination.client.client import Coordination
from actors.coordination.client.leases import Lease, Leasing
from actors.coordination.client.sharing import Session, Sharing
from actors.coordination.client.sync import SyncCoordination, SyncLease
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
from actors.coordination.fences.fencing import Fence, FencedResource, FencedSqlite
from actors.coordination.fences.log import FencedRecord, FenceState
from actors.coordination.fences.topic import FencedReader, FencedTopic
from actors.coordination.messages import View
from actors.coordination.service.coordinator import Coordinator, coordination

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
