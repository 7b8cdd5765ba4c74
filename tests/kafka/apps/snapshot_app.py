"""The counting app; it kills itself with `kill -9` at a step of the first store's loading of a snapshot.

`SNAPSHOT_CRASH_AT` is one of the steps below.
"""

import os
import signal
import threading
from typing import Any

from stores import _files, rocks
from stores.rocks import RocksStore
from stores.snapshot import Snapshot
from tests.kafka.apps.counter_app import app

__all__ = ["app"]

STEPS: dict[str, tuple[Any, str]] = {
    "placed": (Snapshot, "place"),
    "built": (RocksStore, "_build"),
    "removed": (_files, "remove_tree"),
    "exchanged": (rocks, "replace_tree"),
}


def _die_after(holder: Any, name: str) -> None:
    real = getattr(holder, name)
    first = threading.Lock()

    def wrapped(*args: Any, **options: Any) -> None:
        # Another store's thread would come as far while the signal is on its way.
        with first:
            real(*args, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    setattr(holder, name, wrapped)


if "SNAPSHOT_CRASH_AT" in os.environ:
    _die_after(*STEPS[os.environ["SNAPSHOT_CRASH_AT"]])
