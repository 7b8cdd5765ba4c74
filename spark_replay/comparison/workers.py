"""Workers' data folders read offline: their RocksDB databases are exported into a folder that goes away.

That is `state export` without the app: nothing is changed, and a worker may be using the folder. Each partition is then
read as of one moment of its own, with the position of that moment. It runs on this machine, not on Spark's executors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from spark_replay.errors import ExportError, ToolMissingError
from spark_replay.fold.points import now_ms
from spark_replay.session import first_line
from spark_replay.sources.changelog import store_of

ABOUT = "worker.json"
_DEPTHS = ("", "*/", "*/*/", "*/*/*/", "*/*/*/*/")
"""What `-D` was given has the file two folders deeper, and several workers' folders may lie in one."""


def find_workers(folder: Path) -> list[Path]:
    """Return the data folders in a folder, by the file that each has."""
    return sorted({path.parent for depth in _DEPTHS for path in folder.glob(f"{depth}{ABOUT}")})


def export_workers(folders: list[Path], to: Path, *, changelog: str, placement: str, partition_count: int) -> int:
    """Export what data folders hold of a changelog's store; give how many of them hold something.

    Raises:
        ToolMissingError: rocksdict isn't installed.
        ExportError: A folder can't be read, or none holds the store.
    """
    try:
        from stores.export import export_store
    except ImportError as error:
        raise ToolMissingError(
            f"RocksDB folders can't be read here ({first_line(error)}): pip install faust-actors, or hand over what "
            "`state export` wrote on the worker's machine"
        ) from error
    from stores.errors import StoreError, UnknownStoreError
    from stores.folder import DataFolder

    refused = []
    count = 0
    for folder in folders:
        try:
            app = DataFolder.inspect(folder).app
            store = store_of(changelog, app)
            if store is None:
                refused.append(f"{folder} belongs to the app {app}")
                continue
            export_store(
                folder,
                store,
                to,
                app=app,
                changelog=changelog,
                placement=placement,
                partition_count=partition_count,
                worker=worker_name(folder),
                now_ms=now_ms(),
            )
        except UnknownStoreError as error:
            refused.append(str(error))
        except StoreError as error:
            raise ExportError(f"the data folder {folder} can't be read: {first_line(error)}") from error
        else:
            count += 1
    if not count:
        raise ExportError(f"no data folder holds the store of {changelog}: {'; '.join(refused)}")
    return count


def worker_name(folder: Path) -> str:
    """Return a name that says where a data folder is: of one folder always the same, of two never."""
    parts = [part for part in folder.absolute().parts if part not in ("/", "actors")]
    mark = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:6]
    name = "-".join(parts[-2:])
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name) + f"-{mark}"
