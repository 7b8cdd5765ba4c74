"""Folders that are replaced when the new content is complete, whatever is killed, by one run at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_replay import ReplayError, TargetError, archive, kafka, spark_session
from spark_replay.cli import main
from spark_replay.report import progress
from spark_replay.sources.staging import NEW, local_folder, replacing
from tests.kafka.helpers import ROOT


def replace(to: Path, text: str) -> None:
    with replacing(to) as work:
        (work / NEW).mkdir()
        (work / NEW / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path):
    to = tmp_path / "below" / "to"
    for text in ("one", "two"):
        replace(to, text)
        assert (to / "file").read_text() == text
    with pytest.raises(ValueError, match="stop"), replacing(to):
        raise ValueError("stop")
    assert (to / "file").read_text() == "two"
    assert names(tmp_path / "below") == ["to"]


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path):
    with replacing(tmp_path / "to") as work:
        with pytest.raises(TargetError, match=r"another run is writing to .*/to: wait for its end"):
            replace(tmp_path / "to", "second")
        replace(tmp_path / "other", "beside")
        (work / NEW).mkdir()
        (work / NEW / "file").write_text("first")
    assert (tmp_path / "to" / "file").read_text() == "first"


@pytest.mark.parametrize("moment", ["before", "between"])
def test_what_a_killed_run_left_is_removed(tmp_path: Path, moment: str):
    """Killed before the swap, or after the old content was moved away."""
    to = tmp_path / "to"
    replace(to, "old")
    program = f"""
import os, pathlib, signal
from spark_replay.sources import staging
rename, moved = pathlib.Path.rename, []
def killing(self, target):
    if {moment!r} == "before" or moved:
        os.kill(os.getpid(), signal.SIGKILL)
    moved.append(self)
    return rename(self, target)
pathlib.Path.rename = killing
with staging.replacing(pathlib.Path({str(to)!r})) as work:
    (work / staging.NEW).mkdir()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert names(tmp_path) == [".to.lock", ".to.work"] + (["to"] if moment == "before" else [])
    with pytest.raises(ValueError, match="stop"), replacing(to):
        raise ValueError("stop")
    assert (to / "file").read_text() == "old"
    assert names(tmp_path) == ["to"]


def test_folders_and_uris():
    assert local_folder("file:///a/b") == local_folder(Path("file:///a/b")) == local_folder("/a/b") == Path("/a/b")
    assert local_folder("file://localhost/a%20b") == Path("/a%20b")
    assert local_folder("a/b") == Path("a/b")
    for uri in ("s3a://bucket/to", "hdfs://name:8020/to", "abfss://a@b/c", "gs://bucket/to"):
        assert local_folder(uri) is None
    for uri in ("s3://bucket/to", Path("s3a://bucket/to"), "ftp://host/to"):
        with pytest.raises(TargetError, match=r"isn't supported: give a path, or a URI such as s3a://bucket/folder"):
            local_folder(uri)


@pytest.mark.parametrize("place", ["s3a:/bucket/to", "s3a:to", "s3://bucket/to", "http://host/to", "s3a:///to"])
def test_a_place_that_spark_does_not_write_to_is_refused(place: str):
    log = ["--brokers", "127.0.0.1:1", "--changelog", "app--store-changelog"]
    for command in (
        ["archive", "--brokers", "127.0.0.1:1", "--topic", "t", "--once", "--to", place],
        ["rebuild", "--changelog", "app--store-changelog", "--to", "to", "--archive", place],
        ["rebuild", *log, "--to", place],
        ["rebuild", *log, "--to", "to", "--from", place],
        ["snapshot", *log, "--app", "app", "--to", place],
        ["validate", *log, "--against", place],
        ["validate", *log, "--against", "to", "--incremental", place],
        ["validate", *log, "--against", "to", "--html", place],
        ["publish", *log, "--to", "app2--store-changelog", "--rebuild", place],
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert f"{place} isn't supported: give a path, or a URI such as" in result.stderr
    assert not any(Path(name).exists() for name in ("s3a:", "s3a:to", "s3:", "http:"))


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ReplayError, match="Spark Connect, which has no JVM"):
        spark_session(master="sc://127.0.0.1:15002")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(ReplayError, match="Spark Connect, which has no JVM"):
        spark_session()
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for give in (kafka, archive):
        with pytest.raises(ReplayError, match="Spark Connect, which has no JVM"):
            give(session, "127.0.0.1:1", "app--store-changelog")


def test_help_and_progress_say_what_they_mean():
    for command in main.commands:
        shown = CliRunner().invoke(main, [command, "--help"])
        assert shown.exit_code == 0
        assert "\\b" not in shown.output
        assert "\b" not in shown.output
    assert progress.told(0, 0, seconds=1) == "no Spark task yet"
    assert progress.told(0, 2, seconds=1) == "0 of 2 Spark tasks done"
    assert progress.told(10, 40, seconds=5) == "10 of 40 Spark tasks done, 2.0/s, about 15 s left"
    assert progress.told(40, 40, seconds=5) == "40 of 40 Spark tasks done, 8.0/s"


def test_the_lock_ends_with_its_process(tmp_path: Path):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with replacing(tmp_path / "to"):
            os.write(write, b"x")
            signal.pause()
    assert os.read(read, 1) == b"x"
    with pytest.raises(TargetError, match="another run"):
        replace(tmp_path / "to", "mine")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    replace(tmp_path / "to", "mine")
    assert names(tmp_path) == ["to"]
