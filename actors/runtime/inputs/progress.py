"""How far a task is in one of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors._core.task.completed import CompletedOffsets
from actors._core.task.feed_times import NO_TIMES, TimeMark
from actors._core.task.topic_ids import TopicIds
from actors.ports import InputRecord, OwnerInput, TopicPartition
from actors.runtime.spec import InputSpec


@dataclass(slots=True, eq=False)
class InputProgress:
    """How far a task is in one of its inputs, from a takeover to the next.

    Attributes:
        index: its place in the actor's declaration.
        topics: the ids that the takeover found, for the marks of this owner's commits.
        backlog_end: its end as the takeover saw it.
        next_offset: all before it is handled.
        handed_in_offset: all before it is committed, or in the commit that is under way.
        committed_offset: all before it is committed.
        times: what the next commit says of event time.
    """

    index: int
    source: TopicPartition
    spec: InputSpec
    completed: CompletedOffsets
    topics: TopicIds
    backlog_end: int
    times: TimeMark = NO_TIMES
    next_offset: int = field(init=False)
    handed_in_offset: int = field(init=False)
    committed_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = self.handed_in_offset = self.committed_offset = self.completed.next_offset

    def skip_to(self, offset: int) -> None:
        """Count all before `offset` as handled, as `CompletedOffsets.skip_to` does."""
        self.completed.skip_to(offset)
        self.next_offset = offset

    @property
    def reached(self) -> int:
        """The offset behind the last record that was handled."""
        return max(self.next_offset, self.completed.reached)

    def owned(self) -> OwnerInput:
        """Return the registry's record of the input."""
        topics = self.topics
        return OwnerInput(self.source.topic, topics.input_id, self.next_offset, topics.since, topics.is_recreated)


Run = tuple[InputProgress, Sequence[InputRecord]]
"""Records that come next, all of one input."""
