"""Which tasks are paused, by the records of an app's registry.

A record is about one task, or about all tasks of an actor, those of partitions that don't exist yet included. The
newest record about a task decides, so that one partition of a paused actor can be resumed.

    pause:ACTOR               the actor
    pause:ACTOR/PARTITION     one of its tasks
"""

from __future__ import annotations

import msgspec

PREFIX = b"pause:"
"""Of the records' keys. No task's key has it: names have no colon."""
MAX_AT_MS = 2**53
MAX_BY_CHARS = 200


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says.

    Attributes:
        actor: the actor's name.
        partition: which of its tasks; None all of them.
        is_paused: whether they are paused, or resumed.
        at_ms: when it was written, Unix milliseconds.
        by: who asked for it, for people.
    """

    actor: str
    partition: int | None
    is_paused: bool
    at_ms: int
    by: str


def pause_key(actor: str, partition: int | None) -> bytes:
    """Return the key of a record."""
    name = actor if partition is None else f"{actor}/{partition}"
    return PREFIX + name.encode()


class Pauses:
    """The newest record of each key. Give it all records in the order of their offsets."""

    def __init__(self) -> None:
        self._newest: dict[bytes, tuple[int, Pause]] = {}
        self._count = 0

    def take(self, key: bytes, raw: bytes | None) -> None:
        """Take a record whose key begins with `PREFIX`; the value None removes what it said.

        Raises:
            One of `actors._core.outside.MALFORMED`: it can't be read, and changes nothing.
        """
        if raw is None:
            self._newest.pop(key, None)
            return
        pause = msgspec.json.decode(raw, type=Pause)
        if key != pause_key(pause.actor, pause.partition):
            raise ValueError(f"it is of partition {pause.partition} of actor {pause.actor[:MAX_BY_CHARS]!r}")
        if not (0 <= pause.at_ms <= MAX_AT_MS and len(pause.by) <= MAX_BY_CHARS):
            raise ValueError(f"at_ms isn't from 0 to {MAX_AT_MS}, or by has more than {MAX_BY_CHARS} characters")
        self._count += 1
        self._newest[key] = self._count, pause

    def of(self, actor: str, partition: int) -> Pause | None:
        """Return the record that pauses a task; None if none does."""
        both = (self._newest.get(pause_key(actor, None)), self._newest.get(pause_key(actor, partition)))
        known = [found for found in both if found is not None]
        if not known:
            return None
        _, pause = max(known, key=lambda found: found[0])
        return pause if pause.is_paused else None

    def keys(self, actor: str) -> list[bytes]:
        """Return the keys of all records about an actor."""
        return [key for key, (_, pause) in self._newest.items() if pause.actor == actor]
