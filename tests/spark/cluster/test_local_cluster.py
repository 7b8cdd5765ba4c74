"""Rebuild and validate by `spark-submit`, on executors that are processes of their own and need no Python.

One job does all of it: a cluster takes long to start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import compare_exports, kafka, rebuild_state
from spark_replay.comparison.validate import explain_exports
from spark_replay.jars import ensure_jars, require_java
from tests.kafka.helpers import ROOT
from tests.spark.helpers import NOW_MS, Export, Log, fold, random_transactions, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 400.0
pytestmark = pytest.mark.timeout(900)
SPARK = Path(pyspark.__file__).parent
# every operator that starts a Python worker has one of these in its name
PYTHON_NODES = ("Python", "Pandas", "ArrowEval", "MapInArrow")


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, random_transactions(6, count=100, keys=60))


def submit(job: Path, *args: str, folder: Path, java_home: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a job on two executors of one core whose Python is a program that says that it was called."""
    python = folder / "python-of-executors"
    python.write_text(f"#!/bin/sh\ntouch '{folder}/python-was-started'\nexec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    # the executors leave their files in Spark's home: here it is one of links
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(SPARK / name)
    settings = {
        "spark.pyspark.python": str(python),
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        **({"spark.executorEnv.JAVA_HOME": str(java_home)} if java_home else {}),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    command += ["--jars", ",".join(map(str, ensure_jars()))]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    require_java()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        [*command, str(job), *args],
        cwd=folder,
        env=environment | {"SPARK_HOME": str(home), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )


NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def makes_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    )


def java_apart(folder: Path, *, target: Path, other: Path) -> Path:
    """Make a JAVA_HOME whose Java sees another folder at `target`."""
    program = require_java()
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    inner = home / "bin" / "bound-java"
    inner.write_text(f"#!/bin/sh\nmount --bind '{other}' '{target}' && exec '{program}' \"$@\"\n")
    inner.chmod(0o755)
    script.write_text(f"#!/bin/sh\nexec {' '.join(NAMESPACE)} '{inner}' \"$@\"\n")
    script.chmod(0o755)
    return home


@dataclass(frozen=True)
class Submitted:
    """What one job on one cluster found, and the folder that it worked in."""

    folder: Path
    result: dict[str, Any]


@pytest.fixture(scope="module")
def submitted(brokers: str, log: Log, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    folder = tmp_path_factory.mktemp("cluster")
    Export.of(log).write(folder / "exports")
    (folder / "as_of_ms").write_text(str(NOW_MS))
    target, other = folder / "target", folder / "other"
    for made in (target, other):
        made.mkdir()
    good = target / "good"
    (good / "partition=0").mkdir(parents=True)
    (good / "_rebuild.json").write_text("{}")
    (good / "partition=0" / "rows.parquet").write_text("rows")
    home = java_apart(folder, target=target, other=other) if makes_namespaces() else None
    job = Path(__file__).with_name("replay_job.py")
    done = submit(job, brokers, log.topic, str(folder), "apart" if home else "", folder=folder, java_home=home)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return Submitted(folder, json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.nightly
def test_rebuild_and_validate_on_a_cluster(log: Log, submitted: Submitted):
    result = submitted.result
    assert (result["master"], result["executors"]) == ("local-cluster[2,1,1024]", 2)
    state = fold(log.records)
    assert (result["keys"], result["records"]) == (len(state), len(log.records))
    assert (result["totals"]["mismatches"], result["totals"]["equal"]) == (0, len(state))
    rows = pq.read_table(submitted.folder / "rebuilt", columns=["key", "value"]).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {key: write.value for (_, key), write in state.items()}
    assert (result["python_by_replay"], result["python_by_udf"]) == (False, True)


@pytest.mark.nightly
def test_executors_that_see_another_folder(log: Log, submitted: Submitted):
    if "apart" not in submitted.result:
        pytest.skip("this machine makes no mount namespaces")
    result, target, good = submitted.result["apart"], submitted.folder / "target", submitted.folder / "target" / "good"
    assert any((submitted.folder / "other").iterdir()), "the executors wrote nowhere"
    for name in ("rebuild", "overwrite"):
        assert result[name].startswith("TargetError: of "), result[name]
        assert "give --to a folder that driver and executors share" in result[name]
    assert not (target / "rebuilt").exists()
    assert (good / "partition=0" / "rows.parquet").read_text() == "rows"
    for name in ("archive", "again"):
        assert result[name].startswith("TargetError: "), result[name]
        assert "give --to a folder that driver and executors share" in result[name]
    assert not list((target / "archive").glob("_manifest/*.json"))
    assert result["snapshot"].startswith("TargetError: "), result["snapshot"]
    assert not [path for path in (target / "snapshots").glob("*") if not path.name.startswith(".")]


def python_nodes(frame: DataFrame) -> list[str]:
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [line for line in plan.splitlines() if any(name in line for name in PYTHON_NODES)]


def test_plans_have_no_python(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    source = kafka(spark, brokers, log.topic)
    Export.of(log).write(tmp_path / "exports")
    judged = compare_exports(source, against=tmp_path / "exports")
    assert python_nodes(rebuild_state(source, as_of_ms=NOW_MS)) == []
    assert python_nodes(rebuild_state(source, as_of="offset:0=5")) == []
    assert python_nodes(judged) == []
    assert python_nodes(explain_exports(source, against=tmp_path / "exports")) == []


def test_a_python_node_is_found(spark: SparkSession):
    assert python_nodes(spark.range(3).withColumn("id", F.udf(lambda number: number, "bigint")("id")))
