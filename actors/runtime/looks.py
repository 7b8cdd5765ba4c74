"""A worker's looks at the feeds of its tasks: how far the tasks upstream and other sources have committed.

One look serves all tasks of the worker. An old answer is safe, and a failed look is left out: see
`actors._core.task.feed_times`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from actors._core.logs import Reminders, escaping
from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.feed_times import NO_TIMES, Look, TimeMark
from actors.errors import BrokerUnavailableError
from actors.ports import Clock, GroupView, LookAnswer, TopicPartition
from actors.runtime.inputs.task_time import TaskTime

logger = escaping(logging.getLogger(__name__))

INTERVAL_S, REST_S = 0.5, 2.0
"""Seconds between looks while times move, and at rest, after ever longer ones."""
READ_S = 0.01
"""How long a source takes, in tests, to read the markers behind the last records."""
ANSWERED_PARTITIONS_PER_S = 40_000
"""How many committed offsets a worker asks for in a second, at most: the group's coordinator answers for all."""
REMIND_S = 60.0


class Looks:
    """The repeated looks at the feeds of the tasks that `times` returns."""

    def __init__(self, times: Callable[[], Iterable[TaskTime]], *, group: GroupView, clock: Clock) -> None:
        self._times = times
        self._group = group
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._before: object = None
        self._foreign: frozenset[TopicPartition] = frozenset()
        self._reminders = Reminders(REMIND_S)

    async def run(self) -> None:
        """Look until cancelled."""
        interval_s = INTERVAL_S
        while True:
            await self._clock.sleep(interval_s)
            asked, has_moved = await self.look()
            least_s = max(INTERVAL_S, asked / ANSWERED_PARTITIONS_PER_S)
            interval_s = least_s if has_moved else min(max(2 * interval_s, least_s), max(REST_S, least_s))

    async def moved(self) -> bool:
        """Look twice, which makes a silence; return whether an idle task learned a new time. For tests."""
        times = list(self._times())
        before = [time.known() for time in times]
        if times:
            await self._clock.sleep(READ_S)
        # The first look of a worker only learns how many partitions to ask for.
        for _ in range(2 if self._counts else 3):
            await self.look()
            for time in times:
                time.follow()
        return before != [time.known() for time in times]

    async def look(self) -> tuple[int, bool]:
        """Look once; return how many offsets were asked for, and whether anything has moved since the last look."""
        times = list(self._times())
        wanted = [time.wants() for time in times]
        ends = set[TopicPartition]().union(*(inputs for inputs, _ in wanted))
        topics = set[str]().union(*(feeds for _, feeds in wanted))
        commits = {TopicPartition(topic, number) for topic in topics for number in range(self._counts.get(topic, 0))}
        if not ends:
            return 0, bool(times)
        sent_s, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        try:
            answer = await self._group.look(commits, ends, topics)
        except BrokerUnavailableError as error:
            now_s = self._clock.monotonic()
            if self._reminders.is_due(now_s):
                logger.warning("event time waits for an answer: %s", error)
            for time in times:
                time.failed(now_s)
            return len(commits), True
        ends_of: dict[tuple[str, int], tuple[int, int]] = {(*source,): end for source, end in answer.ends.items()}
        parsed = {source: parse_mark(committed.metadata) for source, committed in answer.commits.items()}
        self._name_foreign(answer, parsed)
        ids = {name: topic.topic_id for name, topic in answer.topics.items()}
        look = Look(sent_s, self._clock.monotonic(), wall_ms, _marks(answer, parsed), ends_of, _counts(answer), ids)
        self._counts = dict(look.counts)
        for time, (inputs, feeds) in zip(times, wanted, strict=True):
            # A topic that is missing has no count: its feeds keep their times.
            if inputs and feeds <= look.counts.keys():
                time.look(look)
        before, self._before = self._before, (look.marks, look.ends)
        return len(commits), before != self._before

    def _name_foreign(self, answer: LookAnswer, parsed: Mapping[TopicPartition, CommitMark | None]) -> None:
        """Log once which offsets have the metadata of another program: they have no time, and hold what follows."""
        foreign = frozenset(
            source for source, mark in parsed.items() if mark is None and answer.commits[source].metadata
        )
        for source in sorted(foreign - self._foreign):
            logger.warning(
                "%s: another program wrote the metadata of the group's offset, %.60r: it is ignored, and what follows "
                "this partition's event time waits until its actor commits again",
                source,
                answer.commits[source].metadata,
            )
        self._foreign = foreign


def _counts(answer: LookAnswer) -> dict[str, int]:
    return {name: topic.partitions for name, topic in answer.topics.items()}


def _marks(answer: LookAnswer, parsed: Mapping[TopicPartition, CommitMark | None]) -> dict[tuple[str, int], TimeMark]:
    """Return the committed times that belong to the topics as they are now.

    A topic that was created again has the name of the former one, and a mirror copies metadata to other offsets.
    """
    marks: dict[tuple[str, int], TimeMark] = {}
    for source, mark in parsed.items():
        topic = answer.topics.get(source.topic)
        if mark is not None and topic is not None:
            marks[source] = mark.times if mark.topics.input_id == topic.topic_id else NO_TIMES
    return marks
