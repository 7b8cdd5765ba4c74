"""Event time of a task: how far its feeds have come.

A task's feeds are the partitions of topics that it reads itself (sources), and the tasks that write into a topic whose
writers are declared. Each feed has a time: nothing that it still delivers has an earlier one, apart from disorder
within a source. Stream time is the least of them. It never goes back.

A source's time is the largest time of its handled records. A source that has been at its end for a while follows the
others, as far as they had come before its silence began. What is written to it after that lies behind its end, and the
source has to handle it first.

A task upstream commits the earliest time of what it may still send. A reader learns this time by a look: it asks for
the committed times, then for the ends of its own inputs, and believes the times when it has handled everything below
these ends. All that the upstream task wrote before its commit lies below them, and what it writes later isn't earlier.

The argument is in `docs/design/0013-event-time.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

UNKNOWN_MS = -1
"""The time of a feed that hasn't committed any: it holds all others."""
_NO_FEED_MS = 1 << 63
"""Later than the time of any feed."""
MOST_LOOKS = 2
"""How many looks of a reader wait to be believed: the oldest, so that time moves while the reader catches up, and the
newest."""
SILENCES = 4
"""How many looks at a source's end are kept for each time that it has to be silent."""
CLOCK_STEP_MS = 10_000
"""By how much a source follows the clock at a time, where the others are ahead of it: each step is a commit."""
RETRY_S = 10.0
"""For how long after a failed look no source is idle: producers retry what a broker didn't take."""


@dataclass(frozen=True, slots=True)
class TimeMark:
    """The times in a commit, Unix milliseconds; `UNKNOWN_MS` where a time is unknown.

    Attributes:
        source_ms: the time of the input, if it is a source.
        output_ms: the earliest time of what the task may still send; in the mark of the first input only.
    """

    source_ms: int = UNKNOWN_MS
    output_ms: int = UNKNOWN_MS


NO_TIMES = TimeMark()


@dataclass(frozen=True, slots=True)
class Look:
    """The brokers' answers to one look, in this order.

    Attributes:
        sent_s, answered_s: when the first question was sent and when the last answer came, by the monotonic clock.
        wall_ms: the wall clock when the first question was sent.
        marks: by (topic, partition) the committed times; none that belong to a former topic of the same name.
        ends: by (topic, partition) the high watermark and its leader's epoch, asked after `marks`.
        counts: by topic the number of partitions, asked after `marks`.
        ids: by topic its id, asked with `counts`.
        latest: by topic the largest time of a source, of `marks`.
    """

    sent_s: float
    answered_s: float
    wall_ms: int
    marks: Mapping[tuple[str, int], TimeMark]
    ends: Mapping[tuple[str, int], tuple[int, int]]
    counts: Mapping[str, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        latest: dict[str, int] = {}
        for (topic, _), mark in self.marks.items():
            if mark.source_ms > latest.get(topic, UNKNOWN_MS):
                latest[topic] = mark.source_ms
        # Asked for by each task of the worker.
        object.__setattr__(self, "latest", latest)


class SourceTime:
    """The time of a source, kept by the task that reads it.

    With `idle_after_s` 0, as in the test driver, a source at its end follows the others at once, regardless of the
    clock. With `behind_ms` it also follows the wall clock at that distance, in steps of half the distance.

    Attributes:
        time_ms: the source's time; `TaskTime.saw` raises it with the records.
        followed_ms: the last time that it took over from others, or from the clock.
    """

    __slots__ = ("_behind_ms", "_end", "_epoch", "_failed_s", "_idle_after_s", "_silences", "followed_ms", "time_ms")

    def __init__(self, idle_after_s: float, time_ms: int = UNKNOWN_MS, behind_ms: int | None = None) -> None:
        self.time_ms, self.followed_ms = time_ms, UNKNOWN_MS
        self._idle_after_s = idle_after_s
        self._behind_ms = behind_ms
        self._end = self._epoch = -1
        self._silences: deque[tuple[float, int]] = deque(maxlen=2 * SILENCES)
        self._failed_s = float("-inf")

    def failed(self, now_s: float) -> None:
        """Note that a look failed, or that the source has another leader."""
        self._silences.clear()
        self._failed_s = now_s

    def looked(self, look: Look, end: tuple[int, int], *, handled: int, others_ms: int) -> bool:
        """Note a look at the source; return whether its time moved.

        Args:
            look: the look.
            end: the source's high watermark, and its leader's epoch.
            handled: the offset below which everything is handled, markers and aborted transactions included.
            others_ms: the largest committed time of the connected sources, asked for before `end`.
        """
        if end[1] != self._epoch:
            if self._epoch >= 0:
                self.failed(look.answered_s)
            self._epoch = end[1]
        if end[0] != self._end:
            self._end = end[0]
            self._silences.clear()
        # The others' time before the silence, not their time during it.
        known_ms = next(
            (ms for answered_s, ms in reversed(self._silences) if answered_s + self._idle_after_s <= look.sent_s), None
        )
        if not self._silences or look.answered_s >= self._silences[-1][0] + self._idle_after_s / SILENCES:
            self._silences.append((look.answered_s, others_ms))
        if known_ms is None or handled < end[0] or look.sent_s < self._failed_s + RETRY_S:
            return False
        wall_ms = look.wall_ms - int(self._idle_after_s * 1000) if self._idle_after_s else known_ms
        # Others are ahead of the clock: the source follows it, in steps that are worth a commit.
        least_ms = self.time_ms + (CLOCK_STEP_MS if known_ms > wall_ms else 1)
        before_ms = self.time_ms
        if min(known_ms, wall_ms) >= least_ms:
            self.time_ms = min(known_ms, wall_ms)
        if self._behind_ms is not None and look.wall_ms - self._behind_ms >= self.time_ms + self._behind_ms // 2:
            self.time_ms = look.wall_ms - self._behind_ms
        if self.time_ms == before_ms:
            return False
        self.followed_ms = self.time_ms
        return True


class UpstreamTimes:
    """The times of the tasks upstream, as a reader of what they write may believe them.

    `topics` are, by the name of each topic that the task reads, the first inputs of the actors that write into it.

    Attributes:
        least: the least time, and of which feed; unknown, and of no feed, before the first look that counts.
    """

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        self._topics = topics
        self._times: dict[tuple[str, int], int] = {}
        self._ids: dict[str, str] = {}
        self.least: tuple[int, tuple[str, int] | None] = (UNKNOWN_MS, None)
        self._waiting: deque[tuple[dict[tuple[str, int], int], dict[str, int], dict[str, str]]] = deque()

    def looked(self, look: Look, partition: int) -> None:
        """Note a look, which is believed when everything below its ends is handled.

        The oldest look that waits is never replaced: a reader that catches up would believe none. The newest is
        replaced whole: a new time with an old end would be believed too early.
        """
        times = {
            (feed, number): look.marks.get((feed, number), NO_TIMES).output_ms
            for feed in self.feeds
            for number in range(look.counts[feed])
        }
        ends = {topic: look.ends[topic, partition][0] for topic in self._topics}
        ids = {feed: look.ids.get(feed, "") for feed in self.feeds}
        if len(self._waiting) >= MOST_LOOKS:
            self._waiting.pop()
        self._waiting.append((times, ends, ids))

    def believe(self, handled: Mapping[str, int]) -> bool:
        """Believe the looks whose ends have been reached; return whether any was.

        `handled` is, by topic, the offset below which everything is handled.
        """
        believed = False
        while self._waiting:
            times, ends, ids = self._waiting[0]
            if any(handled[topic] < end for topic, end in ends.items()):
                break
            self._waiting.popleft()
            believed = True
            if ids != self._ids:
                # A topic that was created again may lack partitions; in an old answer about a topic that grew, they
                # are there.
                self._times = {
                    feed: time_ms
                    for feed, time_ms in self._times.items()
                    if feed in times or ids[feed[0]] == self._ids[feed[0]]
                }
                self._ids = ids
            for feed, time_ms in times.items():
                self._times[feed] = max(time_ms, self._times.get(feed, UNKNOWN_MS))
        if believed and self._times:
            # Asked for with each record of a source that holds the others, and there may be a thousand.
            first = min(self._times, key=self._times.__getitem__)
            self.least = self._times[first], first
        return believed

    @property
    def times(self) -> Mapping[tuple[str, int], int]:
        """The believed times of the tasks upstream."""
        return self._times

    @property
    def feeds(self) -> frozenset[str]:
        """The first inputs of the actors upstream."""
        return frozenset(feed for topics in self._topics.values() for feed in topics)


@dataclass(slots=True)
class FeedTimes:
    """All feeds of a task.

    Attributes:
        sources: by the place of the input.
        upstream: the tasks that write into the topics it reads; None if it reads none of these.
        stream_ms: stream time; it never goes back.
        least_ms: the least time of the feeds now, which may be less, as of a new feed.
        holder: the feed that has the least time: the place of an input, or a task upstream as (topic, partition); None
            before the first look at tasks upstream is believed.
        released: by feed the time up to which it doesn't count, because an operator released it.
    """

    sources: dict[int, SourceTime]
    upstream: UpstreamTimes | None = None
    stream_ms: int = UNKNOWN_MS
    least_ms: int = UNKNOWN_MS
    holder: tuple[str, int] | int | None = None
    released: Mapping[tuple[str, int] | int, int] = field(default_factory=dict)

    @property
    def foremost(self) -> tuple[tuple[str, int] | int | None, int]:
        """The feed with the largest time, and that time; None if no time is known. A mere follower isn't meant."""
        upstream = {} if self.upstream is None else self.upstream.times
        task = max(upstream, key=upstream.__getitem__, default=None)
        feed: tuple[str, int] | int | None = task
        order = (UNKNOWN_MS, True) if task is None else (upstream[task], True)
        for index, source in self.sources.items():
            is_own = source.time_ms != source.followed_ms
            if (source.time_ms, is_own) > order:
                feed, order = index, (source.time_ms, is_own)
        return (None, UNKNOWN_MS) if order[0] == UNKNOWN_MS else (feed, order[0])

    def advance(self) -> bool:
        """Move stream time up to the least time of the feeds; return whether it moved. Hot where feeds take turns."""
        holder: tuple[str, int] | int | None
        least_ms, holder = (_NO_FEED_MS, None) if self.upstream is None else self.upstream.least
        for index, source in self.sources.items():
            if source.time_ms < least_ms:
                least_ms, holder = source.time_ms, index
        if self.released:
            least_ms, holder = self._least_of_others()
        self.least_ms, self.holder = least_ms, holder
        if least_ms <= self.stream_ms:
            return False
        self.stream_ms = least_ms
        return True

    def _least_of_others(self) -> tuple[int, tuple[str, int] | int | None]:
        """Return the least time of the feeds that aren't released, and its feed."""
        upstream = {} if self.upstream is None else self.upstream.times
        if self.upstream is not None and not upstream:
            return UNKNOWN_MS, None
        times: dict[tuple[str, int] | int, int] = {index: source.time_ms for index, source in self.sources.items()}
        times.update(upstream.items())
        counted = {feed: ms for feed, ms in times.items() if feed not in self.released or ms > self.released[feed]}
        if not counted:
            return self.stream_ms, None
        feed = min(counted, key=counted.__getitem__)
        return counted[feed], feed
