"""The lock service as an app of its own: `faust -A actors.coordination.app worker`.

KAFKA_URL says where the broker is, KAFKA_USER and the settings beside it (docs/how-to/coordination.md) how to get in,
COORDINATION_APP how the app is called, and COORDINATION_PARTITIONS how many partitions its topic is made with; a topic
that exists stays as it is.
"""

from __future__ import annotations

import os

from actors import App
from actors.coordination.environment import broker_settings
from actors.coordination.service.coordinator import PARTITIONS, coordination
from actors.errors import ConfigurationError


def _partitions() -> int:
    given = os.environ.get("COORDINATION_PARTITIONS", str(PARTITIONS))
    if not given.isdecimal() or not int(given):
        raise ConfigurationError(f"COORDINATION_PARTITIONS={given!r}: it has to be a number from 1 on, such as 1 or 8")
    return int(given)


app = App(os.environ.get("COORDINATION_APP", "coordination"), **broker_settings(os.environ))
Coordinator = coordination(app, partitions=_partitions())
