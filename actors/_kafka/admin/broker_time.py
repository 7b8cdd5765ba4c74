"""The brokers' time: the timestamp that they give a record of a topic with LogAppendTime."""

from __future__ import annotations

from collections.abc import Mapping

from actors._kafka.client import producing
from actors._kafka.connection import Connection
from actors.errors import ConfigurationError

BROKER_TIME = "message.timestamp.type"
BROKER_TIME_CONFIG = {BROKER_TIME: "LogAppendTime"}
"""The setting of a topic whose records get the broker's time."""
KEY = b"clock:"
"""Of records without meaning: no reader of the registry of owners has an entry with this key."""


def require_broker_time(topic: str, config: Mapping[str, str]) -> None:
    """Check the setting of the topic that clocks are compared by.

    Raises:
        ConfigurationError: the topic has another one.
    """
    if config.get(BROKER_TIME) != BROKER_TIME_CONFIG[BROKER_TIME]:
        change = f"{BROKER_TIME}={BROKER_TIME_CONFIG[BROKER_TIME]}"
        raise ConfigurationError(
            f"topic {topic} has {BROKER_TIME}={config.get(BROKER_TIME)}, so clocks can't be compared with the "
            f"brokers': kafka-configs.sh --bootstrap-server BROKER --alter --topic {topic} --add-config {change}"
        )


async def broker_time_ms(connection: Connection, topic: str) -> int | None:
    """Append a tombstone and return its time in Unix milliseconds; None if the topic lacks `BROKER_TIME_CONFIG`.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    async with producing(f"asking for the time with a record in {topic}", connection, "clock") as producer:
        written = await producer.send_and_wait(topic, None, KEY, partition=0)
    has_its_time = written.timestamp_type == 1
    return int(written.timestamp) if has_its_time else None
