"""Settings that follow from Faust's settings and the environment."""

from __future__ import annotations

import os
from typing import Any

from actors._core.group.placement import PlacementRules
from actors._core.task.takeover import LostChangelog
from actors.errors import ConfigurationError

BROKER_DEFAULT = -1
LOST_CHANGELOG = "LOST_CHANGELOG"


def replication_factor(app: Any) -> int:
    """Return the setting where it was set, else the broker's default: Faust's own default of 1 would lose state."""
    given = "topic_replication_factor" in app._default_options[1] or "TOPIC_REPLICATION_FACTOR" in os.environ
    return int(app.conf.topic_replication_factor) if given else BROKER_DEFAULT


def check_copies(rules: PlacementRules) -> None:
    """Refuse numbers of copies that can't be.

    Raises:
        ConfigurationError: naming the setting.
    """
    settings = {
        "table_standby_replicas": (rules.standbys, 0),
        "acceptable_recovery_lag": (rules.acceptable_lag, 0),
        "max_warmup_replicas": (rules.max_warm_ups, 1),
    }
    for name, (value, least) in settings.items():
        if value < least:
            raise ConfigurationError(f"{name}={value}: use {least} or more")


def lost_changelog(given: str) -> LostChangelog:
    """Return the choice for a changelog that lost records.

    Raises:
        ConfigurationError: there is no such choice.
    """
    try:
        return LostChangelog(given)
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in LostChangelog)
        raise ConfigurationError(f"lost_changelog={given!r} ({LOST_CHANGELOG}) isn't one of {known}") from error


def standby_replicas(app: Any) -> int:
    """Return the setting where it was set, else none: Faust's own default of 1 would double everybody's disks."""
    given = "table_standby_replicas" in app._default_options[1] or "TABLE_STANDBY_REPLICAS" in os.environ
    return int(app.conf.table_standby_replicas) if given else 0
