"""What a handler is called for besides input records: a timer, an effect's result, a message that was parked.

A turn is handled like a message, in a savepoint of its own and in the next commit. What it stands for is in a store;
`settle` takes it out there in the same commit, so that it happens once or not at all, whoever dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from actors.errors import UsageError
from actors.runtime.message.context import Context


@dataclass(slots=True)
class Moment:
    """What a turn's context has in the place of a record.

    Attributes:
        id: what identifies the message for whoever sees it twice; by default its topic, partition and offset.
        timer: the timer's name if it is one.
        tag: what its id has behind the topic's name if that is made of topic, partition and offset.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    id: str | None = None
    timer: str | None = None
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of the handler that no input record asks for.

    Attributes:
        moment: in the record's place. Its value None means: there is nothing to handle but `settle`.
        settle: called first with the turn's context; writes what has to be written whatever the handler does, and tells
            whether the turn still has a reason.
        done: called when the turn is handled, or dropped because another owner will see to it.
        what: the turn for people, as in "timer 'remind'".
    """

    moment: Moment
    settle: Callable[[Context], bool]
    done: Callable[[], None]
    what: str


def refuse_keyless(ctx: Context, call: str) -> None:
    """Refuse what would send a message to the key of a message that has none.

    Raises:
        UsageError: naming the call.
    """
    if ctx.key is None and ctx._record.key is None:
        raise UsageError(
            f"ctx.{call}(): the message at {ctx.topic}[{ctx.partition}] offset {ctx.offset} has no key, and what comes "
            "of it is a message to its key: use it for messages with a key, or ctx.tell an actor whose messages have "
            "one"
        )


class Duty(Protocol):
    """What a task has to see to between messages, from its takeover to the next.

    Attributes:
        is_busy: whether something is under way that will lead to a turn soon.
    """

    @property
    def is_busy(self) -> bool:
        """See above."""

    def wait_s(self) -> float:
        """Give in how many seconds there are turns; 0 when there are some now, infinity when nobody knows of any."""

    def take(self) -> Sequence[Turn]:
        """Give what is due, not too much at once. What was given isn't given again before its `done`."""

    def before_commit(self) -> None:
        """Write what goes with every commit, into the task's shared state."""

    def committed(self) -> None:
        """Note that all that was handled so far is committed."""

    async def close(self) -> None:
        """End what runs in the background. May be called twice."""
