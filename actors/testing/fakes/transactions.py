"""The transaction coordinator.

    EMPTY ─write─► ONGOING ──end──► PREPARED ─markers──► COMPLETE ─write─► ONGOING
                      │ init, timeout: epoch + 1, abort      ▲
                      └──────────────► PREPARED ─────────────┘

An end is acknowledged in PREPARED: the decision holds, the markers are written to each partition by and by. Until all
are written the id can't begin again, and `init_producer_id` isn't answered.

These are transactions of version 2 (KIP-890): the first offset or record begins one, writing to a partition adds it,
and each end raises the producer epoch.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass

from actors.ports import TopicPartition
from actors.testing.fakes.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionStateError,
    ProducerFencedError,
)
from actors.testing.fakes.log import Decision, PartitionLog, Transaction


class _State(enum.Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARED = "prepared"
    COMPLETE = "complete"


@dataclass(slots=True)
class _Producer:
    epoch: int = -1
    state: _State = _State.EMPTY
    timeout_s: float = 60.0
    transaction: Transaction | None = None


class TransactionCoordinator:
    """All transactional ids of a cluster. Its methods are requests: they act at once, or raise a `RefusedError`.

    Attributes:
        marker_s: gives the delay in seconds of one marker.
        on_decision: called with each transaction when its end is decided.
    """

    def __init__(
        self,
        *,
        complete: Callable[[Transaction], None],
        appended: Callable[[], int],
        marker_s: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self.marker_s = marker_s
        self.on_decision: list[Callable[[Transaction], None]] = []
        self._complete = complete
        self._appended = appended
        self._wall_ms = wall_ms
        self._producers: dict[str, _Producer] = {}
        self._context = Context()

    def init_producer_id(self, transactional_id: str, timeout_s: float) -> int:
        """Settle what the id left open and give the next producer epoch.

        Raises:
            ConcurrentTransactionsError: it isn't settled yet, ask again.
        """
        self._check_available()
        producer = self._producers.setdefault(transactional_id, _Producer())
        if producer.state is _State.ONGOING:
            self._fence_and_abort(producer)
        if producer.state is _State.PREPARED:
            raise ConcurrentTransactionsError(transactional_id)
        producer.epoch += 1
        producer.state, producer.transaction, producer.timeout_s = _State.EMPTY, None, timeout_s
        return producer.epoch

    def commit_offsets(
        self, transactional_id: str, epoch: int, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        """Add offsets with their metadata to the transaction, which begins with it; they are pending until the end."""
        transaction = self._begin(transactional_id, epoch)
        transaction.has_pending_offsets = True
        for source, offset in offsets.items():
            transaction.offsets[group, source] = offset
            transaction.appended[group, source] = self._appended()

    def is_pending(self, group: str, source: TopicPartition) -> bool:
        """Return whether an open transaction may change the group's offset."""
        transactions = (producer.transaction for producer in self._producers.values())
        return any(
            transaction.has_pending_offsets and (group, source) in transaction.offsets
            for transaction in transactions
            if transaction is not None
        )

    def open_transactions(self) -> list[Transaction]:
        """Return the transactions that are not at their end, markers included."""
        return [
            producer.transaction
            for producer in self._producers.values()
            if producer.transaction is not None and producer.state in (_State.ONGOING, _State.PREPARED)
        ]

    def writing(self, transactional_id: str, epoch: int, log: PartitionLog) -> Transaction:
        """Return the open transaction, which begins with the first write; the partition is in it from now on."""
        transaction = self._begin(transactional_id, epoch)
        transaction.logs[log] = None
        return transaction

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> int:
        """Decide the open transaction; return the epoch of the next one."""
        producer = self._checked(transactional_id, epoch)
        transaction = producer.transaction
        if producer.state is _State.PREPARED:
            raise ConcurrentTransactionsError(transactional_id)
        if producer.state is _State.ONGOING and transaction is not None:
            self._decide(producer, transaction, Decision.COMMIT if commit else Decision.ABORT)
        elif commit:
            raise InvalidTransactionStateError(f"{transactional_id} has no transaction")
        producer.epoch += 1
        return producer.epoch

    def _begin(self, transactional_id: str, epoch: int) -> Transaction:
        producer = self._checked(transactional_id, epoch)
        if producer.state is _State.PREPARED:
            raise ConcurrentTransactionsError(transactional_id)
        if producer.state is _State.ONGOING and producer.transaction is not None:
            return producer.transaction
        transaction = producer.transaction = Transaction(transactional_id, epoch)
        producer.state = _State.ONGOING
        loop = asyncio.get_running_loop()
        loop.call_later(producer.timeout_s, self._expire, producer, transaction, context=self._context)
        return transaction

    def _checked(self, transactional_id: str, epoch: int) -> _Producer:
        self._check_available()
        producer = self._producers.get(transactional_id)
        if producer is None or producer.epoch != epoch:
            raise ProducerFencedError(f"{transactional_id}: epoch {epoch} is fenced")
        return producer

    def _check_available(self) -> None:
        """Refuse requests for now; this coordinator always takes them."""

    def _expire(self, producer: _Producer, transaction: Transaction) -> None:
        if producer.transaction is transaction and producer.state is _State.ONGOING:
            self._fence_and_abort(producer)

    def _fence_and_abort(self, producer: _Producer) -> None:
        producer.epoch += 1
        if producer.transaction is not None:
            self._decide(producer, producer.transaction, Decision.ABORT)

    def _decide(self, producer: _Producer, transaction: Transaction, decision: Decision) -> None:
        transaction.decision = decision
        producer.state = _State.PREPARED
        for observe in self.on_decision:
            observe(transaction)
        writes: list[Callable[[], None]] = [self._marker(log, transaction) for log in transaction.logs]
        if transaction.offsets:
            writes.append(lambda: self._mark_offsets(transaction))
        transaction.unmarked = len(writes)
        if not writes:
            producer.state = _State.COMPLETE
        loop = asyncio.get_running_loop()
        for write in writes:
            loop.call_later(self.marker_s(), self._write, producer, transaction, write, context=self._context)

    def _mark_offsets(self, transaction: Transaction) -> None:
        transaction.has_pending_offsets = False
        if transaction.decision is Decision.COMMIT:
            self._complete(transaction)

    def _marker(self, log: PartitionLog, transaction: Transaction) -> Callable[[], None]:
        return lambda: log.mark(transaction, self._wall_ms())

    def _write(self, producer: _Producer, transaction: Transaction, write: Callable[[], None]) -> None:
        write()
        transaction.unmarked -= 1
        if transaction.unmarked == 0 and producer.transaction is transaction:
            producer.state = _State.COMPLETE
