"""How a start that can't work ends."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from actors._core.logs import escaping

logger = escaping(logging.getLogger(__name__))


class RefusedStart(SystemExit):
    """The end of a worker that can't start.

    Attributes:
        reason: why not.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(1)
        self.reason = reason


def refuse(app: Any, error: Exception) -> NoReturn:
    """End the worker with one line that says why."""
    logger.critical("%s can't start: %s", app.conf.id, error)
    raise RefusedStart(error) from None
