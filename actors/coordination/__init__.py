"""Locks, leaders, shared configuration, groups and barriers on Kafka, with fencing tokens."""

from actors.coordination.client import Coordination
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
