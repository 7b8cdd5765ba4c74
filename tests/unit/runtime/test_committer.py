"""What the committer does with a transaction of which some batches failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.errors import BatchesRefusedError, CommitRefusedError, OutcomeUnknownError, TaskError
from actors.ports import CommitBatch, CommitReceipt, Identity, TopicPartition
from actors.runtime.committer import Committer

MEMBER = Identity("m", 1)


class Refusing:
    """A writer that fails batches of some partitions whenever they are in a transaction."""

    def __init__(self, errors: dict[int, TaskError]) -> None:
        self.errors = errors
        self.written: list[list[int]] = []

    async def fence(self) -> None:
        """There is nothing to end."""

    async def end_transaction_of(self, transactional_id: str) -> None:
        """There is nothing to end."""

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        """Write all or nothing."""
        numbers = [batch.source.partition for batch in batches]
        self.written.append(numbers)
        errors = {place: self.errors[number] for place, number in enumerate(numbers) if number in self.errors}
        if errors:
            raise BatchesRefusedError(errors)
        return [CommitReceipt({}) for _ in batches]

    async def close(self) -> None:
        """There is nothing to close."""


async def outcomes(writer: Refusing, count: int) -> list[object]:
    committer = Committer(writer, 1 << 20)
    batches = [CommitBatch(TopicPartition("in", number), 1, "") for number in range(count)]
    return await asyncio.gather(*(committer.commit(MEMBER, batch) for batch in batches), return_exceptions=True)


async def test_what_is_refused_is_tried_alone_after_the_others() -> None:
    writer = Refusing({1: CommitRefusedError("too large")})
    found = await outcomes(writer, 3)
    assert [isinstance(one, CommitRefusedError) for one in found] == [False, True, False]
    assert writer.written == [[0, 1, 2], [0, 2], [1]]


async def test_what_can_not_be_written_now_is_not_tried_alone() -> None:
    """It would hold up the worker once more: a leader that is away costs seconds."""
    writer = Refusing({1: OutcomeUnknownError("its leader is away")})
    found = await outcomes(writer, 3)
    assert [isinstance(one, OutcomeUnknownError) for one in found] == [False, True, False]
    assert writer.written == [[0, 1, 2], [0, 2]]
