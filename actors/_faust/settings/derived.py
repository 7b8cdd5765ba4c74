"""Settings of Faust's that count only where they were set."""

from __future__ import annotations

import os
from typing import Any

from actors.errors import ConfigurationError

BROKER_DEFAULT = -1


def replication_factor(app: Any) -> int:
    """Return the setting where it was set, else the broker's default: Faust's own default of 1 would lose state."""
    return int(app.conf.topic_replication_factor) if _is_set(app, "topic_replication_factor") else BROKER_DEFAULT


def standby_replicas(app: Any) -> int:
    """Return the setting where it was set, else none: Faust's own default of 1 would double everybody's disks.

    Raises:
        ConfigurationError: it is negative.
    """
    count = int(app.conf.table_standby_replicas) if _is_set(app, "table_standby_replicas") else 0
    if count < 0:
        raise ConfigurationError(f"table_standby_replicas={count}: use 0 or more")
    return count


def _is_set(app: Any, name: str) -> bool:
    return name in app._default_options[1] or name.upper() in os.environ
