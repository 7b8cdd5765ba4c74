"""The worker of `faust dev`: makes the app's topics, and logs for people. Run as a program by `dev.py`."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import click
from faust.cli.faust import cli
from faust.exceptions import AlreadyConfiguredWarning

from actors._faust.setup import Setup
from actors._faust.startup.needs import topic_needs
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.topics import Topics
from actors.cli.project import load_app
from actors.cli.session import one_line_errors

PARTITIONS = 4
"""Of topics that are made here, where the app doesn't say it."""
BROKER_DEFAULT = -1


class _ServiceLines(logging.Filter):
    """Drops the lines in which Faust's services say that they start and stop."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("[^")


LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"dev": {"format": "%(asctime)s %(levelname)s %(message)s", "datefmt": "%H:%M:%S"}},
    "filters": {"services": {"()": _ServiceLines}},
    "handlers": {
        "dev": {
            "class": "logging.StreamHandler",
            "formatter": "dev",
            "filters": ["services"],
            "stream": "ext://sys.stderr",
        }
    },
    "root": {"handlers": ["dev"], "level": "INFO"},
    "loggers": {
        name: {"level": "WARNING"}
        for name in ("aiohttp.access", "faust", "mode.services", "mode.timers", "mode.worker")
    }
    # The worker itself says which brokers are away.
    | {"aiokafka": {"level": "CRITICAL"}},
}


def main(module: str, data: str, web_port: str) -> None:
    """Run the worker of an app; ends the process."""
    app = _imported(module)
    app.register_schemas = True
    try:
        with one_line_errors():
            asyncio.run(_make_topics(app))
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    # The topics were made by these settings; the worker reads them when it starts.
    warnings.filterwarnings("ignore", category=AlreadyConfiguredWarning)
    app.conf.logging_config = LOGGING
    arguments = ["-A", module, "-D", data, "worker", "--loglevel", "info", "--web-bind", "127.0.0.1"]
    cli.main([*arguments, "--web-port", web_port], prog_name="faust")


def _imported(module: str) -> Any:
    """Return the app of a module; ends the process, with what is wrong in the module's own files, if it can't."""
    try:
        return load_app(module)
    except click.ClickException as said:
        # Who edits the module needs its own frames too, beside the line that commands end with.
        error = said.__cause__ or said
    trace, here = error.__traceback__, str(Path.cwd())
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        traceback.print_exception(error, limit=0)
    else:
        traceback.print_exception(type(error), error, trace or error.__traceback__)
    raise SystemExit(1)


async def _make_topics(app: Any) -> None:
    """Make the declared topics that are missing; the worker makes its own."""
    setup = Setup(app)
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        topics = Topics(setup.connection, control)
        wanted = [need for need in topic_needs(setup) if not need.is_made]
        for need in wanted:
            await topics.ensure_plain({need.name: need.partitions or PARTITIONS}, BROKER_DEFAULT, need.config)


if __name__ == "__main__":
    main(*sys.argv[1:])
