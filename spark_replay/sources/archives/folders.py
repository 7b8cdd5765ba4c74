"""Small files of a folder on any file system that Spark can write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.errors import ArchiveError
from spark_replay.session import first_line
from spark_replay.sources.staging import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder, by a local path or by a URI such as `s3a://bucket/archive`.

    Attributes:
        uri: The folder's.
        local: Its path if it is on this machine, else None.
    """

    def __init__(self, spark: SparkSession, where: str | Path) -> None:
        text = str(where)
        is_local = text.startswith("file:") or "://" not in text
        self.local = local_folder(where).absolute() if is_local else None
        self.uri = text.rstrip("/") if self.local is None else f"file://{self.local}"
        self._jvm: Any = spark._jvm
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def exists(self, name: str) -> bool:
        """Return whether the folder holds a file or folder of this name."""
        with self._telling(name):
            path = self._path(name)
            return bool(path.getFileSystem(self._settings).exists(path))

    def names(self, name: str = "") -> tuple[str, ...]:
        """Return the names of what the folder, or a folder in it, holds; none if it is missing."""
        with self._telling(name):
            path = self._path(name)
            files = path.getFileSystem(self._settings)
            if not files.exists(path):
                return ()
            return tuple(str(status.getPath().getName()) for status in files.listStatus(path))

    def text(self, name: str) -> str:
        """Return a file's text; `ArchiveError` if it can't be read."""
        with self._telling(name):
            path = self._path(name)
            stream = path.getFileSystem(self._settings).open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file atomically: a concurrent reader sees the old file or the new one.

        Raises:
            ArchiveError: It can't be written.
        """
        with self._telling(name):
            path = self._path(name)
            # what Spark writes its own checkpoints with
            manager = self._checkpoint_files().create(path.getParent(), self._settings)
            manager.mkdirs(path.getParent())
            stream = manager.createAtomic(path, True)
            try:
                stream.write(bytearray(text.encode()))
            except BaseException:
                stream.cancel()
                raise
            stream.close()

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
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            reason = first_line(ValueError(cause.getMessage() or cause.getClass().getName()))
            raise ArchiveError(f"{self.uri}/{name}: {reason}") from error

    def __str__(self) -> str:
        """Return the path or URI."""
        return str(self.local or self.uri)
