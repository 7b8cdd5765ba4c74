"""The cluster that the environment names, in the place of one of our own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from actors.local_kafka.errors import LocalKafkaError

NAMES = ("KAFKA_URL", "KAFKA_BROKERS")
"""Two names of one setting: `kafka://host:port;…` and `host:port,…` go under either."""


def existing_brokers(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the bootstrap list, `host:port,…`; None if the environment names no cluster.

    Raises:
        LocalKafkaError: the two names name different clusters.
    """
    given = {name: _addresses(environment[name]) for name in NAMES if environment.get(name, "").strip()}
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name}={environment[name]}" for name in given)
        raise LocalKafkaError(f"{said} name different clusters: unset one of them")
    return next(iter(given.values()), None)


def _addresses(text: str) -> str:
    parts = [part.strip().removeprefix("kafka://").rstrip("/") for part in re.split("[;,]", text)]
    return ",".join(part for part in parts if part)
