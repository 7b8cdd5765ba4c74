"""What the committer does with a transaction of which some batches failed, or that came too late for a generation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from actors._core.task.commit import rest_s
from actors.errors import (
    BatchesRefusedError,
    CommitRefusedError,
    FencedError,
    MigratedError,
    OutcomeUnknownError,
    StaleGenerationError,
    TaskError,
)
from actors.ports import CommitBatch, CommitReceipt, Identity
from actors.runtime.committer import GATHER, Committer, Membership
from actors.runtime.virtual_time import VirtualTime

OLD, NEW = Identity("m", 1), Identity("m", 2)


class Refusing:
    """A writer that fails batches of some partitions whenever they are in a transaction."""

    def __init__(self, errors: dict[int, TaskError]) -> None:
        self.errors = errors
        self.written: list[list[int]] = []
        self.fences = 0
        self.ended: list[str] = []

    async def fence(self) -> None:
        """There is nothing to end."""
        self.fences += 1

    async def end_transaction_of(self, transactional_id: str) -> None:
        self.ended.append(transactional_id)

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        """Write all or nothing."""
        numbers = [batch.partition for batch in batches]
        self.written.append(numbers)
        errors = {place: self.errors[number] for place, number in enumerate(numbers) if number in self.errors}
        if errors:
            raise BatchesRefusedError(errors)
        return [CommitReceipt({}) for _ in batches]

    async def close(self) -> None:
        """There is nothing to close."""


async def outcomes(writer: Refusing, count: int) -> list[object]:
    committer = Committer(writer, 1 << 20)
    batches = [CommitBatch(number, {}) for number in range(count)]
    log = committer.new_log()
    return await asyncio.gather(*(log.commit(batch) for batch in batches), return_exceptions=True)


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


async def test_a_transaction_takes_what_fits_into_commit_max_bytes_and_one_batch_at_least() -> None:
    writer = Refusing({})
    committer = Committer(writer, 100)
    log = committer.new_log()
    sizes = (60, 41, 40, 101, 0)
    await asyncio.gather(*(log.commit(CommitBatch(number, {}, size=size)) for number, size in enumerate(sizes)))
    assert writer.written == [[0, 2, 4], [1], [3]]


async def test_what_was_committed_is_settled_by_a_fence_whatever_its_outcome() -> None:
    """InitProducerId is answered when all markers are written; the next commit needs no other."""
    writer = Refusing({})
    committer = Committer(writer, 1 << 20)
    await committer.new_log().commit(batch(0))
    await committer.settle()
    assert writer.fences == 2
    await committer.new_log().commit(batch(0))
    assert writer.fences == 2


@pytest.mark.parametrize(
    ("error", "is_known", "fences"),
    [
        (OutcomeUnknownError("no answer"), True, 2),
        (OutcomeUnknownError("no answer"), False, 1),
        (FencedError("fenced"), True, 1),
    ],
)
async def test_what_a_failed_transaction_left_open_is_ended_before_a_task_asks(
    error: TaskError, is_known: bool, fences: int
) -> None:
    """Its tasks may be other workers' by then. Another process may have the id if it was fenced, or is forgotten."""

    async def knows(member_id: str) -> bool:
        return is_known

    writer = Failing(error)
    committer = Committer(writer, 1 << 20, knows=knows)
    with pytest.raises(type(error)):
        await committer.new_log().commit(batch(0))
    assert writer.fences == fences
    await committer.fence()
    assert writer.fences == 2, "once at the start"


async def test_a_connection_that_dies_meanwhile_leaves_no_commit_waiting() -> None:
    async def knows(member_id: str) -> bool:
        return True

    committer = Committer(Failing(OutcomeUnknownError("no answer"), is_cut=True), 100, knows=knows)
    async with asyncio.timeout(5.0):
        found = await asyncio.gather(
            *(committer.new_log().commit(CommitBatch(number, {}, size=60)) for number in range(2)),
            return_exceptions=True,
        )
    assert [type(one) for one in found] == [OutcomeUnknownError] * 2


async def test_tasks_that_need_the_end_of_the_same_transaction_share_it() -> None:
    writer = Refusing({})
    committer = Committer(writer, 1 << 20)
    await asyncio.gather(*(committer.new_log().end_transaction_of("dead") for _ in range(8)))
    assert writer.ended == ["dead"]
    await committer.new_log().end_transaction_of("dead")
    assert writer.ended == ["dead", "dead"]


async def test_tasks_gather_records_between_transactions_the_longer_the_more_they_are() -> None:
    assert rest_s(0.01, 1, 1.0) < rest_s(0.01, 64, 1.0) == pytest.approx(0.037)
    assert rest_s(0.01, 64, 0.02) == 0.02
    committer = Committer(Slow({}), 1 << 20, longest_rest_s=1e6)
    log = committer.new_log()
    woken = asyncio.Event()
    assert log.is_ready(woken.set)
    await asyncio.gather(*(log.commit(batch(number)) for number in range(64)))
    await asyncio.sleep(0)
    assert not log.is_ready(woken.set)
    await woken.wait()
    assert log.is_ready(woken.set)


async def gathered_s(committer: Committer, takes_s: float) -> float:
    """Return how long a task gathers records that waits from the begin of a transaction of `takes_s` on."""
    log, woken, now_s = committer.new_log(), asyncio.Event(), asyncio.get_running_loop().time
    began_s, committer.writer.takes_s = now_s(), takes_s
    commit = asyncio.create_task(log.commit(batch(0)))
    await asyncio.sleep(takes_s / 2)
    assert not log.is_ready(woken.set)
    await commit
    await woken.wait()
    assert log.is_ready(woken.set)
    return now_s() - began_s


def test_each_transaction_is_followed_by_its_own_rest_however_long_the_last_one_took() -> None:
    async def three_times() -> list[float]:
        committer = Committer(Slow({}), 1 << 20, longest_rest_s=1e6)
        return [await gathered_s(committer, takes_s) for takes_s in (0.01, 1.0, 0.01)]

    loop = VirtualTime()
    try:
        short_s, long_s = (takes_s + rest_s(takes_s, 1, 1e6) for takes_s in (0.01, 1.0))
        assert loop.run(three_times()) == pytest.approx([short_s, long_s, short_s], abs=1e-4)
    finally:
        loop.end()


async def test_a_commit_that_is_due_in_a_rest_is_followed_by_another() -> None:
    committer = Committer(Slow({}), 1 << 20, longest_rest_s=1e6)
    log, woken = committer.new_log(), asyncio.Event()
    await log.commit(batch(0))
    await asyncio.sleep(0)
    assert not log.is_ready(woken.set)
    first_rest = committer._rest
    await log.commit(batch(0))
    await asyncio.sleep(0)
    assert not log.is_ready(woken.set)
    assert committer._rest is not first_rest
    await woken.wait()
    assert log.is_ready(woken.set)


async def test_tasks_that_are_ready_a_little_later_than_the_first_go_with_it() -> None:
    writer = Slow({})
    writer.takes_s = 0.1
    committer = Committer(writer, 1 << 20)
    await asyncio.gather(*(committer.new_log().commit(batch(number)) for number in range(2)))
    # Long enough for a machine that does much else.
    committer._commit_s = 1.0 * GATHER
    first = asyncio.create_task(committer.new_log().commit(batch(0)))
    await asyncio.sleep(0.01)
    await asyncio.gather(first, committer.new_log().commit(batch(1)))
    assert writer.written[1:] == [[0, 1]]


class Failing(Refusing):
    """A writer whose commits fail; `fences` after the first one find the client's futures cancelled, if `is_cut`."""

    def __init__(self, error: TaskError, *, is_cut: bool = False) -> None:
        super().__init__({})
        self.error, self.is_cut = error, is_cut

    async def fence(self) -> None:
        await super().fence()
        if self.is_cut and self.fences % 2 == 0:
            raise asyncio.CancelledError

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        raise self.error


class Slow(Refusing):
    """A writer that takes its time."""

    takes_s = 0.01

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        """Write later."""
        await asyncio.sleep(self.takes_s)
        return await super().write(identity, batches)


class Generations(Refusing):
    """A writer to a group in generation `current`."""

    def __init__(self) -> None:
        super().__init__({})
        self.current = NEW
        self.refused = asyncio.Event()

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        if identity != self.current:
            self.refused.set()
            raise StaleGenerationError("the group has another generation")
        return await super().write(identity, batches)


def batch(partition: int) -> CommitBatch:
    return CommitBatch(partition, {})


async def test_a_task_that_stays_commits_in_the_next_generation_and_one_that_is_dropped_doesnt() -> None:
    writer, member = Generations(), Membership(OLD)
    committer = Committer(writer, 1 << 20, member)
    stays, goes = committer.new_log(), committer.new_log()
    member.joining()
    commits = [asyncio.create_task(log.commit(batch(number))) for number, log in enumerate((stays, goes))]
    await writer.refused.wait()
    assert not any(commit.done() for commit in commits)
    goes.end()
    member.settle(NEW)
    found = await asyncio.gather(*commits, return_exceptions=True)
    assert (type(found[0]), type(found[1])) == (CommitReceipt, MigratedError)
    assert writer.written == [[0]]
    with pytest.raises(MigratedError):
        await goes.commit(batch(1))
    await committer.close()


@pytest.mark.parametrize("joins", [False, True])
async def test_a_commit_that_no_generation_will_take_fails(joins: bool) -> None:
    """The worker missed a generation, or the group forgets it while it joins."""
    writer, member = Generations(), Membership(OLD)
    committer = Committer(writer, 1 << 20, member)
    if joins:
        member.joining()
    commit = asyncio.create_task(committer.new_log().commit(batch(0)))
    await writer.refused.wait()
    member.settle()
    with pytest.raises(StaleGenerationError):
        await commit
    assert writer.written == []


async def test_commits_go_on_while_the_worker_joins() -> None:
    writer, member = Generations(), Membership(NEW)
    member.joining()
    await Committer(writer, 1 << 20, member).new_log().commit(batch(0))
    assert writer.written == [[0]]


class Held(Refusing):
    """A writer whose first transaction ends when the test says so."""

    def __init__(self, answer: BaseException | None = None) -> None:
        super().__init__({})
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.answer = answer

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        if not self.began.is_set():
            self.began.set()
            await self.go_on.wait()
            if self.answer is not None:
                raise self.answer
            return []
        return await super().write(identity, batches)

    async def end_transaction_of(self, transactional_id: str) -> None:
        await self.go_on.wait()


async def two_commits(writer: Held) -> list[object]:
    """Commit two batches, the second one while the first is under way."""
    committer = Committer(writer, 1 << 20)
    log = committer.new_log()
    first = asyncio.create_task(log.commit(batch(0)))
    await writer.began.wait()
    second = asyncio.create_task(log.commit(batch(1)))
    await asyncio.sleep(0)
    writer.go_on.set()
    async with asyncio.timeout(5):
        return await asyncio.gather(first, second, return_exceptions=True)


async def test_a_defect_of_the_committer_fails_all_that_wait() -> None:
    """The writer returned too few receipts. The tasks end with the error, and the worker with them."""
    assert [type(one) for one in await two_commits(Held())] == [ValueError, ValueError]


async def test_a_commit_that_a_client_cancelled_holds_up_nobody_else() -> None:
    found = await two_commits(writer := Held(asyncio.CancelledError()))
    assert [type(one) for one in found] == [asyncio.CancelledError, CommitReceipt]
    assert writer.written == [[1]]


async def test_commits_go_on_while_the_transaction_of_a_former_owner_is_ended() -> None:
    writer = Held()
    writer.began.set()
    log = Committer(writer, 1 << 20).new_log()
    ending = asyncio.create_task(log.end_transaction_of("former"))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await log.commit(batch(0))
    assert not ending.done()
    writer.go_on.set()
    await ending
