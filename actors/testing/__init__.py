"""A Kafka cluster in memory, fakes of the runtime's ports, and virtual time: exactly once can be tested in no time.

loop.py           an event loop in virtual time; processes that can be stopped, woken and killed at any await
log.py            a partition's log: transactions' markers, last stable offset, compaction
transactions.py   the transaction coordinator
group.py          the group coordinator
cluster.py        all of these together
network.py        requests that are lost, late, doubled
ports.py          fakes of the ports: a task's log, the group's view, logs, owners, clock
source.py         the fake of the worker's consumer
disk.py           stores that outlive their process
driver.py         for tests of an app: its actors on all of these
looking.py        what such a test sees: records, parked messages, answers of queries
"""

from actors.replay.virtual_time import StuckError
from actors.testing.driver import ActorTestDriver
from actors.testing.fakes.cluster import SimKafka, Topic
from actors.testing.fakes.errors import LostMembershipError, RefusedError
from actors.testing.fakes.log import Decision, PartitionLog, StoredRecord, Transaction, fold
from actors.testing.fakes.ports import (
    FakeClock,
    FakeGroupView,
    FakeLogs,
    FakeOrderedLog,
    FakeOwners,
    FakeTaskLog,
    encode_owner,
)
from actors.testing.fakes.requests import FakeRequests
from actors.testing.fakes.views import FakeTopicLogs
from actors.testing.looking import ParkedHere, Sent
from tests.sim.fakes.disk import Disk, DiskStore, Files
from tests.sim.fakes.group import Group
from tests.sim.fakes.loop import Process, ProcessDiedError, VirtualLoop, current_process
from tests.sim.fakes.network import Conditions, Network
from tests.sim.fakes.source import FakeGroupSettings, FakeSource

__all__ = [
    "ActorTestDriver",
    "Conditions",
    "Decision",
    "Disk",
    "DiskStore",
    "FakeClock",
    "FakeGroupSettings",
    "FakeGroupView",
    "FakeLogs",
    "FakeOrderedLog",
    "FakeOwners",
    "FakeRequests",
    "FakeSource",
    "FakeTaskLog",
    "FakeTopicLogs",
    "Files",
    "Group",
    "LostMembershipError",
    "Network",
    "ParkedHere",
    "PartitionLog",
    "Process",
    "ProcessDiedError",
    "RefusedError",
    "Sent",
    "SimKafka",
    "StoredRecord",
    "StuckError",
    "Topic",
    "Transaction",
    "VirtualLoop",
    "current_process",
    "encode_owner",
    "fold",
]
