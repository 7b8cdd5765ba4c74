"""A folder on any file system that Spark can write to, by a local path or a URI."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ArchiveError, ReplayError, TargetError
from spark_replay.session import java_reason
from spark_replay.sources.staging import NEW, local_folder, replacing
from stores._files import crc32, make_folder, open_private, sync, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERIFIED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of a reader that compares the checksums that Parquet's pages are written with."""
WRITING = {
    # a file of a task that fails has the name of its repetition
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Options of a writer that leaves no more than files, by no more renames than one."""
_TAKEN = (412, 409, 404)
"""S3's answers to a conditional PUT of a key that has changed, that another client is writing, that is gone."""
_ATTEMPT = "files-"
_LATE = "another run wrote to {} first: what this one wrote doesn't count"


class Folder:
    """A folder, by a local path or by a URI such as `s3a://bucket/archive`.

    Attributes:
        uri: The folder's.
        local: Its path if it is on this machine, else None.
        spark: The session whose file systems are used.
    """

    def __init__(self, spark: SparkSession, where: str | Path, error: type[ReplayError] = ArchiveError) -> None:
        path = local_folder(where)
        self.local = None if path is None else path.absolute()
        self.uri = str(where).rstrip("/") if self.local is None else f"file://{self.local}"
        self.spark = spark
        self._error = error
        self._jvm: Any = spark._jvm
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def below(self, name: str) -> Folder:
        """Return a folder in it, itself without a name."""
        return Folder(self.spark, f"{self}/{name}" if name else str(self), self._error)

    def names(self, name: str = "") -> tuple[str, ...]:
        """Return the names of what the folder, or a folder in it, holds; none if it is missing."""
        with self._telling(name) as (path, files):
            if not files.exists(path):
                return ()
            return tuple(str(status.getPath().getName()) for status in files.listStatus(path))

    def files(self, name: str = "") -> dict[str, tuple[int, int]]:
        """Return the files in a folder of it and below, by their paths in this one: size and modification time.

        Files with a leading dot are left out. Times are in ns where the file system has them.
        """
        if self.local is not None:
            return dict(_walk(self.local, self.local / name))
        sizes: dict[str, tuple[int, int]] = {}
        with self._telling(name) as (path, files):
            listed = files.listFiles(path, True) if files.exists(path) else None
            while listed is not None and listed.hasNext():
                status = listed.next()
                # of a child of the folder's path, the rest behind it
                below = str(status.getPath().toString()).removeprefix(f"{path}/")
                sizes[f"{name}/{below}" if name else below] = int(status.getLen()), int(status.getModificationTime())
        return {name: size for name, size in sizes.items() if not name.rpartition("/")[2].startswith(".")}

    def text(self, name: str) -> str:
        """Return a file's text.

        Raises:
            ReplayError: It can't be read.
            ValueError: It isn't text.
        """
        with self._telling(name) as (path, files):
            if self.local is not None:
                return (self.local / name).read_text("utf-8")
            with closing(files.open(path)) as stream:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def crc32(self, name: str) -> int:
        """Return the CRC-32 of a file, which the driver reads; `ReplayError` if it can't be read."""
        with self._telling(name) as (path, files):
            if self.local is not None:
                return crc32(self.local / name)
            checks = self._jvm.java.util.zip
            with closing(checks.CheckedInputStream(files.open(path), checks.CRC32())) as stream:
                self._jvm.org.apache.commons.io.IOUtils.consume(stream)
                return int(stream.getChecksum().getValue())

    def version(self, name: str) -> str | None:
        """Return what `create` replaces a file by, None if there is none: its entity tag, or its modification time."""
        with self._telling(name) as (path, files):
            if not files.exists(path):
                return None
            status = files.getFileStatus(path)
            return str(status.getEtag() if files.getScheme() == "s3a" else status.getModificationTime())

    def upload(self, folder: Path, name: str) -> None:
        """Copy the files of a local folder into a folder in it."""
        for file in sorted(folder.iterdir()):
            with self._telling(f"{name}/{file.name}") as (path, files):
                # by the client that Spark writes with, unlike copyFromLocalFile
                hadoop, java = self._jvm.org.apache.hadoop.fs, self._jvm.java.io
                hadoop.FileUtil.copy(java.File(str(file)), files, path, False, self._settings)

    def create(self, name: str, text: str, *, over: str | None = None) -> bool:
        """Write a new file, whole or not at all; return False if there is one of that name.

        Local files appear by a link, objects of S3 by a conditional PUT. On other file systems Spark's writer of
        checkpoints decides.

        Args:
            name: The file's.
            text: Its content.
            over: The `version` that is replaced if it is still there, not of local files; None: a new file.

        Raises:
            ReplayError: It can't be written.
        """
        with self._telling(name) as (path, files):
            if self.local is not None:
                return _link(self.local / name, text)
            if files.getScheme() == "s3a":
                # it is ours too if the client repeated a PUT whose answer was lost
                return self._put(files, path, text, over) or (bool(self.version(name)) and self.text(name) == text)
            manager = self._checkpoint_files().create(path.getParent(), self._settings)
            manager.mkdirs(path.getParent())
            if self.version(name) != over:
                return False
            stream = manager.createAtomic(path, over is not None)
            try:
                stream.write(bytearray(text.encode()))
            except BaseException:
                stream.cancel()
                raise
            stream.close()
            return True

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there."""
        with self._telling(name) as (path, files):
            files.delete(path, True)

    def _put(self, files: Any, path: Any, text: str, over: str | None) -> bool:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        aws: Any = self._jvm.software.amazon.awssdk
        # S3A has a setting for it from Hadoop 3.4.2 on
        header = ("If-None-Match", "*") if over is None else ("If-Match", over)
        condition = aws.awscore.AwsRequestOverrideConfiguration.builder().putHeader(*header).build()
        put = aws.services.s3.model.PutObjectRequest.builder().bucket(files.getBucket())
        put = put.key(files.pathToKey(path)).overrideConfiguration(condition).build()
        body = aws.core.sync.RequestBody.fromString(text)
        try:
            files.getS3AInternals().getAmazonS3Client("a new entry").putObject(put, body)
        except Py4JJavaError as error:
            cause = error.java_exception
            names = ("S3Exception", "NoSuchKeyException")
            if cause.getClass().getSimpleName() in names and cause.statusCode() in _TAKEN:
                return False
            raise
        return True

    def _checkpoint_files(self) -> Any:
        from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

        streaming: Any = self._jvm.org.apache.spark.sql.execution.streaming
        manager = streaming.CheckpointFileManager
        # Spark 4.1 moved it
        return streaming.checkpointing.CheckpointFileManager if isinstance(manager, JavaPackage) else manager

    @contextmanager
    def _telling(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Return Hadoop's path and file system of a file; turn what they raise into errors of this folder."""
        from py4j.protocol import Py4JJavaError

        try:
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)
            yield path, path.getFileSystem(self._settings)
        except OSError as error:
            raise self._error(f"{self}/{name}: {error.strerror}") from error
        except Py4JJavaError as error:
            raise self._error(f"{self.uri}/{name}: {java_reason(error.java_exception)}") from error

    def __str__(self) -> str:
        """Return the path or URI."""
        return str(self.local or self.uri)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run writes a result, which counts from `finish` on.

    Attributes:
        folder: The folder of the result's files.
        work: A folder on this machine that goes with the run.
        marker: The name of the file that makes files a result, and names them.
        attempt: In object storage, the name of the folder in `folder` that no other run has; else empty.
    """

    folder: Folder
    work: Path
    marker: str
    attempt: str = ""
    _version: str | None = None

    def finish(self, text: str) -> None:
        """Write the marker, last of all files, and delete those that no result names.

        Raises:
            TargetError: Another run was faster, or it can't be written.
        """
        if self.folder.local is not None:
            write_atomically(self.folder.local / self.marker, text)
            return
        # a run that still writes to one of these read a version of the marker that this one replaces, and will fail
        old = [name for name in self.folder.names() if name.startswith(_ATTEMPT)]
        # readers of the version before need its files
        kept = text if self._version is None else text + self.folder.text(self.marker)
        if not self.folder.create(self.marker, text, over=self._version):
            raise TargetError(_LATE.format(self.folder))
        for name in old:
            if name not in kept:
                # the next run deletes it then
                with suppress(ReplayError):
                    self.folder.remove(name)


@contextmanager
def open_target(spark: SparkSession, where: str | Path, marker: str, what: str, *, overwrite: bool) -> Iterator[Target]:
    """Return the target of a run. A local folder appears when the block ends.

    Args:
        spark: The session.
        where: A path or URI.
        marker: The name of the file that marks a result.
        what: What a folder with a marker holds, for errors.
        overwrite: Whether a result may be replaced.

    Raises:
        TargetError: There is a result and `overwrite` isn't set, or something else; another run was faster; or it can't
            be written.
    """
    to = Folder(spark, where, TargetError)
    if to.local is not None:
        with replacing(to.local) as work:
            if to.local.exists():
                _require_overwrite(to, overwrite=overwrite)
                if not to.local.is_dir() or (not (to.local / marker).exists() and any(to.local.iterdir())):
                    raise TargetError(f"{to} is no {what} (it has no {marker}): not overwritten, choose another folder")
            yield Target(Folder(spark, work / NEW, TargetError), work, marker)
        return
    version = to.version(marker)
    if version is not None:
        _require_overwrite(to, overwrite=overwrite)
    with tempfile.TemporaryDirectory(prefix="spark-replay-") as work_dir:
        try:
            yield Target(to, Path(work_dir), marker, f"{_ATTEMPT}{uuid.uuid4().hex}", version)
        except ReplayError as error:
            is_late = False
            with suppress(ReplayError):
                # the other run removed files of this one, perhaps
                is_late = to.version(marker) != version
            if is_late:
                raise TargetError(_LATE.format(to)) from error
            raise


def _require_overwrite(to: Folder, *, overwrite: bool) -> None:
    if not overwrite:
        raise TargetError(f"{to} exists: choose another folder, or replace it with --overwrite")


def _walk(root: Path, folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            try:
                status = path.stat()
            except FileNotFoundError:
                # another run removed it just now
                continue
            yield path.relative_to(root).as_posix(), (status.st_size, status.st_mtime_ns)


def _link(path: Path, text: str) -> bool:
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open_private(draft, "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # fails if the name is taken, which a rename doesn't
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)
    return True
