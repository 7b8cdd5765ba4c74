"""`faust -A APP doctor`: whether an app can run here, and what may hurt it later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from actors.cli.doctor.examine import CHECKS, examine
from actors.cli.doctor.report import Level, Result, exit_code
from actors.cli.session import Session, with_session
from actors.runtime.observe.status import ENGINE
from stores._core.printable import counted


def _count(level: Level, results: Sequence[Result]) -> str:
    count = sum(one.level is level for one in results)
    return f"{count} unknown" if level is Level.UNKNOWN else counted(count, level.value)


@click.command("doctor")
@with_session
def doctor(session: Session) -> None:
    """Check the brokers, the app's topics and permissions, the group's offsets, and this machine.

    Each finding is one line, with what to do about it. Nothing is changed; to compare clocks, a record without meaning
    is appended to the leader registry, as workers do. Exit code: 0 without a finding, 1 with errors or warnings, 2 if
    a check couldn't be made, so that there may be more. Notes are no findings.
    """
    results = asyncio.run(examine(session.setup))
    if session.as_json:
        rows = [
            {"check": one.check, "level": one.level.value, "what": one.what, "remedy": one.remedy or None}
            for one in results
        ]
        session.say_json({"checks": list(CHECKS), "results": rows, "engine": ENGINE, "exit_code": exit_code(results)})
    else:
        for one in results:
            session.say(str(one))
        counts = ", ".join(_count(level, results) for level in Level)
        session.say(f"{len(CHECKS)} checks: {counts}; the engine is {ENGINE}")
    if code := exit_code(results):
        raise click.exceptions.Exit(code)
