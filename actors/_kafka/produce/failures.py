"""Why a commit failed: the client's errors as errors of ours that say what the task has to do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import (
    IllegalOperation,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from actors._kafka.connection import words_of
from actors._kafka.permissions import READ, WRITE, lacking
from actors._kafka.produce.batches import UnpackableError
from actors._kafka.protocol import InvalidRecordError
from actors.ports import CommitBatch, TopicPartition

FENCED = "fenced"
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
    """A transactional request got no answer. No error of the client's own: the client would send the request again."""


class ProduceError(KafkaError):  # type: ignore[misc]
    """The broker's answer to a produce, which is the cause, with the partition that gave it.

    `has_own_time` says whether a handler set the timestamp of a record of the batch.
    """

    def __init__(self, partition: KafkaPartition, error: Exception, *, has_own_time: bool) -> None:
        super().__init__(f"{partition.topic}[{partition.partition}]: {_described(error)}")
        self.has_own_time = has_own_time

    def __str__(self) -> str:
        return str(self.args[0])


class PartsFailedError(Exception):
    """The answers about some partitions of a transaction, which was ended without effect."""

    def __init__(self, errors: Mapping[TopicPartition, KafkaError]) -> None:
        super().__init__("; ".join(f"{part}: {_described(error)}" for part, error in errors.items()))
        self.errors = errors


# A batch that comes after its transaction failed meets IllegalOperation, which is no KafkaError.
FAILED = (KafkaError, IllegalOperation, TransportFaultError, UnpackableError, OSError, TimeoutError, AssertionError)


class Throttle:
    """What brokers said of a producer's quota: they answer, and then don't read its next request for a while."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._send = client.send
        self._told_s = 0.0
        self._at_s = float("-inf")
        client.send = self._noting

    async def _noting(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        response = await self._send(node_id, request, group=group)
        if getattr(response, "throttle_time_ms", 0):
            self._told_s, self._at_s = response.throttle_time_ms / 1000, time.monotonic()
        return response

    def told(self, within_s: float) -> str:
        """Return words about a quota if a broker applied one within so many seconds, "" otherwise."""
        if time.monotonic() - self._at_s > within_s + self._told_s:
            return ""
        return f"; a broker let this client wait {self._told_s:.1f} s, because of a quota of its user or client id"


def is_refusal(error: BaseException) -> bool:
    """Tell whether nothing was appended because of the records themselves, so that another try is refused too.

    A timestamp is the records' own if a handler set it; else it is this worker's clock, which may be corrected.
    """
    if not isinstance(error, ProduceError):
        return isinstance(error, UnpackableError)
    answer = error.__cause__
    return isinstance(answer, _REFUSED) or (isinstance(answer, InvalidTimestampError) and error.has_own_time)


def cause_of(error: BaseException) -> BaseException:
    """Return why a commit failed. An error that ends the client's sender is the cause of a KafkaError without text."""
    return error.__cause__ if type(error) is KafkaError and error.__cause__ is not None else error


def missing_permission(
    error: BaseException | None, principal: str, batch: CommitBatch, group: str, transactional_id: str
) -> str:
    """Return which permission made a commit fail, "" if none did."""
    if isinstance(error, ProduceError):
        error = error.__cause__
    # The answer to an offset names no topic: it is the input's, which needs Read.
    is_input = isinstance(error, TopicAuthorizationFailedError) and not error.args
    name = batch.source.topic if is_input else group
    if isinstance(error, TransactionalIdAuthorizationFailed):
        name = transactional_id
    return lacking(error, principal, READ if is_input else WRITE, name=name)


def reason_of(error: BaseException, deadline_s: float, throttle: Throttle | None) -> str:
    """Return why a commit failed, for people."""
    if isinstance(error, TransportFaultError | ProduceError):
        return str(error)
    if isinstance(error, TimeoutError):
        quota = "" if throttle is None else throttle.told(deadline_s)
        return f"the brokers didn't finish it within {deadline_s:g} s{quota}"
    return _described(error)


def _described(error: BaseException) -> str:
    """Return an error's text, explained where the client's own words don't say enough."""
    if isinstance(error, InvalidTimestampError):
        return f"{words_of(error)}: the topic's limits don't allow the records' time; is a clock wrong?"
    return words_of(error)
