"""Carries requests from simulated processes to the simulated cluster, and loses, delays and repeats them.

What can happen to a request:

    answered      it takes place, and the answer comes
    lost          it doesn't take place; the client learns of a broken connection, at once or after its timeout
    answer lost   it takes place; the client learns the same
    late          as answer lost, but it takes place long after the client was told, or gave up, or died
    doubled       as answer lost, and it takes place a second time later
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from actors.testing.fakes.errors import NoAnswerError, RefusedError
from tests.sim.fakes.loop import Process, current_process

T = TypeVar("T")

FATES = ("lost", "answer lost", "late", "doubled")
QUICK_ERROR_S = 0.002
POLL = "Fetch"


@dataclass(slots=True)
class Conditions:
    """How the network is.

    Attributes:
        latency_s: least and longest way of a request or an answer.
        odds: by fate, the probability that a request has it.
        late_s: the longest time by which a late request is late.
        timeout_s: when a client gives up.
    """

    latency_s: tuple[float, float] = (0.0005, 0.003)
    odds: Mapping[str, float] = field(default_factory=dict)
    late_s: float = 20.0
    timeout_s: float = 3.0


class Network:
    """The network between processes and one cluster.

    Attributes:
        conditions: may be changed at any time.
        planned: fates of the next requests by (process name, request name); each is used once.
        cut_off: names of the processes whose requests are all lost.
        trace: called with a line for everything that goes wrong.
    """

    def __init__(self, random: Random) -> None:
        self.conditions = Conditions()
        self.planned: dict[tuple[str, str], str] = {}
        self.cut_off: set[str] = set()
        self.trace: Callable[[str], None] | None = None
        self._random = random
        self._context = Context()

    async def ask(self, request: str, function: Callable[..., Any], *args: Any) -> Any:
        """Have the cluster run `function(*args)`, and give what it gives; a future is waited for over there.

        The process is at the steps "`request` to send" and "`request` answered" before and after it.

        Raises:
            RefusedError: the broker's answer.
            NoAnswerError: none came.
        """
        process = current_process()
        if process is not None:
            await process.reach(f"{request} to send")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        low, high = self.conditions.latency_s
        there_s = self._random.uniform(low, high)
        fate = self._fate(request, process)
        if fate == "answered":
            loop.call_later(there_s, self._deliver, answer, function, args, context=self._context)
        else:
            self._mishap(fate, request, there_s, answer, function, args)
        try:
            return await answer
        finally:
            if process is not None:
                await process.reach(f"{request} answered")

    def _fate(self, request: str, process: Process | None) -> str:
        name = "" if process is None else process.name
        if name in self.cut_off:
            return "lost"
        if self.planned:
            planned = self.planned.pop((name, request), None)
            if planned is not None:
                return planned
        # A lost fetch is only slow: the client asks again by itself.
        if self.conditions.odds and request != POLL:
            drawn = self._random.random()
            for fate in FATES:
                drawn -= self.conditions.odds.get(fate, 0.0)
                if drawn < 0:
                    return fate
        return "answered"

    def _mishap(
        self,
        fate: str,
        request: str,
        there_s: float,
        answer: asyncio.Future[Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        loop, random = asyncio.get_running_loop(), self._random
        error_s = QUICK_ERROR_S + there_s if random.random() < 0.5 else self.conditions.timeout_s
        late_s = random.uniform(0.0, self.conditions.late_s) ** random.choice((1.0, 0.3))
        if self.trace is not None:
            self.trace(f"{request}: {fate}, error after {error_s:.3f} s, late {late_s:.3f} s")
        takes_place = {"lost": (), "answer lost": (there_s,), "late": (late_s,), "doubled": (there_s, late_s)}[fate]
        for after_s in takes_place:
            loop.call_later(after_s, _deliver_unheard, function, args, context=self._context)
        loop.call_later(error_s, _fail, answer, NoAnswerError(request), context=self._context)

    def _deliver(self, answer: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = function(*args)
        except RefusedError as error:
            self._reply(answer, None, error)
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(lambda done: self._reply_done(answer, done), context=self._context)
        else:
            self._reply(answer, result, None)

    def _reply_done(self, answer: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        error = done.exception()
        self._reply(answer, None if error is not None else done.result(), error)

    def _reply(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        low, high = self.conditions.latency_s
        back_s = self._random.uniform(low, high)
        loop = asyncio.get_running_loop()
        if error is not None:
            loop.call_later(back_s, _fail, answer, error, context=self._context)
        else:
            loop.call_later(back_s, _succeed, answer, result, context=self._context)


def _deliver_unheard(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except RefusedError:
        return
    if isinstance(result, asyncio.Future):
        result.add_done_callback(lambda done: done.exception())


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
        # The process may be dead or have given up: nobody may be left to take it.
        answer.exception()


async def retried(ask: Callable[[], Awaitable[T]], *, retry_s: float, deadline_s: float) -> T:
    """Ask again after a retriable refusal or no answer, until the loop's time is `deadline_s`.

    Raises:
        RefusedError, NoAnswerError: the last one.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await ask()
        except RefusedError as error:
            if not error.is_retriable or loop.time() >= deadline_s:
                raise
        except NoAnswerError:
            if loop.time() >= deadline_s:
                raise
        await asyncio.sleep(retry_s)
