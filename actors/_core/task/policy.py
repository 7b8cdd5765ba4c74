"""The policy for a message whose handler raises."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from actors._core.backoff import Backoff

Then = Literal["stop", "skip", "park"]
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
        then: "stop" halts the partition in front of the message; "skip" logs it and goes on; "park" sends it to the
            dead-letter topic and keeps it with all later messages of its key, in order, until somebody retries or drops
            it, while other keys go on.

    Examples:
        >>> from datetime import timedelta
        >>> policy = OnError(retries=5, first_wait=timedelta(seconds=1), then="park")
        >>> [policy.wait_s(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 4.0]
    """

    retries: int = 0
    first_wait: timedelta = timedelta(milliseconds=100)
    longest_wait: timedelta = timedelta(seconds=30)
    then: Then = "stop"
    dead_letters: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't be meant.

        Raises:
            ValueError: naming the argument.
        """
        if self.then not in get_args(Then):
            raise ValueError(f"OnError(then={self.then!r}): it is one of {', '.join(get_args(Then))}")
        if self.dead_letters and self.then == "stop":
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

    def wait_s(self, attempts: int) -> float:
        """Return the wait after attempt number `attempts`, counted from 1, in seconds."""
        return Backoff(self.first_wait.total_seconds(), self.longest_wait.total_seconds()).delay_s(attempts)


STOP_ON_ERROR = OnError()
