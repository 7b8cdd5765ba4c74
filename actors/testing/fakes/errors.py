"""Error answers of the simulated broker, and its clients' errors for a missing answer."""

from __future__ import annotations

from actors.ports import TopicPartition


class RefusedError(Exception):
    """The broker refused a request. `is_retriable` says whether the same request may succeed later."""

    is_retriable = False


class ProducerFencedError(RefusedError):
    """The producer epoch is older than the transactional id's."""


class InvalidTransactionStateError(RefusedError):
    """There is no open transaction, or it isn't open for that partition, or it ended the other way."""


class OffsetOutOfRangeError(RefusedError):
    """The log of `partition` doesn't have `offset`."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(f"{partition} doesn't have offset {offset}")
        self.partition = partition
        self.offset = offset


class UnknownTopicIdError(RefusedError):
    """The topic of `partition` doesn't exist, or has another id than was asked for."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition}: no topic has this id")
        self.partition = partition


class UnknownMemberError(RefusedError):
    """The group doesn't know the member id."""


class IllegalGenerationError(RefusedError):
    """The group is in another generation."""


class RecordRefusedError(RefusedError):
    """The topic never takes this record."""


class ConcurrentTransactionsError(RefusedError):
    """The last transaction's markers are still being written."""

    is_retriable = True


class UnstableOffsetsError(RefusedError):
    """An open transaction may change the committed offset."""


class RebalanceInProgressError(RefusedError):
    """The member has to join again."""

    is_retriable = True


class NoAnswerError(Exception):
    """The connection broke, or the answer didn't come in time: the request took place, or didn't, or will."""
