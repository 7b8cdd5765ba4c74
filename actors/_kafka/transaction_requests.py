"""The requests of a transaction, in the versions that aiokafka lacks.

Version 2 of transactions (KIP-890) is chosen by the versions of the requests: `Produce` 12, `TxnOffsetCommit` 5 and
`EndTxn` 5. A coordinator adds partitions and groups by itself then, and raises the producer epoch with each
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.transaction import EndTxnRequest_v0
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from actors.ports import TopicPartition

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_RESULT = (("throttle_time_ms", Int32), ("error_code", Int16))
_PRODUCER = (("producer_id", Int64), ("producer_epoch", Int16))


class _OneVersion(Request[RequestStruct]):  # type: ignore[misc]
    """A request in the one version that it is written for."""

    API_KEY = -1
    STRUCT: type[RequestStruct]

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request; whether the broker has its version was asked before."""
        return self.build(self.STRUCT)

    def build(self, request_struct_class: Any) -> Any:
        """Return the fields as a request."""
        return request_struct_class(*self._fields)


class ApiVersionsResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    """ApiVersions v3, with the cluster's finalised features among the tags."""

    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("api_keys", CompactArray(("api_key", Int16), ("lowest", Int16), ("highest", Int16), _TAGS)),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class ApiVersionsRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """ApiVersions v3."""

    API_KEY = 18
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ApiVersionsResponse_v3
    SCHEMA = Schema(("client_software_name", _TEXT), ("client_software_version", _TEXT), _TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> Any:
        """Read the header, which has no tags in any version of this request (KIP-511)."""
        return ResponseHeader_v0.decode(read_buffer)


class ApiVersionsRequest(_OneVersion):
    """Asks for the versions of requests, and for the cluster's features."""

    API_KEY = 18
    STRUCT = ApiVersionsRequest_v3


_FINALIZED = 2
_FEATURES = CompactArray(("name", _TEXT), ("highest", Int16), ("lowest", Int16), _TAGS)


def finalized_features(response: Any) -> dict[str, int]:
    """Return the level of each feature that the cluster has finalised (KIP-584)."""
    raw = response.tags.get(_FINALIZED)
    return {} if raw is None else {name: level for name, level, _, _ in _FEATURES.decode(BytesIO(raw)) or ()}


class InitProducerIdResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    """InitProducerId v3."""

    API_KEY = 22
    API_VERSION = 3
    SCHEMA = Schema(*_RESULT, *_PRODUCER, _TAGS)


class InitProducerIdRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """InitProducerId v3: since Kafka 2.5."""

    API_KEY = 22
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = InitProducerIdResponse_v3
    SCHEMA = Schema(("transactional_id", _TEXT), ("transaction_timeout_ms", Int32), *_PRODUCER, _TAGS)


class InitProducerIdRequest(_OneVersion):
    """Ends what an id left open, and gives a producer id and epoch that shut out whoever had the id before."""

    API_KEY = 22
    STRUCT = InitProducerIdRequest_v3

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(transactional_id, timeout_ms, -1, -1, {})


class ListTransactionsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801
    """ListTransactions v0."""

    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        *_RESULT,
        ("unknown_states", CompactArray(_TEXT)),
        (
            "transactions",
            CompactArray(("transactional_id", _TEXT), ("producer_id", Int64), ("state", _TEXT), _TAGS),
        ),
        _TAGS,
    )


class ListTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """ListTransactions v0: since Kafka 3.0 (KIP-664)."""

    API_KEY = 66
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ListTransactionsResponse_v0
    SCHEMA = Schema(("states", CompactArray(_TEXT)), ("producer_ids", CompactArray(Int64)), _TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequest_v0]):  # type: ignore[misc]
    """Asks a broker for the open transactions that it coordinates, of the ids that this user may describe."""

    API_KEY = 66

    def build(self, request_struct_class: Any) -> Any:
        """Return the fields as a request."""
        return request_struct_class(["Ongoing"], [], {})


class TxnOffsetCommitResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    """TxnOffsetCommit v3."""

    API_KEY = 28
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class TxnOffsetCommitRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """TxnOffsetCommit v3: the first with the member and its generation (KIP-447)."""

    API_KEY = 28
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TxnOffsetCommitResponse_v3
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("group_id", _TEXT),
        *_PRODUCER,
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class TxnOffsetCommitResponse_v5(TxnOffsetCommitResponse_v3):  # noqa: N801
    """TxnOffsetCommit v5."""

    API_VERSION = 5


class TxnOffsetCommitRequest_v5(TxnOffsetCommitRequest_v3):  # noqa: N801
    """TxnOffsetCommit v5: the group is added to the transaction by it."""

    API_VERSION = 5
    RESPONSE_TYPE = TxnOffsetCommitResponse_v5


class TxnOffsetCommitRequest(_OneVersion):
    """Commits offsets in a transaction."""

    API_KEY = 28

    def __init__(self, *fields: Any, is_version_2: bool) -> None:
        super().__init__(*fields)
        self.STRUCT = TxnOffsetCommitRequest_v5 if is_version_2 else TxnOffsetCommitRequest_v3


class EndTxnResponse_v5(Response):  # type: ignore[misc]  # noqa: N801
    """EndTxn v5: with the producer id and epoch to go on with."""

    API_KEY = 26
    API_VERSION = 5
    SCHEMA = Schema(*_RESULT, *_PRODUCER, _TAGS)


class EndTxnRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """EndTxn v5."""

    API_KEY = 26
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = EndTxnResponse_v5
    SCHEMA = Schema(("transactional_id", _TEXT), *_PRODUCER, ("committed", Boolean), _TAGS)


class EndTxnRequest(_OneVersion):
    """Ends a transaction."""

    API_KEY = 26

    def __init__(self, *fields: Any, is_version_2: bool) -> None:
        super().__init__(*fields, *([{}] if is_version_2 else []))
        self.STRUCT = EndTxnRequest_v5 if is_version_2 else EndTxnRequest_v0


class ProduceResponse_v9(Response):  # type: ignore[misc]  # noqa: N801
    """Produce v9: the first with tags."""

    API_KEY = 0
    API_VERSION = 9
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("base_offset", Int64),
                        ("log_append_time_ms", Int64),
                        ("log_start_offset", Int64),
                        ("record_errors", CompactArray(("index", Int32), ("message", _TEXT), _TAGS)),
                        ("error_message", _TEXT),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class ProduceRequest_v9(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """Produce v9: since Kafka 2.8."""

    API_KEY = 0
    API_VERSION = 9
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ProduceResponse_v9
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("acks", Int16),
        ("timeout_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                ("partitions", CompactArray(("partition", Int32), ("records", CompactBytes), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class ProduceResponse_v12(ProduceResponse_v9):  # noqa: N801
    """Produce v12."""

    API_VERSION = 12


class ProduceRequest_v12(ProduceRequest_v9):  # noqa: N801
    """Produce v12: the partition is added to the transaction by it."""

    API_VERSION = 12
    RESPONSE_TYPE = ProduceResponse_v12


class ProduceRequest(_OneVersion):
    """Appends a batch to each of some partitions, and waits for all replicas. The broker has `timeout_ms` for them."""

    API_KEY = 0

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        batches: Mapping[TopicPartition, bytes],
        *,
        is_version_2: bool,
    ) -> None:
        topics: dict[str, list[Any]] = {}
        for (topic, partition), records in batches.items():
            topics.setdefault(topic, []).append((partition, records, {}))
        super().__init__(transactional_id, -1, timeout_ms, [(name, each, {}) for name, each in topics.items()], {})
        self.STRUCT = ProduceRequest_v12 if is_version_2 else ProduceRequest_v9


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801
    """OffsetFetch v7."""

    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        ("error_code", Int16),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("error_code", Int16),
        _TAGS,
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """OffsetFetch v7: the first that can ask for stable offsets (KIP-447)."""

    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("topics", CompactArray(("name", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
        ("require_stable", Boolean),
        _TAGS,
    )


class ListOffsetsResponse_v5(Response):  # type: ignore[misc]  # noqa: N801
    """ListOffsets v5."""

    API_KEY = 2
    API_VERSION = 5
    _PARTITION = ("partition", Int32), ("error_code", Int16), ("time", Int64), ("offset", Int64), ("epoch", Int32)
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("name", String("utf-8")), ("partitions", Array(*_PARTITION)))),
    )


class ListOffsetsRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """ListOffsets v5: the first whose answer doesn't go back when a partition gets another leader (KIP-207)."""

    API_KEY = 2
    API_VERSION = 5
    RESPONSE_TYPE = ListOffsetsResponse_v5
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("name", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("leader_epoch", Int32), ("time", Int64))),
            ),
        ),
    )


class EndsRequest(_OneVersion):
    """Asks a leader for the high watermarks of partitions."""

    API_KEY = 2
    STRUCT = ListOffsetsRequest_v5
    _ANY_REPLICA, _UNCOMMITTED, _ANY_EPOCH, _LATEST = -1, 0, -1, -1

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append((partition, self._ANY_EPOCH, self._LATEST))
        super().__init__(self._ANY_REPLICA, self._UNCOMMITTED, list(topics.items()))


REQUIRED: Mapping[str, Any] = {
    "InitProducerId": InitProducerIdRequest_v3,
    "TxnOffsetCommit": TxnOffsetCommitRequest_v3,
    "OffsetFetch": OffsetFetchRequest_v7,
    "ListOffsets": ListOffsetsRequest_v5,
    "Produce": ProduceRequest_v9,
}
"""The requests without which a worker can't commit or take over, by their names in the protocol."""


class OffsetsRequest(_OneVersion):
    """Asks for committed offsets; with `require_stable` a partition's error is 88 while a transaction may change it."""

    API_KEY = 9
    STRUCT = OffsetFetchRequest_v7

    def __init__(self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        super().__init__(group, [(name, each, {}) for name, each in topics.items()], require_stable, {})
