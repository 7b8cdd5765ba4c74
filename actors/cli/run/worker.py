"""`faust -A APP worker`: Faust's own command, with several processes, and a banner that says where state is."""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from faust.cli.base import option
from faust.cli.worker import worker as FaustWorker  # noqa: N812  the class has the command's name
from faust.exceptions import AlreadyConfiguredWarning

from actors._faust.brokers import check_schemes
from actors._faust.startup.refusal import refuse
from actors.cli.project import name_app
from actors.cli.run.child import Assignment, apply, take_assignment
from actors.cli.run.json_logs import JSON, log_as_json
from actors.cli.session import one_line_errors
from actors.errors import ConfigurationError


class worker(FaustWorker):  # type: ignore[misc]  # noqa: N801  the class has the command's name
    """Start worker instance for given app."""

    options = (
        *FaustWorker.options,
        option(
            "--processes",
            type=click.IntRange(min=1),
            metavar="N",
            help="Run N workers as processes of their own, with data folders DIR/0, DIR/1, …",
        ),
    )
    _assignment: Assignment | None = None

    def __init__(self, context: click.Context, *args: Any, **kwargs: Any) -> None:
        name_app(context)
        super().__init__(context, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Execute the command."""
        count = self.kwargs.pop("processes")
        self._assignment = take_assignment()
        if count is None or self._assignment is not None:
            super().__call__(*args, **kwargs)
            raise SystemExit(0)
        from actors.cli.run.spawned import say, say_as_json
        from actors.cli.run.supervisor import run_processes

        self._init_worker_options(*self.args, **self.kwargs)
        app_id = str(self.app.conf.id)
        line = say_as_json(app_id, self.logfile) if self._logs_json() else say
        try:
            with one_line_errors():
                raise SystemExit(run_processes(self.app, count, say=line))
        except click.ClickException as error:
            if self._logs_json():
                line(f"{app_id} can't start: {error.message}", logging.CRITICAL)
            else:
                error.show()
            raise SystemExit(error.exit_code) from None

    def _logs_json(self) -> bool:
        options = getattr(self.app, "actor_options", None)
        return options is not None and options.log_format == JSON

    def as_service(self, loop: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the app, with what this process has of its own if it is one of several."""
        service = super().as_service(loop, *args, **kwargs)
        if self._assignment is not None:
            apply(self._assignment, self.app)
        return service

    def _init_worker_options(self, *args: Any, with_web: bool, **options: Any) -> None:
        # The option has a default, which must not take the place of the app's setting.
        if self.ctx.get_parameter_source("with_web") in (None, ParameterSource.DEFAULT):
            with_web = self.app.conf.web_enabled
        with warnings.catch_warnings():
            # Settings were read when the app's module was imported, and options are meant to change them.
            warnings.simplefilter("ignore", AlreadyConfiguredWarning)
            super()._init_worker_options(*args, with_web=with_web, **options)

    def on_worker_created(self, worker: Any) -> None:
        """Print the banner, once for all processes, unless all that is printed has to be JSON.

        A log that isn't a terminal's gets no spinner, which would hide and show the cursor.
        """
        if not self.stdout.isatty():
            worker.spinner = None
        self._check_brokers()
        if self._logs_json():
            log_as_json(worker, self.app)
            return
        if self._assignment is None or self._assignment.index == 0:
            super().on_worker_created(worker)

    def _check_brokers(self) -> None:
        """Refuse URLs for which Faust, which the banner asks, has no driver."""
        try:
            check_schemes(self.app.conf.broker_consumer)
            check_schemes(self.app.conf.broker_producer)
        except ConfigurationError as error:
            refuse(self.app, error)

    def _banner_title(self) -> str:
        if getattr(self.app, "actor_options", None) is None:
            return str(super()._banner_title())
        return f"faust-actors {version('faust-actors')}"

    def _banner_data(self, worker: Any) -> Any:
        return [row for name, text in super()._banner_data(worker) for row in banner_rows(worker.app, name, text)]


def banner_rows(app: Any, name: str, text: str) -> list[tuple[str, str]]:
    """Return the rows of the banner that replace one of Faust's."""
    if name != "store" or not app.actors:
        return [(name, text)]
    rows = [("state", f"RocksDB in {Path(app.conf.datadir)}, changelogs in Kafka")]
    return [*rows, ("tables", text)] if app.tables else rows
