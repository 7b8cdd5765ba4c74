"""A worker's log as JSON, one object a line, for programs that collect logs: `log_format="json"`."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from typing import Any

from actors.errors import ConfigurationError, RecordError
from actors.ports import TopicPartition
from actors.runtime.message.context import current_message
from actors.runtime.message.tools import PLACE
from stores._core.printable import printable_json

JSON = "json"
_OF_A_TASK = re.compile(r"actor (?P<actor>\S+) (?P<topic>[\w.\-]+)\[(?P<partition>\d+)\]")
"""The names of the runtime's tasks that run an actor on a partition."""


class JsonFormatter(logging.Formatter):
    """Formats a log record as a line of JSON."""

    def __init__(self, app: str) -> None:
        super().__init__()
        self._app = app

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, with characters that aren't printable escaped."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage().removeprefix(getattr(record, PLACE, "")),
            "app": self._app,
            **_place(record),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return printable_json(line)


def _place(record: logging.LogRecord) -> dict[str, Any]:
    """Return the actor, topic, partition, offset and key that a log record is about, as far as they are known."""
    found: dict[str, Any] = {}
    if hasattr(record, PLACE):
        return {name: getattr(record, name) for name in ("actor", "topic", "partition", "offset", "key")}
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None and (named := _OF_A_TASK.fullmatch(task.get_name())):
        found = {**named.groupdict(), "partition": int(named["partition"])}
    ctx = current_message.get(None)
    if ctx is not None and ctx._state is not None:
        found |= {"topic": ctx.topic, "partition": ctx.partition, "offset": ctx.offset, "key": _text(ctx._raw_key)}
    args = record.args if isinstance(record.args, tuple) else ()
    about = [getattr(record, "about", None), *(getattr(one, "_given", one) for one in args)]
    for one in about:
        if isinstance(one, RecordError):
            return found | {
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "key": _text(one.key),
            }
    for one in about:
        if isinstance(one, TopicPartition) and (one.topic, one.partition) != (
            found.get("topic"),
            found.get("partition"),
        ):
            return {"topic": one.topic, "partition": one.partition}
    return found


def _text(key: bytes | None) -> str | None:
    """Return a key as text, with escapes for bytes that aren't UTF-8."""
    return None if key is None else key.decode("utf-8", errors="backslashreplace")


def log_as_json(worker: Any, app: Any) -> None:
    """Have a worker of Faust's log as JSON, to its file or to the standard output, and print nothing else.

    Raises:
        ConfigurationError: the app has a logging configuration of its own.
    """
    if worker.logging_config is not None:
        raise ConfigurationError("log_format='json' and logging_config contradict each other: leave one out")
    made = {"()": JsonFormatter, "app": str(app.conf.id)}
    worker.logging_config = {"version": 1, "merge": True, "formatters": {"colored": made, "default": made}}
    worker.spinner, worker.quiet = None, True
