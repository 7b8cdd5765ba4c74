"""The transaction coordinator.

    EMPTY ──add──► ONGOING ──end──► PREPARED ──markers──► COMPLETE ──add──► ONGOING
                      │ init, timeout: epoch + 1, abort      ▲
                      └──────────────► PREPARED ─────────────┘

An end is acknowledged in PREPARED: the decision holds, the markers are written to each partition by and by. Until all
are written the id can't begin again, and `init_producer_id` isn't answered.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
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

    def add_partitions(self, transactional_id: str, epoch: int, logs: Iterable[PartitionLog]) -> None:
        """Announce partitions, which begins a transaction if none is open."""
        transaction = self._begin(transactional_id, epoch)
        transaction.logs.update(dict.fromkeys(logs))

    def add_offsets(self, transactional_id: str, epoch: int) -> None:
        """Announce offsets of a group, which begins a transaction if none is open."""
        self._begin(transactional_id, epoch)

    def commit_offset(
        self, transactional_id: str, epoch: int, group: str, source: TopicPartition, offset: tuple[int, str]
    ) -> None:
        """Add an offset with its metadata to the open transaction; it is pending until the end."""
        transaction = self._ongoing(transactional_id, epoch)
        transaction.offsets[group, source] = offset
        transaction.appended[group, source] = self._appended()

    def writing(self, transactional_id: str, epoch: int, log: PartitionLog) -> Transaction:
        """Return the open transaction if it was announced for this partition (KIP-890 has leaders ask this)."""
        transaction = self._ongoing(transactional_id, epoch)
        if log not in transaction.logs:
            raise InvalidTransactionStateError(f"{log.name} isn't in the transaction of {transactional_id}")
        return transaction

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> None:
        """Decide the open transaction. The same request again is acknowledged, the opposite one refused."""
        producer = self._checked(transactional_id, epoch)
        decision = Decision.COMMIT if commit else Decision.ABORT
        transaction = producer.transaction
        if producer.state is _State.EMPTY or transaction is None:
            raise InvalidTransactionStateError(f"{transactional_id} has no transaction")
        if producer.state is _State.ONGOING:
            self._decide(producer, transaction, decision)
        elif transaction.decision is not decision:
            raise InvalidTransactionStateError(f"{transactional_id}: {transaction.decision.value} already")
        elif producer.state is _State.PREPARED:
            raise ConcurrentTransactionsError(transactional_id)

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

    def _ongoing(self, transactional_id: str, epoch: int) -> Transaction:
        producer = self._checked(transactional_id, epoch)
        if producer.state is not _State.ONGOING or producer.transaction is None:
            raise InvalidTransactionStateError(f"{transactional_id} has no open transaction")
        return producer.transaction

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
        if transaction.offsets and decision is Decision.COMMIT:
            writes.append(lambda: self._complete(transaction))
        transaction.unmarked = len(writes)
        if not writes:
            producer.state = _State.COMPLETE
        loop = asyncio.get_running_loop()
        for write in writes:
            loop.call_later(self.marker_s(), self._write, producer, transaction, write, context=self._context)

    def _marker(self, log: PartitionLog, transaction: Transaction) -> Callable[[], None]:
        return lambda: log.mark(transaction, self._wall_ms())

    def _write(self, producer: _Producer, transaction: Transaction, write: Callable[[], None]) -> None:
        write()
        transaction.unmarked -= 1
        if transaction.unmarked == 0 and producer.transaction is transaction:
            producer.state = _State.COMPLETE
