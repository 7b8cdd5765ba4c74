"""`timers list | drop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from actors._faust.setup import Setup
from actors.admin.host import definition_of
from actors.admin.operation import Answer, Caller, Operation, option
from actors.admin.parked.control import Control
from actors.admin.parked.reader import (
    Entry,
    ParkedError,
    ParkedQueue,
    ParkedReader,
    Timer,
    What,
    chosen,
    key_json,
    wanted_keys,
)
from actors.declare.definition import ActorDefinition
from actors.errors import UsageError
from actors.runtime.clock import machine_ms
from stores._core.printable import moment

KINDS: tuple[What, ...] = ("timer",)
_COLUMNS = ("actor", "#partition", "key", "timer", "due", "#every ms", "clock", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTimers(Operation):
    """List the timers that are set, from the committed changelogs: of each key in order of time.

    `clock` is `wall`, or `stream` for a timer by stream time. The whole changelog of the timers is read.
    """

    command: ClassVar[str] = "timers list"
    is_reading: ClassVar[bool] = True
    actor: str | None = option("Of this actor only.", metavar="NAME")
    key: str | None = option("Of this key only, of the actor that is named.")
    limit: int = option("Of how many keys.", 1_000, least=1)
    after: str | None = option("Continue behind the key with this cursor.", metavar="CURSOR")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        if self.key is not None and self.actor is None:
            raise UsageError("--key needs --actor")
        definitions = list(setup.app.actors.values()) if self.actor is None else [_timed(setup, self.actor)]
        is_cut = False
        async with ParkedReader.connect(setup) as reader:
            if self.key is None:
                lines, is_cut = await reader.page(definitions, limit=self.limit, after=self.after, kinds=KINDS)
            else:
                lines = await _lines_of_key(reader, definitions[0], self.key)
        timers = [(line, entry) for line in lines for entry in sorted(line.entries, key=_due_ms)]
        return Answer(
            content=[_json(line, entry) for line, entry in timers],
            table=(f"Timers of {setup.app.conf.id}", _COLUMNS, [_row(*timer) for timer in timers]) if timers else None,
            lines=() if timers else ["no timer is set"],
            remarks=[f"more keys have timers: --after {lines[-1].cursor} lists them"] if is_cut else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTimer(Operation):
    """Drop the timer of KEY that has this ID, so that it never fires; also one that fires every so often.

    KEY and ID are as `timers list` shows them. A timer that is set again has another id.
    """

    command: ClassVar[str] = "timers drop"
    actor: str
    key: str
    id: str
    timeout_s: float = option("How many seconds to wait for the outcome.", 30.0, flag="--timeout")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        definition = _timed(setup, self.actor)
        async with ParkedReader.connect(setup) as reader:
            lines = await _lines_of_key(reader, definition, self.key)
            lines = [line for line in lines if any(entry.id == self.id for entry in line.entries)]
            if not lines:
                raise ParkedError(
                    f"actor {self.actor} has no timer {self.id!r} for key {self.key!r}: it fired, or was dropped "
                    "or set again. See `timers list`"
                )
            control = Control(setup, reader, lines, self.timeout_s)
            await control.drop(self.id)
        (outcome,) = control.outcomes
        where = {"actor": self.actor, "partition": outcome.line.partition, "key": key_json(outcome.line)}
        # Others of the key may have fired meanwhile.
        gone = [_gone(entry) for entry in outcome.line.entries if entry.id == self.id and entry.id in outcome.gone]
        return Answer(
            content={"command": self.verb, **where, "gone": [self.id] * len(gone), "error": outcome.failure},
            lines=gone,
            failure=outcome.failure,
        )


def _gone(entry: Entry) -> str:
    """Return what became of a timer: one that came due meanwhile may have fired before the command was carried out."""
    timer = _timer_of(entry)
    if timer.every_ms is not None or (timer.clock == "wall" and timer.due_ms > machine_ms()):
        return f"dropped: {entry.id}"
    return f"gone: {entry.id}, dropped or fired: it was due at {moment(timer.due_ms)} by the {timer.clock} clock"


def _timed(setup: Setup, actor: str) -> ActorDefinition:
    """Return an actor that has timers.

    Raises:
        ConfigurationError: the app has none of that name.
        ParkedError: it has no timers.
    """
    definition = definition_of(setup.app, actor)
    if definition.timers is None:
        raise ParkedError(f"actor {actor} has no timers: declare it with @app.actor(..., timers=True)")
    return definition


async def _lines_of_key(reader: ParkedReader, definition: ActorDefinition, key: str) -> list[ParkedQueue]:
    lines = await reader.lines([definition], wanted_keys(definition, key), kinds=KINDS)
    return chosen(definition, lines, key, nothing="no timers")


def _timer_of(entry: Entry) -> Timer:
    # An entry that can't be read has no time.
    return entry.timer or Timer(id=entry.id, name=entry.error or "", due_ms=0, every_ms=None, clock="wall")


def _due_ms(entry: Entry) -> int:
    return _timer_of(entry).due_ms


def _json(line: ParkedQueue, entry: Entry) -> dict[str, Any]:
    timer = _timer_of(entry)
    return {
        "actor": line.actor,
        "partition": line.partition,
        "key": key_json(line),
        "timer": timer.name,
        "due_ms": timer.due_ms,
        "every_ms": timer.every_ms,
        "clock": timer.clock,
        "id": entry.id,
        "method": timer.method,
        "cursor": line.cursor,
    }


def _row(line: ParkedQueue, entry: Entry) -> list[str]:
    about = _json(line, entry) | {"key": line.shown_key, "due": moment(_due_ms(entry))}
    about["every ms"] = "-" if about["every_ms"] is None else about["every_ms"]
    return [str(about[column.removeprefix("#")]) for column in _COLUMNS]
