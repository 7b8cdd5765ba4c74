"""The audit of takeovers, by scripted commits."""

from __future__ import annotations

import asyncio

import pytest

from actors._core.task.commit import CommitMark
from actors._core.task.completed import encode_finished
from actors.ports import Identity, TopicPartition
from tests.sim import app
from tests.sim.audit import Audit
from tests.sim.fakes.cluster import SimKafka
from tests.sim.fakes.loop import VirtualLoop

SOURCE = TopicPartition(app.INPUT, 0)


class _Group:
    """A group whose offset tasks and a tool commit, each in a transaction."""

    def __init__(self) -> None:
        self.cluster = SimKafka(app.GROUP)
        self.cluster.make_topic(app.INPUT, 1)
        for store in app.STORES:
            self.cluster.make_topic(app.changelog(store), 1, is_compacted=True)
        self.audit = Audit(self.cluster, app.Deployment(), check_phases=False)

    def commit(self, metadata: str, offset: int) -> None:
        transactions = self.cluster.transactions
        epoch = transactions.init_producer_id(metadata, 60.0)
        transactions.commit_offsets(metadata, epoch, app.GROUP, {SOURCE: (offset, metadata)})
        transactions.end(metadata, epoch, commit=True)

    def commit_of_task(self, owner: int, transaction: int, offset: int, finished: set[int]) -> None:
        mark = CommitMark(owner, transaction, "nonce", encode_finished(offset, finished))
        self.audit.owners[mark.encode()] = Identity(f"worker {owner}", owner)
        self.commit(mark.encode(), offset)


@pytest.mark.parametrize(("finished", "violations"), [({7, 9}, 0), ({9}, 1), (set(), 1)])
def test_a_tool_commits_between_the_look_and_the_claim_of_a_takeover(finished: set[int], violations: int) -> None:
    """The claim goes on at what it looked at, with all that is finished behind it: nobody notices the tool's commit."""

    async def scenario() -> list[str]:
        group = _Group()
        group.cluster.produce(SOURCE, [(b"k0", b"count:0", ())] * 10)
        group.commit_of_task(1, 1, 0, set())
        group.commit_of_task(1, 2, 6, {7, 9})
        await asyncio.sleep(1)
        group.commit("", 0)
        await asyncio.sleep(1)
        group.commit_of_task(2, 1, 6, finished)
        return group.audit.violations

    loop = VirtualLoop()
    try:
        assert len(loop.run_until_complete(scenario())) == violations
    finally:
        loop.close()
