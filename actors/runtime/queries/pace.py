"""Shares the event loop between long work for queries and everything else that the worker does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from actors.ports import Clock

T = TypeVar("T")

SHARE = 0.25
"""Which part of a busy event loop's time long work takes, all of it together."""
SLICE_S = 0.005
STEP_S = 0.001
AT_ONCE = 8
"""How many long answers are read or encoded at a time: each holds what it read, and reads without a break."""


class Pace:
    """Runs long work a slice at a time, one piece of work behind the other, with rests in between.

    A rest ends when the event loop had nothing else to do, or has had its share. `places` limits how many pieces of
    work are begun and not ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self._clock = clock
        self._turn = asyncio.Lock()
        self._rests_until_s = float("-inf")

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Have later turns wait for the time that is taken in the block."""
        began_s = self._clock.monotonic()
        try:
            yield
        finally:
            now_s = self._clock.monotonic()
            self._rests_until_s = max(now_s, self._rests_until_s) + (now_s - began_s) * (1 - SHARE) / SHARE

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, which is the block. Nothing may be awaited in it."""
        async with self._turn:
            await self._rest()
            with self.charged():
                yield

    async def run(self, steps: Iterable[T]) -> list[T]:
        """Return all that an iterable makes, in as many turns as that takes."""
        made: list[T] = []
        left = iter(steps)
        while True:
            async with self.turn():
                ends_s = self._clock.monotonic() + SLICE_S
                for step in left:
                    made.append(step)
                    if self._clock.monotonic() >= ends_s:
                        break
                else:
                    return made

    async def _rest(self) -> None:
        # Short work isn't worth a rest, until it adds up.
        if self._rests_until_s - self._clock.monotonic() <= SLICE_S:
            return
        while self._rests_until_s > self._clock.monotonic():
            began_s, used_s = self._clock.monotonic(), time.thread_time()
            await self._clock.sleep(STEP_S)
            slept_s = self._clock.monotonic() - began_s
            if slept_s < 2 * STEP_S and time.thread_time() - used_s < slept_s / 2:
                self._rests_until_s = float("-inf")
