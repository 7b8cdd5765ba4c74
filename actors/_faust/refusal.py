"""How a worker ends that can't start."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from actors._core.logs import escaping

logger = escaping(logging.getLogger(__name__))


def refuse(app: Any, error: Exception) -> NoReturn:
    """End the worker with one line that says why."""
    logger.critical("%s can't start: %s", app.conf.id, error)
    raise SystemExit(1) from None
