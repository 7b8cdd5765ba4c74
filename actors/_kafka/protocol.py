"""Requests and error codes of Kafka's protocol that aiokafka lacks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from io import BytesIO
from typing import Any, TypeAlias

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
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        """Read sixteen bytes."""
        return uuid.UUID(bytes=data.read(16))


NO_TOPIC_ID = uuid.UUID(int=0)


Field: TypeAlias = tuple[str, AbstractType]
TEXT = CompactString("utf-8")
TAGS: Field = ("tags", TaggedFields)


def by_topic(parts: Iterable[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return (topic, part) pairs as requests have them: each topic once, with its parts in their order."""
    topics: dict[str, list[Any]] = {}
    for topic, part in parts:
        topics.setdefault(topic, []).append(part)
    return list(topics.items())


def rows(*fields: Field) -> CompactArray:
    """Return the type of a list of rows, each with tags at its end."""
    return CompactArray(*fields, TAGS)


def request_struct(
    name: str, api_key: int, version: int, *, asks: tuple[Field, ...], answers: tuple[Field, ...], has_tags: bool = True
) -> Any:
    """Return the class of a request in one version, whose `RESPONSE_TYPE` is that of the response."""
    common, tags = {"API_KEY": api_key, "API_VERSION": version}, (TAGS,) if has_tags else ()
    response = type(f"{name}Response_v{version}", (Response,), {**common, "SCHEMA": Schema(*answers, *tags)})
    own = {"FLEXIBLE_VERSION": has_tags, "RESPONSE_TYPE": response, "SCHEMA": Schema(*asks, *tags)}
    return type(f"{name}Request_v{version}", (RequestStruct,), {**common, **own})


TopicIdsRequest_v12 = request_struct(
    "TopicIds",
    3,
    12,
    asks=(
        ("topics", rows(("topic_id", Uuid), ("name", TEXT))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
    ),
    answers=(
        ("throttle_time_ms", Int32),
        ("brokers", rows(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT))),
        ("cluster_id", TEXT),
        ("controller_id", Int32),
        (
            "topics",
            rows(
                ("error_code", Int16),
                ("name", TEXT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    rows(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    ),
)
"""Metadata v12: the first versions with topic ids are 10 to 12 (KIP-516)."""


class TopicIdsRequest(Request[TopicIdsRequest_v12]):  # type: ignore[misc]
    """Asks for topics by name, never creating one; the answer has their ids and partitions.

    With `operations` it has what this user may do with each of them, as bits by Kafka's codes.
    """

    API_KEY = 3

    def __init__(self, topics: list[str], *, operations: bool = False) -> None:
        self._topics = topics
        self._operations = operations

    def build(self, request_struct_class: Any) -> Any:
        topics: list[Any] = [(NO_TOPIC_ID, name, {}) for name in self._topics]
        return request_struct_class(topics, False, self._operations, {})


FetchRequest_v13 = request_struct(
    "Fetch",
    1,
    13,
    asks=(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            rows(
                ("topic_id", Uuid),
                (
                    "partitions",
                    rows(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("max_bytes", Int32),
                    ),
                ),
            ),
        ),
        ("forgotten_topics_data", rows(("topic_id", Uuid), ("partitions", CompactArray(Int32)))),
        ("rack_id", TEXT),
    ),
    answers=(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "topics",
            rows(
                ("topic_id", Uuid),
                (
                    "partitions",
                    rows(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("highwater_offset", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        ("aborted_transactions", rows(("producer_id", Int64), ("first_offset", Int64))),
                        ("preferred_read_replica", Int32),
                        ("message_set", CompactBytes),
                    ),
                ),
            ),
        ),
    ),
)
"""Fetch v13: the first version that names topics by id (KIP-516)."""
FetchResponse_v13 = FetchRequest_v13.RESPONSE_TYPE
