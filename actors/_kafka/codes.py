"""The meaning of the brokers' error codes for a transaction."""

from __future__ import annotations

from aiokafka.errors import KafkaError, for_code

OK = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
TOPIC_AUTHORIZATION_FAILED = 29
CONCURRENT_TRANSACTIONS = 51
OPERATION_NOT_ATTEMPTED = 55
NOT_HERE = frozenset((15, 16))
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: it is looked up again."""
COORDINATOR_WAITS = frozenset((14, *NOT_HERE, CONCURRENT_TRANSACTIONS))
"""And COORDINATOR_LOAD_IN_PROGRESS: the same request may be sent again."""
LEADER_MOVED = frozenset((UNKNOWN_TOPIC_OR_PARTITION, 5, 6, 9, 56, 74, 75))
"""And LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR,
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH: the leader is looked up again."""
PRODUCE_WAITS = frozenset((REQUEST_TIMED_OUT, 13, 19, 20, 89, CONCURRENT_TRANSACTIONS)) | LEADER_MOVED
"""And NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, THROTTLING_QUOTA:
the same batch may be sent again, with its sequence number."""
OF_A_PARTITION = frozenset((UNKNOWN_TOPIC_OR_PARTITION, 12, 28, TOPIC_AUTHORIZATION_FAILED))
"""And OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE: what a
coordinator answers about a partition. Everything else it says of the group, the member or the producer."""
PRODUCER_IS_OVER = frozenset((45, 46, 47, 48, 49, 59, 90, 120))
"""OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED, TRANSACTION_ABORTABLE: nothing is sent with this
producer epoch any more."""
FENCED = frozenset((47, 90))
FENCED_INSTANCE_ID = 82
UNSTABLE_OFFSET_COMMIT = 88

_NAMES = {
    56: "KAFKA_STORAGE_ERROR",
    59: "UNKNOWN_PRODUCER_ID",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    82: "FENCED_INSTANCE_ID",
    88: "UNSTABLE_OFFSET_COMMIT",
    89: "THROTTLING_QUOTA_EXCEEDED",
    90: "PRODUCER_FENCED",
    120: "TRANSACTION_ABORTABLE",
}


def error_of(code: int, *about: object) -> KafkaError:
    """Return the client's error for a code; one that the client doesn't know keeps its number."""
    found = for_code(code)
    if found.errno != code:
        return KafkaError(f"{_NAMES.get(code, 'error code')} ({code})")
    return found(*about)
