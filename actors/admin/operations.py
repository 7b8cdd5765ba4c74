"""The table of operations: what the command line, HTTP and the dashboard offer."""

from __future__ import annotations

from actors.admin.forget import Forget
from actors.admin.operation import Operation
from actors.admin.parked.operations import DropParked, DropStopped, ListParked, RetryParked, RetryStopped, ShowParked
from actors.admin.pausing import PauseActor, ReleaseFeed, ResumeActor
from actors.admin.timers import DropTimer, ListTimers

OPERATIONS: tuple[type[Operation], ...] = (
    DropParked,
    DropStopped,
    DropTimer,
    Forget,
    ListParked,
    ListTimers,
    PauseActor,
    ReleaseFeed,
    ResumeActor,
    RetryParked,
    RetryStopped,
    ShowParked,
)
