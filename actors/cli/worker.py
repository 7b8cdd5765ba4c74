"""`faust -A APP worker`, whose banner says where the state of actors is: Faust's `store` is that of its own tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faust.cli.worker import worker as FaustWorker  # noqa: N812  the class has the command's name


class worker(FaustWorker):  # type: ignore[misc]  # noqa: N801  the class has the command's name
    """Start worker instance for given app."""

    def _banner_data(self, worker: Any) -> Any:
        return [row for name, text in super()._banner_data(worker) for row in banner_rows(worker.app, name, text)]


def banner_rows(app: Any, name: str, text: str) -> list[tuple[str, str]]:
    """Return the rows of the banner that replace one of Faust's."""
    if name != "store" or not app.actors:
        return [(name, text)]
    rows = [("state", f"RocksDB in {Path(app.conf.datadir)}, changelogs in Kafka")]
    return [*rows, ("tables", text)] if app.tables else rows
