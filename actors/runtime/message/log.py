"""The logger of a message: its lines say which actor, input, offset and key they are about.

A parameter `ctx` is the message's `Context`, which is declared above this module.
"""

from __future__ import annotations

import logging
from typing import Any

from actors.errors import show_bytes

PLACE = "place"
"""The attribute of a log record that has the beginning of its text, for formatters that show the place by itself."""


class MessageLog(logging.LoggerAdapter[logging.Logger]):
    """Logs for a message, to the logger `actors.handlers.{actor}`.

    Each log record has the attributes `actor`, `topic`, `partition`, `offset` and `key`, and its text begins with them.
    The actor is "" for a message that was handled already.
    """

    def __init__(self, ctx: Any, actor: str) -> None:
        key = None if ctx._record.key is None else ctx._raw_key
        text = None if key is None else key.decode("utf-8", errors="backslashreplace")
        place = {"actor": actor, "topic": ctx.topic, "partition": ctx.partition, "offset": ctx.offset, "key": text}
        super().__init__(logging.getLogger(f"actors.handlers.{actor}".rstrip(".")), place)
        self._place = (
            f"actor {actor or '(handled)'}, {ctx.topic}[{ctx.partition}] offset {ctx.offset} key {show_bytes(key)}: "
        )

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a line as `logging.Logger.log` does."""
        if not self.isEnabledFor(level):
            return
        options["extra"] = {**(options.get("extra") or {}), **(self.extra or {}), PLACE: self._place}
        options["stacklevel"] = options.get("stacklevel", 1) + 1
        # Without arguments the text isn't formatted.
        place = self._place.replace("%", "%%") if args else self._place
        self.logger.log(level, f"{place}{msg}", *args, **options)
