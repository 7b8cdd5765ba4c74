"""The requests of a transaction, in the versions that aiokafka lacks.

Version 2 of transactions (KIP-890) is chosen by the versions of the requests: `Produce` 12, `TxnOffsetCommit` 5 and
`EndTxn` 5. A coordinator adds partitions and groups by itself then, and raises the producer epoch with each
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, ResponseHeader_v0
from aiokafka.protocol.transaction import EndTxnRequest_v0
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
)

from actors._kafka.protocol import TEXT, by_topic, request_struct, rows
from actors.ports import TopicPartition

_THROTTLE, _ERROR = ("throttle_time_ms", Int32), ("error_code", Int16)
_PRODUCER = (("producer_id", Int64), ("producer_epoch", Int16))


class _OneVersion(Request[RequestStruct]):  # type: ignore[misc]
    """A request in the one version that it is written for; whether the broker has its version was asked before."""

    API_KEY = -1
    STRUCT: Any

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        return self.build(self.STRUCT)

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(*self._fields)


class _ApiVersionsRequest_v3(  # noqa: N801
    request_struct(  # type: ignore[misc]
        "ApiVersions",
        18,
        3,
        asks=(("client_software_name", TEXT), ("client_software_version", TEXT)),
        answers=(_ERROR, ("api_keys", rows(("api_key", Int16), ("lowest", Int16), ("highest", Int16))), _THROTTLE),
    )
):
    """ApiVersions v3, with the cluster's finalised features among the response's tags."""

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> Any:
        """Read the header, which has no tags in any version of this request (KIP-511)."""
        return ResponseHeader_v0.decode(read_buffer)


class ApiVersionsRequest(_OneVersion):
    """Asks for the versions of requests, and for the cluster's features."""

    STRUCT = _ApiVersionsRequest_v3


_FINALIZED = 2
_FEATURES = rows(("name", TEXT), ("highest", Int16), ("lowest", Int16))


def finalized_features(response: Any) -> dict[str, int]:
    """Return the level of each feature that the cluster has finalised (KIP-584)."""
    raw = response.tags.get(_FINALIZED)
    return {} if raw is None else {name: level for name, level, _, _ in _FEATURES.decode(BytesIO(raw)) or ()}


InitProducerIdRequest_v3 = request_struct(
    "InitProducerId",
    22,
    3,
    asks=(("transactional_id", TEXT), ("transaction_timeout_ms", Int32), *_PRODUCER),
    answers=(_THROTTLE, _ERROR, *_PRODUCER),
)
"""Since Kafka 2.5."""


class InitProducerIdRequest(_OneVersion):
    """Ends what an id left open, and gives a producer id and epoch that shut out the former user of the id."""

    STRUCT = InitProducerIdRequest_v3

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(transactional_id, timeout_ms, -1, -1, {})


_ListTransactionsRequest_v0 = request_struct(
    "ListTransactions",
    66,
    0,
    asks=(("states", CompactArray(TEXT)), ("producer_ids", CompactArray(Int64))),
    answers=(
        _THROTTLE,
        _ERROR,
        ("unknown_states", CompactArray(TEXT)),
        ("transactions", rows(("transactional_id", TEXT), ("producer_id", Int64), ("state", TEXT))),
    ),
)
"""Since Kafka 3.0 (KIP-664)."""


class ListTransactionsRequest(Request[_ListTransactionsRequest_v0]):  # type: ignore[misc]
    """Asks a broker for the open transactions that it coordinates, of the ids that this user may describe."""

    API_KEY = 66

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(["Ongoing"], [], {})


TxnOffsetCommitRequest_v3, TxnOffsetCommitRequest_v5 = (
    request_struct(
        "TxnOffsetCommit",
        28,
        version,
        asks=(
            ("transactional_id", TEXT),
            ("group_id", TEXT),
            *_PRODUCER,
            ("generation_id", Int32),
            ("member_id", TEXT),
            ("group_instance_id", TEXT),
            (
                "topics",
                rows(
                    ("name", TEXT),
                    (
                        "partitions",
                        rows(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT)),
                    ),
                ),
            ),
        ),
        answers=(_THROTTLE, ("topics", rows(("name", TEXT), ("partitions", rows(("partition", Int32), _ERROR))))),
    )
    for version in (3, 5)
)
"""3 is the first with the member and its generation (KIP-447). By 5 the group is added to the transaction."""


class TxnOffsetCommitRequest(_OneVersion):
    """Commits offsets in a transaction."""

    def __init__(self, *fields: Any, is_version_2: bool) -> None:
        super().__init__(*fields)
        self.STRUCT = TxnOffsetCommitRequest_v5 if is_version_2 else TxnOffsetCommitRequest_v3


EndTxnRequest_v5 = request_struct(
    "EndTxn",
    26,
    5,
    asks=(("transactional_id", TEXT), *_PRODUCER, ("committed", Boolean)),
    answers=(_THROTTLE, _ERROR, *_PRODUCER),
)
"""Its response has the producer id and epoch to go on with."""


class EndTxnRequest(_OneVersion):
    """Ends a transaction."""

    def __init__(self, *fields: Any, is_version_2: bool) -> None:
        super().__init__(*fields, *([{}] if is_version_2 else []))
        self.STRUCT = EndTxnRequest_v5 if is_version_2 else EndTxnRequest_v0


ProduceRequest_v9, ProduceRequest_v12 = (
    request_struct(
        "Produce",
        0,
        version,
        asks=(
            ("transactional_id", TEXT),
            ("acks", Int16),
            ("timeout_ms", Int32),
            ("topics", rows(("name", TEXT), ("partitions", rows(("partition", Int32), ("records", CompactBytes))))),
        ),
        answers=(
            (
                "topics",
                rows(
                    ("name", TEXT),
                    (
                        "partitions",
                        rows(
                            ("partition", Int32),
                            _ERROR,
                            ("base_offset", Int64),
                            ("log_append_time_ms", Int64),
                            ("log_start_offset", Int64),
                            ("record_errors", rows(("index", Int32), ("message", TEXT))),
                            ("error_message", TEXT),
                        ),
                    ),
                ),
            ),
            _THROTTLE,
        ),
    )
    for version in (9, 12)
)
"""9 is since Kafka 2.8, the first with tags. By 12 the partition is added to the transaction."""


class ProduceRequest(_OneVersion):
    """Appends a batch to each of some partitions, and waits for all replicas. The broker has `timeout_ms` for them."""

    def __init__(
        self,
        transactional_id: str,
        timeout_ms: int,
        batches: Mapping[TopicPartition, bytes],
        *,
        is_version_2: bool,
    ) -> None:
        topics = by_topic((topic, (partition, records, {})) for (topic, partition), records in batches.items())
        super().__init__(transactional_id, -1, timeout_ms, [(name, each, {}) for name, each in topics], {})
        self.STRUCT = ProduceRequest_v12 if is_version_2 else ProduceRequest_v9


OffsetFetchRequest_v7 = request_struct(
    "OffsetFetch",
    9,
    7,
    asks=(
        ("group_id", TEXT),
        ("topics", rows(("name", TEXT), ("partitions", CompactArray(Int32)))),
        ("require_stable", Boolean),
    ),
    answers=(
        _THROTTLE,
        (
            "topics",
            rows(
                ("name", TEXT),
                (
                    "partitions",
                    rows(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", TEXT), _ERROR),
                ),
            ),
        ),
        _ERROR,
    ),
)
"""The first that can ask for stable offsets (KIP-447)."""


_NAME = ("name", String("utf-8"))
_ListOffsetsRequest_v5 = request_struct(
    "ListOffsets",
    2,
    5,
    asks=(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        ("topics", Array(_NAME, ("partitions", Array(("partition", Int32), ("leader_epoch", Int32), ("time", Int64))))),
    ),
    answers=(
        _THROTTLE,
        (
            "topics",
            Array(
                _NAME,
                (
                    "partitions",
                    Array(("partition", Int32), _ERROR, ("time", Int64), ("offset", Int64), ("epoch", Int32)),
                ),
            ),
        ),
    ),
    has_tags=False,
)
"""The first whose answer doesn't go back when a partition gets another leader (KIP-207)."""


class EndsRequest(_OneVersion):
    """Asks a leader for the high watermarks of partitions."""

    STRUCT = _ListOffsetsRequest_v5
    _ANY_REPLICA, _UNCOMMITTED, _ANY_EPOCH, _LATEST = -1, 0, -1, -1

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        topics = by_topic((topic, (partition, self._ANY_EPOCH, self._LATEST)) for topic, partition in partitions)
        super().__init__(self._ANY_REPLICA, self._UNCOMMITTED, topics)


REQUIRED: Mapping[str, Any] = {
    "InitProducerId": InitProducerIdRequest_v3,
    "TxnOffsetCommit": TxnOffsetCommitRequest_v3,
    "OffsetFetch": OffsetFetchRequest_v7,
    "ListOffsets": _ListOffsetsRequest_v5,
    "Produce": ProduceRequest_v9,
}
"""The requests without which a worker can't commit or take over, by their names in the protocol."""


class OffsetsRequest(_OneVersion):
    """Asks for committed offsets; with `require_stable` a partition's error is 88 while a transaction may change it."""

    STRUCT = OffsetFetchRequest_v7

    def __init__(self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool) -> None:
        super().__init__(group, [(name, each, {}) for name, each in by_topic(partitions)], require_stable, {})
