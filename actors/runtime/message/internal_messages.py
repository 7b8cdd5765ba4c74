"""Messages of a handler besides input records: a timer, an effect's result, a message that was parked.

An internal message is handled like an input record: in a savepoint of its own, and in the next commit. It stands for an
entry of a store. `consume` removes that entry in the same commit, so the message is handled once or not at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.message.context import Context


@dataclass(slots=True)
class InternalRecord:
    """The record that an internal message's context has.

    Attributes:
        id: what identifies the message for whoever sees it twice; by default its topic, partition and offset.
        timer: the timer's name if it is one.
        tag: what its id has behind the topic's name if that is made of topic, partition and offset.
        what: what its handler is called by, for people; "" if its key says enough.
        is_input: whether it is an input record that waited: its timestamp is one of the input.
        method: the private method that it calls, with its value as arguments; None for the actor's handler.
        has_event_time: whether its timestamp is event time and not the clock's, as that of a close and of a timer by
            stream time; those of input records are.
        is_dropped: whether its handler wasn't called, because it is too late for the actor's windows.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    id: str | None = None
    timer: str | None = None
    tag: str = ""
    what: str = ""
    is_input: bool = False
    has_event_time: bool = False
    method: str | None = None
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class InternalMessage:
    """A call of the handler that no input record asks for.

    Attributes:
        record: in the record's place.
        consume: called first, with the message's context: takes the message's entry out of its store, whatever the
            handler does then; returns whether there is still something to handle.
        handled: called when the message is handled, and what it led to goes with the next commit. It isn't called for a
            message that failed, or that is left when its task ends: that one stays in hand, so no commit passes it.
        what: the message for people, as in "timer 'remind'".
        handle: called in the place of the actor's handler; such a message can't be parked.
        source: where it came from; None for the actor's first input.
    """

    record: InternalRecord
    consume: Callable[[Context], bool]
    handled: Callable[[], None]
    what: str
    handle: Callable[[Context], Awaitable[None]] | None = None
    source: TopicPartition | None = None


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


@mypyc_attr(allow_interpreted_subclasses=True)
class Punctuator:
    """A source of internal messages, such as timers: asked between input records, from a takeover to the next.

    A subclass overrides what it needs beside `wait_s` and `take`.
    """

    @property
    def is_busy(self) -> bool:
        """True while something runs that will lead to an internal message soon."""
        return False

    def wait_s(self) -> float:
        """Return the seconds until an internal message is due; 0 when one is due now, infinity when none is known."""
        raise NotImplementedError

    def take(self) -> Sequence[InternalMessage]:
        """Return due messages, a limited number at once. A message isn't returned again while it is in hand."""
        raise NotImplementedError

    def before_commit(self) -> None:
        """Write what goes with every commit, into the task's shared state."""

    def committed(self) -> None:
        """Note that all that was handled so far is committed."""

    async def leave(self) -> None:
        """End what runs in the background; write what came of it, for the next owner, into the task's shared state."""

    async def close(self) -> None:
        """End what runs in the background. May be called twice."""


class DueMessages:
    """The due messages of all punctuators of a task.

    Messages that were taken wait here while records have their turns. Nothing more is taken before they are handled, so
    a punctuator that always has more doesn't keep the others from theirs.
    """

    def __init__(self, punctuators: Iterable[Punctuator]) -> None:
        self.punctuators = list(punctuators)
        self._taken: deque[InternalMessage] = deque()

    def __iter__(self) -> Iterator[InternalMessage]:
        """Hand out what was taken, in the order in which it came due."""
        while self._taken:
            yield self._taken.popleft()

    @property
    def is_busy(self) -> bool:
        """Return whether something waits here, or will come due soon."""
        return bool(self._taken) or any(punctuator.is_busy for punctuator in self.punctuators)

    def wait_s(self) -> float:
        """Return the seconds until something is due; 0 while something waits here."""
        return 0.0 if self._taken else min((one.wait_s() for one in self.punctuators), default=math.inf)

    def take(self) -> bool:
        """Take what is due, unless something waits here; tell whether there was anything."""
        if self._taken:
            return True
        was_due = False
        for punctuator in self.punctuators:
            if punctuator.wait_s() <= 0.0:
                was_due = True
                self._taken.extend(punctuator.take())
        return was_due

    def before_commit(self) -> None:
        """Call `before_commit` of all punctuators."""
        for punctuator in self.punctuators:
            punctuator.before_commit()

    def committed(self) -> None:
        """Call `committed` of all punctuators."""
        for punctuator in self.punctuators:
            punctuator.committed()

    async def leave(self) -> None:
        """Call `leave` of all punctuators."""
        for punctuator in self.punctuators:
            await punctuator.leave()

    async def close(self) -> None:
        """Call `close` of all punctuators."""
        for punctuator in self.punctuators:
            await punctuator.close()
