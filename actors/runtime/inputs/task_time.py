"""Event time of a task that follows feeds: by the records that it handles and the worker's looks, for its commits.

Stream time moves only between messages, so that one message sees one time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

from actors._core.task.feed_times import NO_TIMES, UNKNOWN_MS, FeedTimes, Look, SourceTime, TimeMark, UpstreamTimes
from actors.ports import TaskSink, TopicPartition
from actors.runtime.clock import Timestamps
from actors.runtime.inputs.inbox import Inbox
from actors.runtime.inputs.progress import InputProgress
from actors.runtime.inputs.time_order import TimeFollower, TimeOrder
from actors.runtime.spec import Feeds

COMMIT_S = 10.0
"""How long stream time may move without a commit, where nothing else is committed and no task downstream waits."""
SLOW_MS_PER_S = 100.0
"""Stream time that moves no faster counts as standing: a feed with times in seconds moves it by a thousandth."""


class TaskTime:
    """The feeds of one task, from a takeover to the next.

    Attributes:
        saw: by input a function that takes the time of each record, in order, when it was handled or given up, and
            returns whether a timer by stream time may be due. None for an input that isn't a source.
    """

    def __init__(
        self,
        feeds: Feeds,
        inputs: Sequence[InputProgress],
        *,
        inbox: Inbox,
        sink: TaskSink,
        timestamps: Timestamps,
        followers: Sequence[TimeFollower],
        monotonic: Callable[[], float],
        is_due: Callable[[], bool] | None,
        order: TimeOrder | None = None,
    ) -> None:
        self._order = order
        self._rest: tuple[object, float] = None, 0.0
        self._feeds = feeds
        self._inputs = inputs
        self._inbox = inbox
        self._sink = sink
        self._timestamps = timestamps
        self._followers = followers
        self._monotonic = monotonic
        self._is_due = is_due
        self._looks: deque[Look] = deque(maxlen=1)
        self._held: tuple[int, float, float] | None = None
        self._sources = [
            None
            if one.source.topic in feeds.upstream
            else SourceTime(feeds.idle_after_s, one.times.source_ms, feeds.behind_ms)
            for one in inputs
        ]
        sources = {index: source for index, source in enumerate(self._sources) if source is not None}
        upstream = UpstreamTimes(feeds.upstream) if feeds.upstream else None
        self._finished: list[list[tuple[int, int]]] = [[] for _ in inputs]
        self.saw = [
            None if source is None else partial(self._saw, index, source) for index, source in enumerate(self._sources)
        ]
        # Times of handled records are committed with these; times from looks may need a commit of their own.
        self._told = False
        self._output_ms = inputs[0].times.output_ms
        # Without windows or timers, only the committed mark remembers stream time.
        known_ms = max((follower.stream_ms for follower in followers), default=self._output_ms)
        self._times = FeedTimes(sources, upstream, known_ms)
        self._committed_ms, self._committed_s = known_ms, monotonic()
        self._move()

    @property
    def stream_ms(self) -> int:
        """Stream time, Unix milliseconds; -1 before it is known."""
        return self._times.stream_ms

    @property
    def holder(self) -> tuple[TopicPartition | None, int]:
        """The feed with the least time, and that time; None before the first look is believed."""
        return self._named(self._times.holder), self._times.least_ms

    @property
    def foremost(self) -> tuple[TopicPartition | None, int]:
        """The feed that is furthest ahead, and its time; None while none has a time."""
        feed, time_ms = self._times.foremost
        return self._named(feed), time_ms

    @property
    def held_s(self) -> float:
        """For how many seconds stream time has stood while a feed is ahead; 0 while it moves."""
        return 0.0 if self._held is None else self._monotonic() - self._held[2]

    def _named(self, feed: tuple[str, int] | int | None) -> TopicPartition | None:
        if isinstance(feed, int):
            return self._inputs[feed].source
        return None if feed is None else TopicPartition(*feed)

    def _saw(self, index: int, source: SourceTime, at_ms: int) -> bool:
        """Note the time of a record; return whether a timer by stream time may be due. Hot."""
        timestamps = self._timestamps
        if at_ms > source.time_ms and (at_ms <= timestamps.believed_ms or not timestamps.is_ahead(at_ms)):
            source.time_ms, holder = at_ms, self._times.holder
            # Without followers only commits go by stream time.
            if (holder == index or holder is None) and self._followers:
                self._move()
        return self._is_due is not None and self._is_due()

    def finished(self, index: int, offset: int, at_ms: int) -> None:
        """Note a record that was handled, perhaps before others in front of it."""
        heappush(self._finished[index], (offset, at_ms))

    def wants(self) -> tuple[set[TopicPartition], set[str]]:
        """Return the inputs whose ends the next look asks for, and the topics whose commits and counts."""
        topics = {feed for feeds in self._feeds.upstream.values() for feed in feeds} | self._feeds.connected
        if not topics and not self._lags and self._feeds.behind_ms is None and not self._has_waiting:
            return set(), set()
        return {one.source for one in self._inputs}, topics

    @property
    def _has_waiting(self) -> bool:
        return self._order is not None and self._order.has_waiting

    @property
    def _lags(self) -> bool:
        return len({source.time_ms for source in self._sources if source is not None}) > 1

    def look(self, look: Look) -> None:
        """Keep a look until the next pause between two messages."""
        now_s = self._monotonic()
        if self._times.foremost[1] <= self.stream_ms:
            self._held = None
        else:
            before_ms, before_s, since_s = self._held or (self.stream_ms, now_s, now_s)
            moves = self.stream_ms - before_ms > SLOW_MS_PER_S * (now_s - before_s)
            self._held = self.stream_ms, now_s, now_s if moves else since_s
        self._looks.append(look)
        self._inbox.wake()

    def release(self, times: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Go on without these feeds until each has a later time than its release; return the newly released ones.

        It takes effect between two messages.
        """
        places = {one.source: index for index, one in enumerate(self._inputs) if self._sources[index] is not None}
        upstream = {} if self._times.upstream is None else self._times.upstream.times
        released: dict[tuple[str, int] | int, int] = {}
        for feed, time_ms in times.items():
            key = places.get(feed, (*feed,))
            if isinstance(key, int) or key in upstream:
                released[key] = time_ms
        before, self._times.released = self._times.released, released
        names = [(self._named(key), key) for key in released if before.get(key) != released[key]]
        if names:
            self._inbox.wake()
        return [name for name, _ in names if name is not None]

    def failed(self, now_s: float) -> None:
        """Note that a look failed."""
        self._looks.clear()
        for source in self._sources:
            if source is not None:
                source.failed(now_s)

    def see_finished(self) -> None:
        """Count the records that are finished, and all before them."""
        for index, waiting in enumerate(self._finished):
            saw = self.saw[index]
            while waiting and waiting[0][0] < self._inputs[index].next_offset:
                _, at_ms = heappop(waiting)
                if saw is not None:
                    saw(at_ms)

    def follow(self) -> None:
        """Move stream time on, by looks and by what was handled since."""
        self.see_finished()
        partition = self._inputs[0].source.partition
        upstream = self._times.upstream
        look = None
        while self._looks:
            look = self._looks.popleft()
            if any(one.source not in look.ends for one in self._inputs):
                continue
            if upstream is not None:
                upstream.looked(look, partition)
            others_ms = self._connected_ms(look)
            for index, one in enumerate(self._inputs):
                source = self._sources[index]
                if source is not None:
                    end, handled = look.ends[one.source], self._handled(index)
                    self._told |= source.looked(look, end, handled=handled, others_ms=others_ms)
        if upstream is not None:
            handled_to = {one.source.topic: self._handled(index) for index, one in enumerate(self._inputs)}
            self._told |= upstream.believe(handled_to)
        self._move()
        self._rests(look)

    def _rests(self, look: Look | None) -> None:
        """Release records at stream time itself when nothing came and no feed moved for `idle_after`."""
        order = self._order
        if look is None or order is None:
            return
        rest = self.stream_ms, [look.ends.get(one.source) for one in self._inputs]
        is_done = all(end is not None and self._handled(index) >= end[0] for index, end in enumerate(rest[1]))
        if rest != self._rest[0] or not is_done:
            self._rest = rest, look.answered_s
        elif look.sent_s >= self._rest[1] + self._feeds.idle_after_s:
            order.rest()

    def known(self) -> tuple[int, list[TimeMark], float]:
        """Return stream time, the marks of the next commit, and the time before which records are handled."""
        return self.stream_ms, self._marks(self._next_output_ms()), self._order.passed_ms if self._order else 0

    def _marks(self, output_ms: int) -> list[TimeMark]:
        return [self._mark(index, output_ms) for index in range(len(self._inputs))]

    def _connected_ms(self, look: Look) -> int:
        if not self._feeds.connected:
            return max(one.times.source_ms for one in self._inputs)
        return max(look.latest.get(topic, UNKNOWN_MS) for topic in self._feeds.connected)

    def _handled(self, index: int) -> int:
        """Return the offset below which an input is handled, markers and aborted transactions included."""
        one, queue = self._inputs[index], self._inbox.queues[index]
        if queue.batches or one.next_offset < queue.delivered:
            return one.next_offset
        return max(one.next_offset, self._sink.position(one.source) or 0)

    def _move(self) -> None:
        if self._times.advance():
            for follower in self._followers:
                follower.advance(self._times.stream_ms)

    @property
    def is_dirty(self) -> bool:
        """Return whether a commit with nothing but times is due.

        Tasks downstream wait for times, so it is made at once for them. Otherwise it only serves expiry, and may wait.
        """
        if not self._told:
            return False
        if self._feeds.has_readers:
            self._told = self._marks(self._next_output_ms()) != [one.times for one in self._inputs]
            return self._told
        if not self._followers or self.stream_ms == self._committed_ms:
            return False
        return not self._feeds.idle_after_s or self._monotonic() >= self._committed_s + COMMIT_S

    def before_commit(self) -> None:
        """Put the times into the inputs' marks for the commit."""
        if not self._followers:
            self._move()
        self._told, self._output_ms = False, self._next_output_ms()
        self._committed_ms, self._committed_s = self.stream_ms, self._monotonic()
        for one, mark in zip(self._inputs, self._marks(self._output_ms), strict=True):
            one.times = mark

    def _mark(self, index: int, output_ms: int) -> TimeMark:
        source = self._sources[index]
        if source is None and not self._feeds.has_readers:
            return NO_TIMES
        return TimeMark(
            UNKNOWN_MS if source is None else source.time_ms,
            output_ms if index == 0 and self._feeds.has_readers else UNKNOWN_MS,
        )

    def _next_output_ms(self) -> int:
        if not self._feeds.has_readers or self.stream_ms == UNKNOWN_MS:
            return self._output_ms
        earliest = (follower.earliest_output_ms() for follower in self._followers)
        return max(self._output_ms, min([self.stream_ms, *earliest]))
