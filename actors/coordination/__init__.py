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
    LeaseLostError,
    LockMismatchError,
    NotHolderError,
    ProtocolError,
    TtlError,
    UnknownLockError,
)
from actors.coordination.messages import View
from actors.coordination.service.coordinator import Coordinator, coordination

__all__ = [
    "BusyError",
    "ConflictError",
    "Coordination",
    "CoordinationError",
    "CoordinationTimeoutError",
    "Coordinator",
    "Lease",
    "LeaseLostError",
    "Leasing",
    "LockMismatchError",
    "NotHolderError",
    "ProtocolError",
    "Session",
    "Sharing",
    "SyncCoordination",
    "SyncLease",
    "TtlError",
    "UnknownLockError",
    "View",
    "coordination",
]
