"""Operations that were asked for on a page: those under way, and the last that ended.

Retries and drops run beside the request that asked for them, since an outcome takes as long as the partition's owner
does. The pages show them as they show everything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

from aiohttp import web

from actors._core.logs import escaping, text_of
from actors._faust.setup import Setup
from actors.admin.operation import Answer, Caller, Operation
from actors.web.dashboard.view import Tone
from actors.web.problems import Problem

logger = escaping(logging.getLogger(__name__))

MAX_UNDER_WAY = 8
MAX_KEPT = 20
KEEP_MS = 15 * 60_000


@dataclass(slots=True)
class Action:
    """An operation that somebody asked for. Times are Unix milliseconds."""

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
    """The operations that were asked for at this worker's pages."""

    def __init__(self) -> None:
        self._kept: deque[Action] = deque(maxlen=MAX_KEPT)
        self._under_way: set[asyncio.Task[Answer]] = set()

    @property
    def recent(self) -> list[Action]:
        """Actions that run, and that ended within a quarter of an hour; the newest first."""
        since_ms = _now_ms() - KEEP_MS
        return [action for action in self._kept if action.ended_ms is None or action.ended_ms > since_ms]

    def start(self, setup: Setup, operation: Operation, text: str, asked_by: str) -> None:
        """Begin with it; `Problem` if too many are under way."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise Problem(503, "busy", "Too much is under way", f"{MAX_UNDER_WAY} retries and drops are: wait for one")
        task = asyncio.create_task(self.run(setup, operation, text, asked_by), name=f"dashboard: {text}")
        self._under_way.add(task)
        task.add_done_callback(self._end)

    async def run(self, setup: Setup, operation: Operation, text: str, asked_by: str) -> Answer:
        """Carry it out.

        Raises:
            ActorsError: it isn't carried out.
        """
        action = Action(text, asked_by, _now_ms())
        self._kept.appendleft(action)
        try:
            answer = await operation.run(setup, Caller(asked_by))
        except asyncio.CancelledError:
            action.ended("warn", "this worker stops: the command may have been given, and takes effect in its turn")
            raise
        except Exception as error:
            # Whatever it is: the page is where somebody waits for it.
            action.ended("bad", text_of(error) or type(error).__name__)
            raise
        action.ended("good" if answer.failure is None else "bad", answer.failure or answer.lines[-1])
        return answer

    def _end(self, task: asyncio.Task[Answer]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # The page has shown the error.
            task.exception()

    async def close(self, _: web.Application) -> None:
        """Cancel the operations in progress. May be called twice."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
