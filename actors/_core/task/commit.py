"""The mark that a commit leaves in the offset's metadata, and when a commit is due."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from actors._core.task.completed import SPAN, decode_finished, encode_finished
from actors._core.task.feed_times import NO_TIMES, UNKNOWN_MS, TimeMark
from actors._core.task.topic_ids import NO_IDS, TopicIds, decode_topic_ids

_MAX_DIGITS = 18
MAX_METADATA_BYTES = 4_096
"""The brokers' limit of an offset's metadata unless `offset.metadata.max.bytes` sets another."""


@dataclass(frozen=True, slots=True)
class CommitMark:
    """The committed offset's metadata, `epoch;transaction;nonce`: which commit of which owner it was.

    An offset alone says nothing after a commit whose outcome is unknown: another owner may have committed the same
    offset with other state. `finished` is there when inputs behind the offset are finished too: see `Progress`.

    `now_ms` is the partition's time, Unix milliseconds, 0 where it is unknown. It is behind a dot in the nonce.
    `topics` are the topics' ids, behind a tilde, before the dot.
    `times` are behind further dots, in the marks of tasks whose event time others follow.
    """

    epoch: int
    transaction: int
    nonce: str
    finished: str = ""
    now_ms: int = 0
    topics: TopicIds = NO_IDS
    times: TimeMark = NO_TIMES

    def encode(self) -> str:
        """Return the mark as offset metadata."""
        time = f".{self.now_ms}" if self.now_ms else ""
        if self.times != NO_TIMES:
            time = f".{self.now_ms}.{_shown(self.times.source_ms)}.{_shown(self.times.output_ms)}"
        mark = f"{self.epoch};{self.transaction};{self.nonce}~{self.topics.encode()}{time}"
        return f"{mark};{self.finished}" if self.finished else mark


def parse_mark(metadata: str | None) -> CommitMark | None:
    """Decode an offset's metadata; None if this app didn't write it, as after an operator's reset."""
    parts = (metadata or "").split(";")
    if len(parts) not in (3, 4) or not (_is_number(parts[0]) and _is_number(parts[1])):
        return None
    front, *numbers = parts[2].split(".")
    now_ms, source_ms, output_ms, *_ = (*numbers, "", "", "")
    nonce, _, text = front.partition("~")
    try:
        decode_finished(0, "".join(parts[3:]))
        topics = decode_topic_ids(text)
    except ValueError:
        return None
    known_ms = int(now_ms) if _is_number(now_ms) else 0
    times = TimeMark(*(int(text) if _is_number(text) else UNKNOWN_MS for text in (source_ms, output_ms)))
    return CommitMark(int(parts[0]), int(parts[1]), nonce, "".join(parts[3:]), known_ms, topics, times)


def largest_mark(stores: int, *, is_parallel: bool) -> int:
    """Return the most bytes that marks of an actor with so many stores take; `is_parallel`: it has `concurrency`."""
    some_id = str(uuid.UUID(int=1))
    topics = TopicIds.of(some_id, {str(number): some_id for number in range(stores)}, since=10**9)
    finished = encode_finished(0, range(1, SPAN)) if is_parallel else ""
    times = TimeMark(10**13, 10**13)
    topics = replace(topics, is_recreated=True)
    return len(CommitMark(10**9, 10**12, "n" * 12, finished, 10**13, topics, times).encode())


def _shown(time_ms: int) -> str:
    return "" if time_ms == UNKNOWN_MS else str(time_ms)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


MOST_INTERVALS = 4
"""After how many commit intervals a task that handles without a break doesn't wait for other tasks' commits."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Adaptive group commit: at once when the input runs dry, otherwise by age or by size.

    A lone record is committed as soon as it is handled, so latency is one transaction's; under load transactions
    cost the same but carry an interval's worth of records. In between, a task waits for the end of its worker's rest,
    see `rest_s`.
    """

    interval_s: float
    max_bytes: int

    def at_s(self, oldest_s: float, ready_s: float) -> float:
        """Return the time to commit of a task that handles without a break since `oldest_s`.

        After the interval it still waits until its worker is ready, for some intervals at most: tasks that begin each
        at their own time share no commit.
        """
        return max(oldest_s + self.interval_s, min(oldest_s + MOST_INTERVALS * self.interval_s, ready_s))


def rest_s(commit_s: float, tasks: int, most_s: float) -> float:
    """Return how long a worker's tasks gather records after a commit, before the next that isn't due.

    Commits back to back keep brokers and worker so busy that each takes several times as long. What one costs the
    brokers grows with its tasks, so the more there are the longer the rest: few tasks have a short latency, many tasks
    with little to do share a commit.
    """
    return min(most_s, commit_s * (0.5 + tasks / 20))
