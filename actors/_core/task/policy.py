"""The policy for a message whose handler raises."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from actors._core.backoff import Backoff

Then = Literal["stop", "skip", "park"]
Errors = tuple[type[Exception], ...]
Misplaced = Literal["stop", "warn"]
"""The policy for a record in another partition than its key's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError:
    """The policy of an actor for a message whose handler raises.

    Nothing that a failed attempt wrote or sent remains, and attempts aren't counted across restarts.

    Attributes:
        retries: how many more times the handler is called. A message that doesn't decode isn't tried again.
        first_wait: before the first retry; doubled for each further one.
        longest_wait: no wait is longer.
        dead_letters: with "skip": what is passed over goes to the dead-letter topic too. What is parked always does, if
            it fits there.
        retry: the classes of errors that are tried again; all when left out.
        then: "stop" halts the partition in front of the message; "skip" logs it and goes on; "park" sends it to the
            dead-letter topic and keeps it with all later messages of its key, in order, until somebody retries or drops
            it, while other keys go on.
        asked: the same for messages whose sender waits for an answer, which is the error; by default as `then`, but
            "skip" in place of "stop": who may ask can't halt a partition.
        skip: the classes of errors for which it is "skip", whatever `then` and `asked` are.
        park: those for which it is "park".
        reject: those that refuse the message as `Rejected` does: it is handled, and an asker gets `AskRejectedError`.

    A class of errors stands for its subclasses too; `reject` goes before `skip`, `skip` before `park`.

    Examples:
        >>> from datetime import timedelta
        >>> policy = OnError(retries=5, first_wait=timedelta(seconds=1), then="park")
        >>> [policy.wait_s(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 4.0]
        >>> policy = OnError(reject=(ValueError,), retries=3, retry=(ConnectionError,), park=(LookupError,))
        >>> policy.then_for(KeyError("hat"), is_asked=False), policy.then_for(OSError(), is_asked=True)
        ('park', 'skip')
    """

    retries: int = 0
    first_wait: timedelta = timedelta(milliseconds=100)
    longest_wait: timedelta = timedelta(seconds=30)
    then: Then = "stop"
    dead_letters: bool = False
    asked: Then | None = None
    reject: Errors = ()
    retry: Errors = ()
    skip: Errors = ()
    park: Errors = ()

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ValueError: naming the argument.
        """
        for name, then in (("then", self.then), ("asked", self.asked or self.then)):
            if then not in get_args(Then):
                raise ValueError(f"OnError({name}={then!r}): it is one of {', '.join(get_args(Then))}")
        for name in ("reject", "retry", "skip", "park"):
            _check_errors(name, getattr(self, name))
        if self.retry and not self.retries:
            raise ValueError(f"OnError(retry={_names(self.retry)}): say how often, as in retries=5")
        if self.dead_letters and self.then == "stop" and self.asked != "skip" and not self.skip:
            raise ValueError('OnError(then="stop", dead_letters=True): a message that stops its partition stays there')
        if self.retries < 0:
            raise ValueError(f"OnError(retries={self.retries}): it is how many more times, so not negative")
        for name in ("first_wait", "longest_wait"):
            given: object = getattr(self, name)
            if not isinstance(given, timedelta):
                raise ValueError(  # noqa: TRY004  one error for all
                    f"OnError({name}={given!r}): it has to be a timedelta: write {name}=timedelta(seconds={given!r})"
                )
        if not timedelta(0) < self.first_wait <= self.longest_wait:
            raise ValueError(
                f"OnError(first_wait={self.first_wait}, longest_wait={self.longest_wait}): waits are more than "
                "nothing, and the first is not longer than the longest"
            )

    @property
    def parks(self) -> bool:
        """True if some message may be parked."""
        return "park" in (self.then, self.asked) or bool(self.park)

    def retries_for(self, error: BaseException) -> int:
        """Return how often a message that led to an error is tried again."""
        return self.retries if not self.retry or isinstance(error, self.retry) else 0

    def then_for(self, error: BaseException, *, is_asked: bool) -> Then:
        """Return what becomes of a message that led to an error and isn't tried again."""
        if isinstance(error, self.skip):
            return "skip"
        if isinstance(error, self.park):
            return "park"
        if not is_asked:
            return self.then
        return self.asked or ("skip" if self.then == "stop" else self.then)

    def wait_s(self, attempts: int) -> float:
        """Return the wait after attempt number `attempts`, counted from 1, in seconds."""
        return Backoff(self.first_wait.total_seconds(), self.longest_wait.total_seconds()).delay_s(attempts)


def _names(classes: Errors) -> str:
    return "(" + "".join(f"{error.__name__}, " for error in classes).rstrip() + ")"


def _check_errors(name: str, classes: Any) -> None:
    if not isinstance(classes, tuple):
        shown = getattr(classes, "__name__", repr(classes))
        raise ValueError(f"OnError({name}={shown}): it is a tuple of classes of errors: write {name}=({shown},)")  # noqa: TRY004
    for error in classes:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise ValueError(f"OnError({name}=…): {error!r} is no subclass of Exception")  # noqa: TRY004  one error for all


STOP_ON_ERROR = OnError()
