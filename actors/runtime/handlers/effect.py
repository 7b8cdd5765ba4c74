"""Effects as an app declares them: functions that act outside of Kafka, what they are called with, how a call ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, get_args

import msgspec
import typing_extensions

from actors._core.backoff import Backoff
from actors.runtime.handlers.callables import is_generator

P = typing_extensions.ParamSpec("P", default=...)
R = typing_extensions.TypeVar("R", default=Any)
Repeat: TypeAlias = Literal["until_done", "never"]
LONGEST_RETRY_S = 7 * 86_400.0


class GivenUp(msgspec.Struct, frozen=True, tag="given-up"):
    """The call of an effect that failed for good: what a method of `on_give_up=` gets.

    Attributes:
        effect: the effect's name.
        id: the call's idempotency key, as `ctx.effect` returned it.
        attempts: how many were made.
        error: why the last one failed.
    """

    effect: str
    id: str
    attempts: int
    error: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """A call that is never repeated, and may have taken place or not: what a method of `on_unknown=` gets.

    Attributes:
        effect: the effect's name.
        id: the call's idempotency key, as `ctx.effect` returned it.
        error: why it is unknown.
    """

    effect: str
    id: str
    error: str


@dataclass(frozen=True, slots=True)
class Effect(Generic[P, R]):
    """A function that acts outside of Kafka, as `@app.effect()` makes it. Calling it calls the function.

    The arguments of a recorded call become JSON and come back from it. A parameter that is annotated with a type that
    msgspec knows (a Struct, a dataclass, datetime, Decimal, bytes, …) gets a value of it; any other gets plain JSON
    data: dicts, lists, text, numbers, booleans and None.

    A plain function runs in a thread, which can't be stopped: one that is over its time goes on, perhaps beside its
    next attempt. Give its own calls timeouts that are shorter.

    Attributes:
        function: called as `function(call, *args, **kwargs)` with an `EffectCall`; async or plain.
        name: how it is called in the outbox.
        attempts: after so many failed ones the call is given up; 0 for never.
        first_wait: before the second attempt; doubled for each further one.
        longest_wait: no wait is longer.
        timeout: of one attempt.
        repeat: "never" for a call that is made once at most: its start is committed before it.
        on_give_up: the method of the actor that gets the `GivenUp` of a call; without it the call is parked.
        on_unknown: likewise, with the `Unknown` of a call that is never repeated.
        permits: gives its calls their permits, over all workers: see `actors.limits.Limit`; None if it has no limits.

    Examples:
        >>> from actors import App, Context, EffectCall
        >>> from actors.testing import ActorTestDriver
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> orders = app.topic("orders", key_type=str, value_type=str)
        >>> @app.effect(attempts=10)
        ... def ship(call: EffectCall, order: str) -> None:
        ...     raise NotImplementedError("calls the carrier, with call.idempotency_key")
        >>> @app.actor(orders, effects=[ship])
        ... async def take(ctx: Context, order: str) -> None:
        ...     ctx.effect(ship, order)
        >>> shipped = []
        >>> with ActorTestDriver(app, effects={ship: lambda call, order: shipped.append(order)}) as driver:
        ...     driver.send(orders, key="ada", value="hat")
        >>> shipped
        ['hat']
    """

    function: Callable[P, R]
    name: str
    attempts: int = 10
    first_wait: timedelta = timedelta(seconds=1)
    longest_wait: timedelta = timedelta(minutes=5)
    timeout: timedelta = timedelta(seconds=30)
    repeat: Repeat = "until_done"
    on_give_up: str | None = None
    on_unknown: str | None = None
    permits: Any = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ValueError: naming the argument.
        """
        if not callable(self.function):
            raise ValueError(f"function={self.function!r}: it can't be called")  # noqa: TRY004  one error for all
        if is_generator(self.function):
            raise ValueError("it has a `yield`, so calling it runs nothing of it: return a value in its place")
        if _takes_nothing(self.function):
            raise ValueError(f"it takes no call: write `async def {self.name}(call: EffectCall) -> None:`")
        if not (isinstance(self.name, str) and self.name):
            raise ValueError(f"name={self.name!r}: it is text, and not empty")
        if not isinstance(self.attempts, int) or self.attempts < 0:
            raise ValueError(f"attempts={self.attempts!r}: it is how many, 0 for as many as it takes")
        if not timedelta(0) < self.first_wait <= self.longest_wait:
            raise ValueError(
                f"first_wait={self.first_wait}, longest_wait={self.longest_wait}: waits are more than nothing, and the "
                "first is not longer than the longest"
            )
        if self.timeout <= timedelta(0):
            raise ValueError(f"timeout={self.timeout}: it is more than nothing")
        self._check_repeat()

    def _check_repeat(self) -> None:
        if self.repeat not in get_args(Repeat):
            raise ValueError(f"repeat={self.repeat!r}: it is {' or '.join(map(repr, get_args(Repeat)))}")
        if self.repeat == "never" and self.attempts != 1:
            raise ValueError(f'attempts={self.attempts}: a call with repeat="never" has one: leave attempts out')
        if self.repeat != "never" and self.on_unknown is not None:
            raise ValueError('on_unknown= is for repeat="never": any other call is made again')

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, at once: for tests of it. Handlers use `ctx.effect`."""
        return self.function(*args, **kwargs)

    def wait_s(self, attempts: int) -> float:
        """Return the wait after attempt number `attempts`, counted from 1, in seconds."""
        return Backoff(self.first_wait.total_seconds(), self.longest_wait.total_seconds()).delay_s(attempts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: `error` None for a success, whose result is handled if `value` isn't None.

    With `is_start` it is to begin, as soon as that is committed; with `is_unknown` nobody knows how it ended.
    """

    value: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    error: str | None = None
    is_final: bool = False
    cause: BaseException | None = None
    is_start: bool = False
    is_unknown: bool = False

    def is_last(self, effect: Effect, attempts: int) -> bool:
        """Return whether a call is given up after this failure, attempt number `attempts`."""
        return self.is_final or 0 < effect.attempts <= attempts


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return False


def retry_after_s(error: BaseException | None) -> float:
    """Return how long an error says to wait in its `retry_after`, seconds or a timedelta; 0 if it doesn't say.

    Text is taken as the header `Retry-After` has it, in seconds.
    """
    after = getattr(error, "retry_after", None)
    after = int(after) if isinstance(after, str) and after.isdecimal() else after
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    return float(seconds) if isinstance(seconds, int | float) and 0 < seconds <= LONGEST_RETRY_S else 0.0
