"""Makes all checks. One that fails because no broker answers leaves the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from actors._faust.startup.refusal import REACH
from actors._kafka.admin.control import ControlPlane
from actors.cli.doctor import brokers, machine, offsets
from actors.cli.doctor.brokers import Brokers
from actors.cli.doctor.report import Level, Result, sort
from actors.errors import ActorsError, BrokerRefusedError, TaskError

if TYPE_CHECKING:
    from actors._faust.setup import Setup

ON_BROKERS: Mapping[str, tuple[Callable[[Brokers], AsyncIterator[Result]], ...]] = {
    "brokers": (brokers.versions,),
    "permissions": (brokers.permissions,),
    "topics": (brokers.topics,),
    "clock": (brokers.clock,),
    "offsets": (offsets.offsets,),
    "retention": (offsets.retention,),
    "group": (brokers.group,),
    "files": (brokers.files,),
}
CHECKS = ("settings", "folder", "disk", "java", *ON_BROKERS)
"""The names of all checks."""


async def examine(setup: Setup) -> list[Result]:
    """Make all checks; return what they say, the worst first. A check without a result is in order."""
    results = [
        *machine.settings(setup),
        *machine.folder(setup),
        *machine.disk(setup),
        *machine.files(setup),
        *machine.java(),
    ]
    try:
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            at = Brokers(setup, control)
            for name, checks in ON_BROKERS.items():
                for check in checks:
                    results += await _made(name, check, at)
    except ActorsError as error:
        results.append(Result("brokers", Level.UNKNOWN, str(error), _remedy(error)))
    return sort(results)


async def _made(name: str, check: Callable[[Brokers], AsyncIterator[Result]], at: Brokers) -> list[Result]:
    found = []
    try:
        # What was found before the brokers went away stays.
        async for one in check(at):
            found.append(one)  # noqa: PERF401
    except ActorsError as error:
        found.append(Result(name, Level.UNKNOWN, f"it can't be checked: {error}", _remedy(error)))
    return found


def _remedy(error: ActorsError) -> str:
    """Return the remedy for an error that kept a check from running."""
    if isinstance(error, BrokerRefusedError):
        return "Correct what it names, and run `faust -A APP doctor` again"
    if isinstance(error, TaskError) and error.missing:
        return "Give the workers' user this permission, and run `faust -A APP doctor` again"
    return f"{REACH}, and run `faust -A APP doctor` again"
