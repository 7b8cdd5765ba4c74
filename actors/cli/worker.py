"""`faust -A APP worker`, whose banner says where the state of actors is: Faust's `store` is that of its own tables."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from click.core import ParameterSource
from faust.cli.worker import worker as FaustWorker  # noqa: N812  the class has the command's name
from faust.exceptions import AlreadyConfiguredWarning

from actors._faust.startup.json_logs import JSON, check_log_format, log_as_json


class worker(FaustWorker):  # type: ignore[misc]  # noqa: N801  the class has the command's name
    """Start worker instance for given app."""

    def _init_worker_options(self, *args: Any, with_web: bool, **options: Any) -> None:
        # The option has a default, which must not take the place of the app's setting.
        if self.ctx.get_parameter_source("with_web") in (None, ParameterSource.DEFAULT):
            with_web = self.app.conf.web_enabled
        with warnings.catch_warnings():
            # Settings were read when the app's module was imported, and options are meant to change them.
            warnings.simplefilter("ignore", AlreadyConfiguredWarning)
            super()._init_worker_options(*args, with_web=with_web, **options)

    def on_worker_created(self, worker: Any) -> None:
        """Print the banner, unless all that is printed has to be JSON."""
        options = getattr(self.app, "actor_options", None)
        if options is not None:
            check_log_format(options.log_format)
            if options.log_format == JSON:
                log_as_json(worker, self.app)
                return
        super().on_worker_created(worker)

    def _banner_data(self, worker: Any) -> Any:
        return [row for name, text in super()._banner_data(worker) for row in banner_rows(worker.app, name, text)]


def banner_rows(app: Any, name: str, text: str) -> list[tuple[str, str]]:
    """Return the rows of the banner that replace one of Faust's."""
    if name != "store" or not app.actors:
        return [(name, text)]
    rows = [("state", f"RocksDB in {Path(app.conf.datadir)}, changelogs in Kafka")]
    return [*rows, ("tables", text)] if app.tables else rows
