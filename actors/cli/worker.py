"""`faust -A APP worker`, whose banner says where the state of actors is: Faust's `store` is that of its own tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.core import ParameterSource
from faust.cli.worker import worker as FaustWorker  # noqa: N812  the class has the command's name


class worker(FaustWorker):  # type: ignore[misc]  # noqa: N801  the class has the command's name
    """Start worker instance for given app."""

    def _init_worker_options(self, *args: Any, with_web: bool, **options: Any) -> None:
        # The option has a default, which must not take the place of the app's setting.
        if self.ctx.get_parameter_source("with_web") in (None, ParameterSource.DEFAULT):
            # Faust would warn of a setting that is changed after it was read as `conf.web_enabled`.
            with_web = self.app.conf._web_enabled
        super()._init_worker_options(*args, with_web=with_web, **options)

    def _banner_data(self, worker: Any) -> Any:
        return [row for name, text in super()._banner_data(worker) for row in banner_rows(worker.app, name, text)]


def banner_rows(app: Any, name: str, text: str) -> list[tuple[str, str]]:
    """Return the rows of the banner that replace one of Faust's."""
    if name != "store" or not app.actors:
        return [(name, text)]
    rows = [("state", f"RocksDB in {Path(app.conf.datadir)}, changelogs in Kafka")]
    return [*rows, ("tables", text)] if app.tables else rows
