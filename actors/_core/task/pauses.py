"""Which tasks are paused, and which feeds of event time are released, by the records of an app's registry.

A record is about one task, or about all tasks of an actor, those of partitions that don't exist yet included. The
newest record about a task decides, so that one partition of a paused actor can be resumed.

    pause:ACTOR               the actor
    pause:ACTOR/PARTITION     one of its tasks
    release:ACTOR/TOPIC/PARTITION   a feed that the actor's event time goes on without
"""

from __future__ import annotations

import msgspec

PREFIX, RELEASE = b"pause:", b"release:"
PREFIXES = (PREFIX, RELEASE)
"""Of the records' keys. No task's key has one: names have no colon."""
MAX_AT_MS = 2**53
MAX_BY_CHARS = 200


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause or resume of an actor's tasks.

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


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A feed that doesn't count for an actor's stream time until it has a later time.

    Attributes:
        actor: the actor whose event time waited for it.
        topic, partition: the feed: an input of the actor, or the first input of a task upstream.
        time_ms: the feed's committed time at the release, Unix milliseconds; -1 if it had none.
        at_ms: when the record was written, Unix milliseconds.
        by: the operator, for people.
    """

    actor: str
    topic: str
    partition: int
    time_ms: int
    at_ms: int
    by: str


def release_key(actor: str, topic: str, partition: int) -> bytes:
    return RELEASE + f"{actor}/{topic}/{partition}".encode()


def pause_key(actor: str, partition: int | None) -> bytes:
    name = actor if partition is None else f"{actor}/{partition}"
    return PREFIX + name.encode()


class Pauses:
    """The newest record of each key. Give it all records in the order of their offsets."""

    def __init__(self) -> None:
        self._newest: dict[bytes, tuple[int, Pause]] = {}
        self._releases: dict[bytes, Release] = {}
        self._count = 0

    def take(self, key: bytes, raw: bytes | None) -> None:
        """Take a record whose key begins with one of `PREFIXES`; the value None removes what it said.

        Raises:
            One of `actors._core.outside.MALFORMED`: it can't be read, and changes nothing.
        """
        if raw is None:
            self._newest.pop(key, None)
            self._releases.pop(key, None)
            return
        if key.startswith(RELEASE):
            release = msgspec.json.decode(raw, type=Release)
            if key != release_key(release.actor, release.topic, release.partition):
                raise ValueError(
                    f"it is of {release.topic[:MAX_BY_CHARS]!r} and actor {release.actor[:MAX_BY_CHARS]!r}"
                )
            self._check(release)
            if not -1 <= release.time_ms <= MAX_AT_MS:
                raise ValueError(f"time_ms isn't from -1 to {MAX_AT_MS}")
            self._releases[key] = release
            return
        pause = msgspec.json.decode(raw, type=Pause)
        if key != pause_key(pause.actor, pause.partition):
            raise ValueError(f"it is of partition {pause.partition} of actor {pause.actor[:MAX_BY_CHARS]!r}")
        self._check(pause)
        self._count += 1
        self._newest[key] = self._count, pause

    @staticmethod
    def _check(record: Pause | Release) -> None:
        if not (0 <= record.at_ms <= MAX_AT_MS and len(record.by) <= MAX_BY_CHARS):
            raise ValueError(f"at_ms isn't from 0 to {MAX_AT_MS}, or by has more than {MAX_BY_CHARS} characters")

    def released(self, actor: str) -> list[Release]:
        return [release for release in self._releases.values() if release.actor == actor]

    def of(self, actor: str, partition: int) -> Pause | None:
        """Return the record that pauses a task; None if none does."""
        both = (self._newest.get(pause_key(actor, None)), self._newest.get(pause_key(actor, partition)))
        known = [found for found in both if found is not None]
        if not known:
            return None
        _, pause = max(known, key=lambda found: found[0])
        return pause if pause.is_paused else None

    def keys(self, actor: str) -> list[bytes]:
        pauses = [key for key, (_, pause) in self._newest.items() if pause.actor == actor]
        return [*pauses, *(key for key, release in self._releases.items() if release.actor == actor)]
