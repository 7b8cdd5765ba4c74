"""Retries, drops, pauses and ends of pauses that were asked for on a page: those under way, and the last that ended.

They run beside the request that asked for them, since an outcome takes as long as the partition's owner does. The pages
show them as they show everything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from actors._core.logs import escaping, text_of
from actors.admin.host import Setup
from actors.admin.parked import commands as admin_commands
from actors.admin.parked.commands import AdminCommand, count_of, failure_of
from actors.admin.parked.reader import ParkedError, ParkedQueue, ParkedReader, What, shown
from actors.declare.definition import ActorDefinition
from actors.web.dashboard.view import Tone
from actors.web.problems import Problem

logger = escaping(logging.getLogger(__name__))

MAX_UNDER_WAY = 8
MAX_KEPT = 20
KEEP_MS = 15 * 60_000
TIMEOUT_S = 30.0

Verb = Literal["retry", "drop", "drop-all"]
_WORDS: dict[Verb, str] = {"retry": "Retry", "drop": "Drop the first", "drop-all": "Drop all"}


@dataclass(frozen=True, slots=True)
class Place:
    """Whose line it is: of an actor's messages or effects, in a partition, of a key as it was sent."""

    definition: ActorDefinition
    what: What
    partition: int
    key: bytes

    async def line(self, reader: ParkedReader) -> ParkedQueue:
        """Read the line from its changelog.

        Raises:
            ParkedError: nothing is parked there.
            BrokerUnavailableError: no broker answers.
        """
        line = await reader.line(self.definition, self.what, self.partition, self.key)
        if line is not None:
            return line
        raise ParkedError(
            f"nothing of key {shown(self.key)} is parked in partition {self.partition} of {self.definition.name} any "
            "more: somebody may have dealt with it already"
        )


@dataclass(slots=True)
class Action:
    """What somebody asked for. Times are Unix milliseconds."""

    text: str
    asked_by: str
    began_ms: int
    tone: Tone = "busy"
    outcome: str = "under way"
    ended_ms: int | None = None

    def ended(self, tone: Tone, outcome: str) -> None:
        """Note the outcome."""
        self.tone, self.outcome, self.ended_ms = tone, " ".join(outcome.split()), _now_ms()
        logger.info("%s, asked for by %s: %s", self.text, self.asked_by, self.outcome)


class Actions:
    """What was asked for at this worker's pages."""

    def __init__(self) -> None:
        self._kept: deque[Action] = deque(maxlen=MAX_KEPT)
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def recent(self) -> list[Action]:
        """Those under way, and those that ended within a quarter of an hour; the newest first."""
        since_ms = _now_ms() - KEEP_MS
        return [action for action in self._kept if action.ended_ms is None or action.ended_ms > since_ms]

    def start(self, setup: Setup, place: Place, verb: Verb, entry_id: str | None, asked_by: str) -> Action:
        """Begin with it; `Problem` if too many are under way."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise Problem(503, "busy", "Too much is under way", f"{MAX_UNDER_WAY} retries and drops are: wait for one")
        what = f"{_WORDS[verb]}{' of the' if verb != 'retry' else ''} {place.what}s of key {shown(place.key)}"
        text = f"{what} in {place.definition.name}, partition {place.partition}"
        action = self.note(text, asked_by)
        task = asyncio.create_task(self._see_to(action, setup, place, verb, entry_id), name=f"dashboard: {text}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return action

    def note(self, text: str, asked_by: str) -> Action:
        """Return an action that is under way, to be shown with the others."""
        action = Action(text, asked_by, _now_ms())
        self._kept.appendleft(action)
        return action

    async def _see_to(self, action: Action, setup: Setup, place: Place, verb: Verb, entry_id: str | None) -> None:
        try:
            async with ParkedReader.connect(setup) as reader:
                line = await place.line(reader)
                admin_command = AdminCommand(place.definition, line, setup, reader, time.monotonic() + TIMEOUT_S)
                failure = await _carry_out(admin_command, verb, entry_id)
        except asyncio.CancelledError:
            action.ended("warn", "this worker stops: the command may have been given, and takes effect in its turn")
            raise
        except Exception as error:
            # Whatever it is: the page is where somebody waits for it.
            action.ended("bad", text_of(error) or type(error).__name__)
        else:
            action.ended("good" if failure is None else "bad", failure or _outcome(admin_command, verb))

    async def close(self, _: web.Application) -> None:
        """Return up what is under way. May be called twice."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry_out(admin_command: AdminCommand, verb: Verb, entry_id: str | None) -> str | None:
    """Do it; give what failed, None if nothing did."""
    if verb == "retry":
        await admin_commands.retry(admin_command)
        return failure_of(admin_command)
    ids = [entry.id for entry in admin_command.line.entries]
    if verb == "drop":
        if entry_id not in ids:
            raise ParkedError("it isn't parked any more: somebody may have dealt with it already")
        ids = [entry_id]
    await admin_commands.drop(admin_command, ids, is_all=verb == "drop-all")
    missed = sorted(set(ids) - set(admin_command.gone))
    return f"not dropped: {', '.join(missed)}: see the log of the partition's owner" if missed else None


def _outcome(admin_command: AdminCommand, verb: Verb) -> str:
    done = {"retry": "handled" if admin_command.line.what == "message" else "done"}.get(verb, "dropped")
    if admin_command.left is None:
        return f"{len(admin_command.gone)} {done}; nothing of the key is parked any more"
    if admin_command.left.what == "effect" and not admin_command.left.head.is_parked:
        return f"{len(admin_command.gone)} {done}; the next is being called"
    return f"{len(admin_command.gone)} {done}; {count_of(admin_command.left)} still parked"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
