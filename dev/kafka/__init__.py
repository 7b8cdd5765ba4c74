"""A Kafka cluster on this machine, for tests and for trying things out: `python -m dev.kafka up`."""

from actors.local_kafka.errors import BrokerNotReadyError, ClusterStateError, LocalKafkaError, ToolMissingError
from actors.local_kafka.jars import ensure_jars, kafka_version, tool_command
from actors.local_kafka.ports import free_ports
from actors.local_kafka.probe import Endpoint, alive_brokers
from actors.local_kafka.settings import Secure
from dev.kafka.cluster import BrokerStatus, Cluster
from dev.kafka.existing import existing_brokers
from dev.kafka.tools import (
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_GROUP_COMMAND,
    GET_OFFSET_SHELL,
    LOG_DIRS_COMMAND,
    TOPIC_COMMAND,
    run_tool,
)

__all__ = [
    "CONSOLE_CONSUMER",
    "CONSOLE_PRODUCER",
    "CONSUMER_GROUP_COMMAND",
    "GET_OFFSET_SHELL",
    "LOG_DIRS_COMMAND",
    "TOPIC_COMMAND",
    "BrokerNotReadyError",
    "BrokerStatus",
    "Cluster",
    "ClusterStateError",
    "Endpoint",
    "LocalKafkaError",
    "Secure",
    "ToolMissingError",
    "alive_brokers",
    "ensure_jars",
    "existing_brokers",
    "free_port",
    "free_ports",
    "kafka_version",
    "run_tool",
    "tool_command",
]


def free_port() -> int:
    """Return one of `free_ports`."""
    return free_ports(1)[0]
