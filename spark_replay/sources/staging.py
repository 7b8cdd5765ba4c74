"""A folder that appears, or is replaced, when its content is complete.

The content is made in a folder beside it, `.NAME.work`, by the run that has locked `.NAME.lock`. What a killed run left
there, the next run removes; if it was killed between taking the old content away and putting the new one in its place,
the next run puts the old one back first.

Other users can read neither folder, except below a folder with the setgid bit, see `stores._files`. Files of executors
that run as another user keep the modes that these gave them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_replay.errors import TargetError
from stores._files import make_folder, open_private, tighten, tighten_tree

NEW = "new"
_OLD = "old"
_FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(/.*)", re.DOTALL)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gs|abfss?|hdfs|delta|iceberg):")
_STORAGE = re.compile(r"(?:s3a|gs|abfss|hdfs)://[^/]+")
"""URIs of Spark's file systems, with bucket or host."""
_TABLE = re.compile(r"(delta|iceberg):(.+)", re.DOTALL)


def table_format(where: object) -> str:
    """Return `delta` of `delta:PATH`, `iceberg` of `iceberg:CATALOG.TABLE`, and an empty text of what is no table."""
    match = _TABLE.fullmatch(str(where))
    return match[1] if match else ""


def local_folder(where: str | Path) -> Path | None:
    """Return the path that a path or a `file://` URI stands for; None for a URI of object storage or HDFS.

    Raises:
        TargetError: It is another URI, or one that lacks a bucket or host.
    """
    text = str(where)
    # a Path of file:///a is file:/a
    is_file = _FILE_URI.fullmatch(text)
    if is_file is not None or _URI.match(text) is None:
        return Path(text if is_file is None else is_file[1])
    if _STORAGE.match(text) is None:
        raise TargetError(
            f"{text} isn't supported: give a path, or a URI such as s3a://bucket/folder (also gs://, abfss:// and "
            "hdfs://, which are untested)"
        )
    return None


@contextmanager
def replacing(to: Path) -> Iterator[Path]:
    """Return a folder to work in; what is in its `new` takes the place of `to` when the block ends well.

    Raises:
        TargetError: Another run is writing to `to`, or it can't be written.
    """
    to = to.absolute()
    work = to.with_name(f".{to.name}.work")
    try:
        with alone(to.with_name(f".{to.name}.lock"), to):
            make_folder(work)
            _require_own(work)
            tighten(work)
            try:
                _recover(work, to)
                # what a killed run's executors still write lies in a folder of its own
                run = work / uuid.uuid4().hex
                run.mkdir()
                yield run
                tighten_tree(run / NEW)
                if to.exists():
                    to.rename(work / _OLD)
                (run / NEW).rename(to)
            finally:
                _restore(work, to)
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise TargetError(f"{to} can't be written: {error}") from error


@contextmanager
def alone(lock: Path, to: Path) -> Iterator[None]:
    """Keep other runs that write to `to` out, on this machine, by a lock of the file `lock`.

    Raises:
        TargetError: There is another run, or the file can't be written.
    """
    try:
        make_folder(lock.parent)
        # not truncated: somebody else may have put a link there
        file = open_private(lock, "a")
    except OSError as error:
        raise TargetError(f"{to} can't be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a run that ends now has removed the file that was opened
            is_alone = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except OSError:
            is_alone = False
        if not is_alone:
            raise TargetError(f"another run is writing to {to}: wait for its end, or stop it")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _require_own(work: Path) -> None:
    """Check that no other user made the folder, whose name is predictable, to read or replace its content."""
    with suppress(FileNotFoundError), tempfile.TemporaryFile(dir=work) as own:
        # Compared with a file of ours, since a network file system may give all that we make to another user.
        if work.is_symlink() or os.fstat(own.fileno()).st_uid != work.stat().st_uid:
            raise TargetError(f"{work} is a symbolic link, or belongs to another user: remove it")


def _recover(work: Path, to: Path) -> None:
    _restore(work, to)
    for left in work.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def _restore(work: Path, to: Path) -> None:
    """Put the old content back if the new one didn't get into its place."""
    if (work / _OLD).exists() and not to.exists():
        (work / _OLD).rename(to)
