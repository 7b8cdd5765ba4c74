"""The operations of the lock service: `locks list | show | break | set`.

service.py   the app's service: whether it has one, and a client for the time of an operation
reading.py   what is committed, from the service's changelog: works when no worker runs
text.py      names, values and durations for people
locks.py, breaking.py, writing.py   the operations: those that read, and those that ask the service
"""

from __future__ import annotations

from actors.admin.operation import Operation
from actors.coordination.cli.breaking import BreakLock
from actors.coordination.cli.locks import ListLocks, ShowName
from actors.coordination.cli.writing import SetNode

OPERATIONS: tuple[type[Operation], ...] = (BreakLock, ListLocks, SetNode, ShowName)
