"""Errors of brokers, disks and tools: each says what to do."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from spark_replay.cli import main
from spark_replay.cli.options import Failure, failing
from spark_replay.errors import BrokerError, ReadError
from spark_replay.sources.brokers import topic
from spark_replay.sources.formats import delta_package
from spark_replay.sources.reading import reading


class Cause:
    """A Java exception, of a class with a name, without a cause of its own."""

    def __init__(self, kind: str, message: str) -> None:
        self._kind, self._message = kind, message

    def getCause(self) -> None:  # noqa: N802
        return None

    def getMessage(self) -> str:  # noqa: N802
        return self._message

    def getClass(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(getSimpleName=lambda: self._kind, getName=lambda: self._kind)


def translated(kind: str, options: dict[str, str]) -> str:
    error = SimpleNamespace(java_exception=Cause(kind, "Timed out waiting for a node"))
    found = topic._translated(error, "b:9092", "topic t", topic._TIMEOUTS_MS | options)
    assert isinstance(found, BrokerError)
    return str(found)


def test_a_question_that_takes_too_long_names_the_options_that_give_it_more_time() -> None:
    text = translated("TimeoutException", {"default.api.timeout.ms": "9000"})
    assert "did not describe topic t: Timed out waiting for a node (with default.api.timeout.ms=9000 and " in text
    assert "request.timeout.ms=4000; for slow brokers raise both by --kafka-option)" in text
    assert "--kafka-option" not in translated("TopicAuthorizationException", {})


def test_a_full_disk_is_no_log_that_cannot_be_read() -> None:
    with (
        pytest.raises(
            ReadError, match=r"^a disk is full: Spark read topic t, and could not write: .*spark\.local\.dir=DIR"
        ),
        reading("topic t"),
    ):
        raise PySparkException("java.io.IOException: No space left on device")
    with pytest.raises(ReadError, match=r"^Spark could not read topic t: no such file"), reading("topic t"):
        raise PySparkException("no such file")


def test_a_full_disk_of_the_driver_is_one_line() -> None:
    text = r"^a disk is full: .*answers\.parquet.*TMPDIR names another folder"
    with pytest.raises(Failure, match=text), failing():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/answers.parquet")
    with pytest.raises(PermissionError), failing():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x")


@pytest.mark.parametrize(("spark", "artifact"), [("4.0.0", "4.0"), ("4.1.1", "4.1"), ("4.2.1", "4.2")])
def test_delta_is_that_of_the_release_of_spark(spark: str, artifact: str) -> None:
    assert delta_package(spark) == f"io.delta:delta-spark_{artifact}_2.13:4.4.0"


def test_a_snapshot_offers_no_archive() -> None:
    assert "--archive" not in CliRunner().invoke(main, ["snapshot", "--help"]).output
    assert "--archive" in CliRunner().invoke(main, ["rebuild", "--help"]).output
