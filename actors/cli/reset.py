"""`faust reset`: Faust's own command, which forgets the actors' local state too."""

from __future__ import annotations

import shutil
from contextlib import closing

import click
from faust.cli.reset import reset as faust_reset

from actors._faust.setup import Setup
from stores._core.printable import printable
from stores.errors import StoreError
from stores.folder import DataFolder


class reset(faust_reset):  # type: ignore[misc]  # noqa: N801  the command is called like its class
    """Delete the local state of tables, stores and views. Workers rebuild it from the changelogs.

    No worker may be using the data folder. Nothing on the broker is deleted.
    """

    async def run(self) -> None:
        """Execute the command."""
        if getattr(self.app, "actors", None) or getattr(self.app, "views", None):
            try:
                self._reset_actors(Setup(self.app))
            except (StoreError, OSError) as error:
                click.echo(printable(f"Error: {error}"), err=True)
                raise SystemExit(1) from None
        await super().run()

    def _reset_actors(self, setup: Setup) -> None:
        with closing(DataFolder.open(setup.folder, app=str(self.app.conf.id))) as folder:
            for store in folder.stores_on_disk():
                self.say(f"Removing the databases of store {store}...")
                for partition in folder.partitions_on_disk(store):
                    folder.discard(store, partition)
            if setup.views_folder.exists():
                self.say("Removing the databases of views...")
                shutil.rmtree(setup.views_folder)
