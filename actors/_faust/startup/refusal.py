"""How a start that can't work ends."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from actors._core.logs import escaping
from actors.errors import BrokerRefusedError, BrokerUnavailableError

logger = escaping(logging.getLogger(__name__))

REACH = "Check that the broker runs, and the app's setting `broker` (BROKER_URL in the environment)"
"""The remedy where no broker answers."""


class RefusedStart(SystemExit):
    """The end of a worker that can't start.

    Attributes:
        reason: why not.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(1)
        self.reason = reason


def told(error: Exception) -> str:
    """Return an error's text for an operator, with what to do where no broker answers."""
    if not isinstance(error, BrokerUnavailableError) or isinstance(error, BrokerRefusedError) or error.missing:
        return str(error)
    return f"{error}. {REACH}"


def refuse(app: Any, error: Exception) -> NoReturn:
    """End the worker with one line that says why."""
    logger.critical("%s can't start: %s", app.conf.id, told(error))
    raise RefusedStart(error) from None
