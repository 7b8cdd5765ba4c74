"""Two states side by side: of a mirror, of two points, and what the commands say of them and of a log alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_replay import Report, kafka, validate_states
from spark_replay.cli import main
from tests.kafka.helpers import make_topics
from tests.spark.damage import NEW, OLD, Worker, by, extend, named_log, two_owners
from tests.spark.helpers import PARTITIONS, Log, Transaction, home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE = PARTITIONS + 2


@dataclass
class Clusters:
    """A log, a mirror of it with other offsets, and one with other partitions, both with damage."""

    here: Log
    mirror: Log
    wider: Log
    before: list[int]


@pytest.fixture(scope="module")
def clusters(spark: SparkSession, brokers: str) -> Clusters:
    here, mirror, wider = named_log(brokers), named_log(brokers), named_log(brokers)
    asyncio.run(make_topics(brokers, f"wider-{wider.topic}", partitions=MORE))
    wider.topic = f"wider-{wider.topic}"
    extend(brokers, here, *two_owners())
    before = list(here.ends)
    since = (by(NEW, 60, "since", "1"), by(NEW, 61, "fine-1", "again"), by(NEW, 62, "fine-2", None))
    extend(brokers, here, Transaction(since))
    lost, kept = by(OLD, 3, "fine-3", "value 3"), [write for write in here.records if write.key != b"fine-3"]
    damaged = [
        replace(write, value=b"other") if write.key == b"fine-4" else write
        for write in ([replace(write, epoch=OLD + 100) if write.key == b"fine-5" else write for write in kept])
    ]
    unwanted = by(NEW, 63, "unwanted", "1")
    extend(brokers, mirror, Transaction((lost,), committed=False), Transaction((*damaged, unwanted)))
    spread = tuple(replace(write, partition=home(write.key or b"", MORE)) for write in damaged)
    assert {write.partition for write in spread} == set(range(MORE))
    extend(brokers, wider, Transaction(spread))
    return Clusters(here, mirror, wider, before)


def causes(report: Report) -> dict[str, str]:
    return {example.key: example.cause for examples in report.examples.values() for example in examples}


@pytest.mark.nightly
def test_a_mirror(spark: SparkSession, brokers: str, clusters: Clusters):
    here, mirror = (kafka(spark, brokers, log.topic) for log in (clusters.here, clusters.mirror))
    damage = {"fine-3": "only_first", "fine-4": "other_value", "unwanted": "only_second"}
    report = validate_states(here, mirror)
    assert causes(report) == damage
    assert (report.mismatches, report.counts["equal"], report.keys) == (3, 38, 40)
    assert report.causes == {"only_first": 1, "only_second": 1, "other_value": 1}
    assert report.causes_by_partition[home(b"fine-4")]["other_value"] == 1
    assert causes(validate_states(here, mirror, metadata=True)) == damage | {"fine-5": "other_metadata"}
    assert validate_states(here, here).is_clean


@pytest.mark.nightly
def test_a_mirror_with_other_partitions(spark: SparkSession, brokers: str, clusters: Clusters):
    here, wider = (kafka(spark, brokers, log.topic) for log in (clusters.here, clusters.wider))
    assert causes(validate_states(here, wider)) == {"fine-3": "only_first", "fine-4": "other_value"}


@pytest.mark.nightly
def test_two_points(brokers: str, spark: SparkSession, clusters: Clusters):
    point = "offset:" + ",".join(f"{number}={offset}" for number, offset in enumerate(clusters.before))
    rest = ["validate", "--brokers", brokers, "--changelog", clusters.here.topic]
    done = run(*rest, "--as-of", point, "--against-as-of", "latest")
    assert done.exit_code == 1, done.output
    assert last_json(done)["causes"] == {"only_first": 1, "only_second": 1, "other_value": 1}
    for line in ("key fine-2: only_first", "key since: only_second", "key fine-1: other_value: value differs"):
        assert line in done.stderr
    assert run(*rest, "--as-of", point, "--against-as-of", point).exit_code == 0


@pytest.mark.nightly
def test_a_folder_and_a_log_on_the_command_line(brokers: str, spark: SparkSession, clusters: Clusters, tmp_path: Path):
    rest = ["--brokers", brokers, "--changelog", clusters.here.topic]
    worker = Worker.of(clusters.here, tmp_path / "data", clusters.here.ends)
    with worker.closing:
        fine = run("validate", *rest, "--against", worker.path, "--invariants", "--json")
        assert fine.exit_code == 0, fine.output
        worker.plant(home(b"fine-7"), b"fine-7", None)
        done = run("validate", *rest, "--against", worker.path, "--json")
    assert done.exit_code == 1
    assert "missing: partition" in done.stderr
    assert "key fine-7: committed_write_missing: not in the export" in done.stderr
    report = last_json(done)
    assert report["causes"] == {"committed_write_missing": 1}
    assert report["causes_by_partition"] == {str(home(b"fine-7")): {"committed_write_missing": 1}}
    checks = [finding["check"] for finding in last_json(fine)["findings"]]
    assert checks == ["writers", "epochs", "source_offsets", "metadata", "partitioner"]


def test_invariants_of_a_log_alone(brokers: str, spark: SparkSession, clusters: Clusters):
    rest = ["validate", "--brokers", brokers, "--changelog", clusters.here.topic, "--invariants"]
    done = run(*rest, "--put-if-absent")
    assert done.exit_code == 1, done.output
    assert (last_json(done)["violations"], last_json(done)["checks"]["put_if_absent"]) == (1, 1)
    assert "key fine-1 has another value than the record at offset" in done.stderr


@pytest.mark.nightly
def test_invariants_beside_another_point(brokers: str, spark: SparkSession, clusters: Clusters):
    rest = ["validate", "--brokers", brokers, "--changelog", clusters.here.topic, "--against-as-of", "latest"]
    done = run(*rest, "--invariants", "--put-if-absent")
    assert done.exit_code == 1, done.output
    found = last_json(done)
    assert (found["mismatches"], found["violations"], found["checks"]["put_if_absent"]) == (0, 1, 1)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--against", "a", "--against-as-of", "latest"],
        ["--against", "a", "--as-of", "offset:0=1"],
        ["--against", "a", "--store", "s"],
        ["--live", "http://127.0.0.1:1"],
        ["--against", "a", "--put-if-absent"],
        ["--against", "a", "--live", "http://127.0.0.1:1", "--store", "s", "--invariants"],
    ],
)
def test_options_that_do_not_go_together(options: list[str]):
    done = run("validate", "--brokers", "127.0.0.1:1", "--changelog", "a--b-changelog", *options)
    assert done.exit_code == 2
    assert "Usage:" in done.stderr


@pytest.mark.nightly
def test_a_position_beyond_the_log(spark: SparkSession, brokers: str, clusters: Clusters, tmp_path: Path):
    """A point that can't be read is no mismatch: exit code 2."""
    rest = ["--brokers", brokers, "--changelog", clusters.here.topic]
    worker = Worker.of(clusters.here, tmp_path / "data", clusters.here.ends)
    with worker.closing:
        store = worker.stores[0]
        position = store.position()
        assert position is not None
        store.apply([], replace(position, changelog_offset=clusters.here.ends[0] + 1000))
        done = run("validate", *rest, "--against", worker.path)
    assert done.exit_code == 2
    assert "the log is shorter than the export's position" in done.stderr


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def last_json(result: Result) -> dict:
    return json.loads(result.stdout.splitlines()[-1])
