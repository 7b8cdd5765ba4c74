"""What a writer does when brokers are away, or refuse it a producer id or a commit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTimestampError,
    NodeNotReadyError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)

from actors._kafka.connection import Connection
from actors._kafka.produce import writer as writer_module
from actors._kafka.produce.failures import PartsFailedError
from actors._kafka.produce.sending import Sequences
from actors._kafka.produce.writer import TransactionWriter
from actors._kafka.transaction_requests import TxnOffsetCommitRequest
from actors.errors import BatchesRefusedError, BrokerUnavailableError, CommitRefusedError
from actors.ports import CommitBatch, Committed, Identity, Output, TopicPartition


class Brokers:
    """Stands for the client: brokers are asked in turn, and the first ones aren't there."""

    def __init__(self, away: int, code: int = 0) -> None:
        self.away, self.code, self.asked = away, code, 0

    def get_random_node(self) -> int:
        """Name the next one."""
        self.asked += 1
        return self.asked

    async def send(self, node: int, request: Any) -> Any:
        """Answer if it is there."""
        if node <= self.away:
            raise NodeNotReadyError
        return SimpleNamespace(error_code=self.code, producer_id=5, producer_epoch=0, tags={})


class Coordinator(Brokers):
    """The coordinator of all transactional ids, which has one answer."""

    async def coordinator_lookup(self, *place: Any) -> int:
        """Say that it is the one."""
        return 1

    async def send(self, node: int, request: Any, **_: Any) -> Any:
        """Give the answer."""
        return await super().send(node, request)


def transactions(client: Any) -> TransactionWriter:
    made = TransactionWriter(
        connection=Connection(("127.0.0.1:1",)),
        group="g",
        transactional_id="own",
        transaction_timeout_ms=1000,
        batch_bytes=lambda topic: 1000,
        compression=None,
        commit_deadline_s=1.0,
    )
    made._client = client
    return made


async def test_another_broker_is_asked() -> None:
    brokers = Brokers(away=2)
    assert await transactions(brokers)._features() == {}
    assert brokers.asked == 3


async def test_a_refusal_is_not_asked_for_again() -> None:
    with pytest.raises(ClusterAuthorizationFailedError):
        await transactions(Brokers(away=0, code=31))._features()


@pytest.mark.parametrize(("code", "word"), [(51, "ConcurrentTransactions"), (16, "NotCoordinator")])
async def test_a_transaction_that_does_not_end_is_named(code: int, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be waited for in silence; with the error the task says so and asks again."""
    monkeypatch.setattr(writer_module, "INIT_S", 0.01)
    made = transactions(Coordinator(away=0, code=code))
    said = rf"ending the transaction of former: .*0.01 s.*{word}.*describe --transactional-id former"
    with pytest.raises(BrokerUnavailableError, match=said):
        await made.end_transaction_of("former")


@pytest.mark.parametrize("may_be_late", [False, True])
@pytest.mark.parametrize("is_version_2", [False, True])
async def test_a_transaction_whose_produce_may_be_late_is_fenced_and_not_aborted_by_its_end(
    monkeypatch: pytest.MonkeyPatch, *, may_be_late: bool, is_version_2: bool
) -> None:
    """An EndTxn of version 1 leaves the epoch: the leader would append what arrives later to the next transaction."""
    sent: list[Any] = []

    class Noting(Coordinator):
        async def send(self, node: int, request: Any, **_: Any) -> Any:
            sent.append(request)
            return SimpleNamespace(error_code=0, producer_id=5, producer_epoch=9)

    async def append(*_: Any, **__: Any) -> dict[TopicPartition, int]:
        raise PartsFailedError({TopicPartition("out", 0): NotLeaderForPartitionError()}, may_be_late=may_be_late)

    monkeypatch.setattr(writer_module, "append", append)
    monkeypatch.setattr(writer_module, "finalized_features", lambda _: {"transaction.version": 1 + is_version_2})
    made = transactions(Noting(away=0))
    made._sequences, made._is_version_2 = Sequences(5, 8), is_version_2
    with pytest.raises(BatchesRefusedError):
        await made.write(Identity("m", 1), [CommitBatch(0, {})])
    names = [type(request).__name__ for request in sent]
    assert names == (["ApiVersionsRequest", "InitProducerIdRequest"] if may_be_late else ["EndTxnRequest"])
    assert made._sequences is not None
    assert made._sequences.epoch == (9 if may_be_late or is_version_2 else 8)


@pytest.mark.parametrize("refuses", ["records", "offsets"])
async def test_only_the_batch_whose_records_or_offset_are_refused_fails(
    monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """One batch sends to a partition that another batch has read, as with `by=`: their offset isn't those records."""
    part = TopicPartition("made", 0)

    async def append(*_: Any, **__: Any) -> dict[TopicPartition, int]:
        raise PartsFailedError({part: InvalidTimestampError()})

    class Group:
        async def coordinator_lookup(self, *_: Any) -> int:
            return 1

        async def send(self, _: int, request: Any, **__: Any) -> Any:
            code = TopicAuthorizationFailedError.errno if refuses == "offsets" else 0
            topics = [("made", [(0, code, {})], {})] if isinstance(request, TxnOffsetCommitRequest) else []
            return SimpleNamespace(error_code=0, producer_id=5, producer_epoch=9, topics=topics)

        async def partitions_of(self, _: str) -> set[int]:
            return {0}

    monkeypatch.setattr(writer_module, "append", append)
    monkeypatch.setattr(writer_module, "finalized_features", lambda _: {"transaction.version": 2})
    made = transactions(Group())
    made._sequences, made._is_version_2 = Sequences(5, 8), True
    outputs = [Output("made", 0, b"k", b"v", [], 1 << 50)]
    sender = CommitBatch(0, {TopicPartition("in", 0): Committed(1, "")}, outputs=outputs)
    reader = CommitBatch(0, {part: Committed(7, "")})
    with pytest.raises(BatchesRefusedError) as raised:
        await made.write(Identity("m", 1), [reader, sender])
    assert list(raised.value.errors) == [1 if refuses == "records" else 0]
    assert isinstance(next(iter(raised.value.errors.values())), CommitRefusedError) == (refuses == "records")


@pytest.mark.parametrize("is_denied", [False, True])
async def test_an_output_that_is_unknown_fails_the_batches_that_need_it(is_denied: bool) -> None:
    async def known(topic: str) -> set[int]:
        if topic == "gone" and is_denied:
            raise TopicAuthorizationFailedError(topic)
        if topic == "gone":
            await asyncio.Event().wait()
        return {0}

    made = transactions(SimpleNamespace(partitions_of=known))
    made._sequences = sequences = Sequences(1, 0)
    batches = [
        CommitBatch(number, {}, outputs=[Output(topic, 0, b"k", b"v", [], None)])
        for number, topic in enumerate(("out", "gone"))
    ]
    with pytest.raises(BatchesRefusedError, match="isn't allowed Write" if is_denied else "Create it again") as raised:
        await made.write(Identity("m", 1), batches)
    assert list(raised.value.errors) == [1]
    assert made._sequences is sequences, "nothing was sent: the next transaction needs no other producer id"
