"""Requests and error codes of Kafka's protocol that aiokafka lacks."""

from __future__ import annotations

import uuid
from io import BytesIO
from typing import Any

from aiokafka.errors import BrokerResponseError, kafka_errors
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)


class _InvalidRecordError(BrokerResponseError):  # type: ignore[misc]
    errno = 87
    message = "INVALID_RECORD"
    description = "The broker's validation of a batch failed, and nothing of the batch was appended (KIP-467)."


# The client maps every code that it doesn't know to the same error, which loses the number.
InvalidRecordError: type[BrokerResponseError] = kafka_errors.setdefault(_InvalidRecordError.errno, _InvalidRecordError)


class Uuid(AbstractType):  # type: ignore[misc]
    """Sixteen raw bytes."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        """Return the bytes of `value`."""
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        """Read sixteen bytes."""
        return uuid.UUID(bytes=data.read(16))


NO_TOPIC_ID = uuid.UUID(int=0)


class TopicIdsResponse_v12(Response):  # type: ignore[misc]  # noqa: N801
    """Metadata v12: the first versions with topic ids are 10 to 12 (KIP-516)."""

    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class TopicIdsRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """Metadata v12."""

    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TopicIdsResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(Request[TopicIdsRequest_v12]):  # type: ignore[misc]
    """Asks for topics by name, never creating one; the answer has their ids and partitions.

    With `operations` it has what this user may do with each of them, as bits by Kafka's codes.
    """

    API_KEY = 3

    def __init__(self, topics: list[str], *, operations: bool = False) -> None:
        self._topics = topics
        self._operations = operations

    def build(self, request_struct_class: Any) -> Any:
        """Return the request for the negotiated version."""
        topics: list[Any] = [(NO_TOPIC_ID, name, {}) for name in self._topics]
        return request_struct_class(topics, False, self._operations, {})


class FetchResponse_v13(Response):  # type: ignore[misc]  # noqa: N801
    """Fetch v13: the first version that names topics by id (KIP-516)."""

    API_KEY = 1
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("highwater_offset", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        (
                            "aborted_transactions",
                            CompactArray(("producer_id", Int64), ("first_offset", Int64), ("tags", TaggedFields)),
                        ),
                        ("preferred_read_replica", Int32),
                        ("message_set", CompactBytes),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class FetchRequest_v13(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """Fetch v13."""

    API_KEY = 1
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = FetchResponse_v13
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("max_bytes", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        (
            "forgotten_topics_data",
            CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)),
        ),
        ("rack_id", CompactString("utf-8")),
        ("tags", TaggedFields),
    )
