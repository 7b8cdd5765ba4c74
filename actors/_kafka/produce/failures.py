"""Why a commit failed: the brokers' answers as errors of ours that say what the task has to do."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)

from actors._kafka.connection import words_of
from actors._kafka.protocol import InvalidRecordError
from actors.ports import TopicPartition

_REFUSED = (
    InvalidRecordError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
"""Answers to a produce that the broker gives before it appends, because of the records themselves. A failed checksum
isn't one: the network may have damaged the batch. Nor are errors about permissions, quotas and policies: the cluster's
administrator can change those, and then the brokers take the same records."""


class TransportFaultError(Exception):
    """A coordinator didn't answer a request of a transaction."""


class ProducerOverError(Exception):
    """A broker doesn't take this producer's epoch any more, with this error code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class PartsFailedError(Exception):
    """Brokers' errors about some partitions of a transaction, nothing of which can be committed then.

    `may_be_late`: a request may still be under way to them. `of_offsets`: the answer is about the group's offsets of
    the partitions, not about records for them: a partition may be an input of one task and an output of another.
    """

    def __init__(
        self, errors: Mapping[TopicPartition, KafkaError], *, may_be_late: bool = False, of_offsets: bool = False
    ) -> None:
        super().__init__("; ".join(f"{part}: {described(error)}" for part, error in errors.items()))
        self.errors = errors
        self.may_be_late, self.of_offsets = may_be_late, of_offsets


def is_refusal(error: KafkaError, *, has_own_time: bool) -> bool:
    """Return whether a leader refused the records themselves, so that another try is refused too.

    A timestamp is the records' own if it is the message's or the handler's; else it is this worker's clock, which may
    be corrected.
    """
    return isinstance(error, _REFUSED) or (isinstance(error, InvalidTimestampError) and has_own_time)


def described(error: BaseException) -> str:
    """Return an error's text, explained where the client's own words don't say enough."""
    if isinstance(error, InvalidTimestampError):
        return (
            f"{words_of(error)}: the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms don't "
            "allow the records' time. Outputs have the time of their message unless timestamp_ms= sets another, other "
            "records that of the worker's clock"
        )
    if isinstance(error, UnknownTopicOrPartitionError):
        return f"{words_of(error)}: the topic isn't on the broker. Create it again: then what needs it goes on"
    return words_of(error)
