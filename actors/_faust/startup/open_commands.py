"""A warning that names the admin commands that aren't signed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from actors._core.logs import escaping
from actors.runtime.spec import ActorSpec

logger = escaping(logging.getLogger(__name__))


def warn_open_commands(specs: Iterable[ActorSpec]) -> None:
    """Say which actors obey commands of every producer of their input."""
    commanded = [spec for spec in specs if spec.parked or spec.effects or spec.timers]
    names = [spec.name for spec in commanded if not spec.commands.secrets()]
    if names:
        logger.warning(
            "admin commands aren't signed, since neither worker_secret nor tokens are set: all who may write to the "
            "input of %s may retry and drop what is parked there (the documentation's page 'Security')",
            ", ".join(names),
        )
