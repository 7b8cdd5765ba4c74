"""A folder on any file system that Spark can write to, by a local path or a URI."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ArchiveError
from spark_replay.session import first_line
from spark_replay.sources.staging import is_local, local_folder
from stores._files import make_folder, open_private, sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAKEN = (412, 409)
"""S3's answers to a conditional PUT of a key that exists, and of one that another client is writing."""


class Folder:
    """A folder, by a local path or by a URI such as `s3a://bucket/archive`.

    Attributes:
        uri: The folder's.
        local: Its path if it is on this machine, else None.
    """

    def __init__(self, spark: SparkSession, where: str | Path) -> None:
        self.local = local_folder(where).absolute() if is_local(where) else None
        self.uri = str(where).rstrip("/") if self.local is None else f"file://{self.local}"
        self._jvm: Any = spark._jvm
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def names(self, name: str = "") -> tuple[str, ...]:
        """Return the names of what the folder, or a folder in it, holds; none if it is missing."""
        with self._telling(name):
            path = self._path(name)
            files = path.getFileSystem(self._settings)
            if not files.exists(path):
                return ()
            return tuple(str(status.getPath().getName()) for status in files.listStatus(path))

    def files(self, name: str) -> dict[str, tuple[int, int]]:
        """Return the files in a folder of it and below, by their paths in this one: size and modification time.

        Files with a leading dot are left out. Times are in ns where the file system has them.
        """
        if self.local is not None:
            return dict(_walk(self.local, self.local / name))
        sizes: dict[str, tuple[int, int]] = {}
        with self._telling(name):
            path = self._path(name)
            files = path.getFileSystem(self._settings)
            listed = files.listFiles(path, True) if files.exists(path) else None
            while listed is not None and listed.hasNext():
                status = listed.next()
                # of a child of the folder's path, the rest behind it
                below = str(status.getPath().toString()).removeprefix(f"{path}/")
                sizes[f"{name}/{below}"] = int(status.getLen()), int(status.getModificationTime())
        return {name: size for name, size in sizes.items() if not name.rpartition("/")[2].startswith(".")}

    def text(self, name: str) -> str:
        """Return a file's text.

        Raises:
            ArchiveError: It can't be read.
            ValueError: It isn't text.
        """
        with self._telling(name):
            if self.local is not None:
                return (self.local / name).read_text("utf-8")
            path = self._path(name)
            stream = path.getFileSystem(self._settings).open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def create(self, name: str, text: str) -> bool:
        """Write a new file, whole or not at all; return False if there is one of that name.

        Local files appear by a link, objects of S3 by a conditional PUT. On other file systems Spark's writer of
        checkpoints decides.

        Raises:
            ArchiveError: It can't be written.
        """
        with self._telling(name):
            if self.local is not None:
                return _link(self.local / name, text)
            path = self._path(name)
            files = path.getFileSystem(self._settings)
            if files.getScheme() == "s3a":
                return self._put(files, name, text)
            manager = self._checkpoint_files().create(path.getParent(), self._settings)
            manager.mkdirs(path.getParent())
            if files.exists(path):
                return False
            stream = manager.createAtomic(path, False)
            try:
                stream.write(bytearray(text.encode()))
            except BaseException:
                stream.cancel()
                raise
            stream.close()
            return True

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there."""
        with self._telling(name):
            path = self._path(name)
            path.getFileSystem(self._settings).delete(path, True)

    def _put(self, files: Any, name: str, text: str) -> bool:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        aws: Any = self._jvm.software.amazon.awssdk
        # S3A has a setting for it from Hadoop 3.4.2 on
        condition = aws.awscore.AwsRequestOverrideConfiguration.builder().putHeader("If-None-Match", "*").build()
        put = aws.services.s3.model.PutObjectRequest.builder().bucket(files.getBucket())
        put = put.key(files.pathToKey(self._path(name))).overrideConfiguration(condition).build()
        body = aws.core.sync.RequestBody.fromString(text)
        try:
            files.getS3AInternals().getAmazonS3Client("a new entry").putObject(put, body)
        except Py4JJavaError as error:
            cause = error.java_exception
            if cause.getClass().getSimpleName() == "S3Exception" and cause.statusCode() in _TAKEN:
                # the entry is ours if the client repeated a PUT whose answer was lost
                return self.text(name) == text
            raise
        return True

    def _checkpoint_files(self) -> Any:
        from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

        streaming: Any = self._jvm.org.apache.spark.sql.execution.streaming
        manager = streaming.CheckpointFileManager
        # Spark 4.1 moved it
        return streaming.checkpointing.CheckpointFileManager if isinstance(manager, JavaPackage) else manager

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except OSError as error:
            raise ArchiveError(f"{self}/{name}: {error.strerror}") from error
        except Py4JJavaError as error:
            cause = error.java_exception
            reason = first_line(ValueError(cause.getMessage() or cause.getClass().getName()))
            raise ArchiveError(f"{self.uri}/{name}: {reason}") from error

    def __str__(self) -> str:
        """Return the path or URI."""
        return str(self.local or self.uri)


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
