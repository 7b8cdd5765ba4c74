"""A worker's data folder for commands that read it, with what a test driver's actors wrote."""

from __future__ import annotations

import warnings
from pathlib import Path

from faust.exceptions import AlreadyConfiguredWarning

from actors import App
from actors._faust.setup import Setup
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksStore


def write_data_folder(app: App, root: Path, driver: ActorTestDriver) -> None:
    """Make `root` the app's data folder, and write the driver's stores into it."""
    with warnings.catch_warnings():
        # Another test of this process may have looked at the folder.
        warnings.simplefilter("ignore", AlreadyConfiguredWarning)
        app.conf.datadir = root
        folder = DataFolder.open(Setup(app).folder, app=app.conf.id)
    for files in driver._disk.files():
        partition = int(files.path.name.rpartition("-")[2])
        path, identity = folder.store_path(files.store, partition), folder.identity(files.store, partition)
        database = RocksStore.open(path, identity=identity)
        database.apply(list(files.data.items()), Position(10, 20, 0, 1, "id"))
        database.close()
    folder.close()
