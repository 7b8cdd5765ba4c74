"""The connector's jars: fetched once, and refused for another Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from spark_replay import ReplayError, ToolMissingError, jars, kafka
from spark_replay.jars import ensure_jars, ensure_more_jars, require_match
from spark_replay.session import _settings
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
    """A folder in which the connector's is missing."""
    monkeypatch.setenv("SPARK_REPLAY_JARS", str(tmp_path / "connector"))
    return tmp_path


def put_repository(monkeypatch: pytest.MonkeyPatch, *releases: str, error: OSError | None = None) -> list[str]:
    """Replace what fetches jars by one that has these releases of the connector; return what it is asked for."""
    asked = []

    def fetch(coordinates: list[str], folder: Path, *, only: tuple[str, ...]) -> None:
        [coordinate] = coordinates
        asked.append(release := coordinate.rpartition(":")[2])
        if error:
            raise error
        if release not in releases:
            raise RuntimeError(f"{coordinate} not found")
        folder.mkdir()
        for name in JARS:
            assert name.startswith(only)
            (folder / name.replace(VERSION, release)).touch()

    monkeypatch.setattr(jars, "fetch_jars", fetch)
    return asked


def test_they_are_fetched_once_and_then_need_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch):
    asked = put_repository(monkeypatch, VERSION)
    for _ in range(2):
        assert [jar.name for jar in ensure_jars()] == sorted(JARS)
    assert asked == [VERSION]
    assert {path.name for path in machine.iterdir()} == {"connector", "connector.lock"}


def test_jars_for_s3_are_those_of_the_hadoop_of_pyspark(machine: Path, monkeypatch: pytest.MonkeyPatch):
    [client] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    version, asked = client.stem.rpartition("-")[2], []

    def fetch(coordinates: list[str], folder: Path, *, only: tuple[str, ...]) -> None:
        asked.extend(coordinates)
        folder.mkdir()
        for name in (f"hadoop-aws-{version}.jar", "bundle-2.24.6.jar", *JARS):
            (folder / name).touch()

    monkeypatch.setattr(jars, "fetch_jars", fetch)
    for _ in range(2):
        assert [jar.name for jar in ensure_more_jars("s3a")] == ["bundle-2.24.6.jar", f"hadoop-aws-{version}.jar"]
    assert asked == [f"org.apache.hadoop:hadoop-aws:{version}"]
    local = _settings(None, {"spark.driver.extraClassPath": "mine.jar"}, s3a=True)
    names = [Path(path).name for path in local["spark.driver.extraClassPath"].split(os.pathsep)]
    assert names == ["bundle-2.24.6.jar", f"hadoop-aws-{version}.jar", "mine.jar"]
    assert "hadoop-aws" in _settings("yarn", {}, s3a=True)["spark.jars"]
    assert "hadoop-aws" not in str(_settings(None, {}, s3a=False))
    (machine / "connector" / f"hadoop-aws-{version}.jar").unlink()
    with pytest.raises(ToolMissingError, match=rf"hadoop-aws:{version} isn't complete: no hadoop-aws-\*\.jar in"):
        ensure_more_jars("s3a")


def test_without_jgo_it_names_what_to_install(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    with pytest.raises(ToolMissingError, match=r"there is no jgo to fetch it with: pip install 'faust-actors.spark.'"):
        ensure_jars()
    assert {path.name for path in machine.iterdir()} == {"connector.lock"}


def test_a_patch_release_without_a_connector_takes_the_one_before(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.2.2")
    asked = put_repository(monkeypatch, "4.1.1", "4.2.0")
    assert [jar.name for jar in ensure_jars()] == sorted(name.replace(VERSION, "4.2.0") for name in JARS)
    assert asked == ["4.2.2", "4.2.1", "4.2.0"]


def test_no_connector_of_another_minor_release_is_taken(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.3.1")
    asked = put_repository(monkeypatch, "4.2.0")
    with pytest.raises(ReplayError, match=r"for Spark 4\.3 .*:4\.3\.0 not found; .*its four jars of any 4\.3 release"):
        ensure_jars()
    assert asked == ["4.3.1", "4.3.0"]


def test_a_repository_that_does_not_answer_is_asked_once(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark, "__version__", "4.2.2")
    asked = put_repository(monkeypatch, error=OSError("no way to it"))
    with pytest.raises(ReplayError, match=r"could not be fetched: no way to it; without network, copy"):
        ensure_jars()
    assert asked == ["4.2.2"]


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
        kafka(spark, brokers, "t").describe()


@pytest.mark.nightly
def test_the_real_jars_are_fetched(tmp_path: Path):
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
