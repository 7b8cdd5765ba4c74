"""`ActorTestDriver`: tests of an app without a broker, in virtual time.

driver.py         the driver: what a test calls
machine.py        the product's worker on a Kafka cluster in memory: its life and its failures
driving.py        what it gives that worker beside the fakes of the ports: disk, consumer, topics, the program's client
looking.py        what a test sees: records, parked messages, answers of queries
fixtures.py       a fixture for pytest
fakes/cluster.py  the cluster: log.py (partitions), transactions.py (their coordinator), direct.py (network)
fakes/ports.py    fakes of the ports on it: a task's log, the group's view, logs, owners, clock; requests.py, views.py
fakes/registry.py  a schema registry
fakes/processes.py   an event loop in virtual time, and processes on it that can be killed

`tests/sim` adds faults to the fakes.
"""

from actors.runtime.virtual_time import StuckError
from actors.testing.driver import ActorTestDriver
from actors.testing.fakes.registry import FakeRegistry
from actors.testing.looking import ParkedHere, Sent

__all__ = ["ActorTestDriver", "FakeRegistry", "ParkedHere", "Sent", "StuckError"]
