"""What is compared with a log, as far as no Spark is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_replay.comparison.causes import CAUSES
from spark_replay.comparison.exports import find_folders, kind_of, open_side, store_of, worker_name
from spark_replay.comparison.held import Held, Part
from spark_replay.comparison.invariants import CHECKS, finding
from spark_replay.comparison.report import Summary, report
from spark_replay.errors import ExportError
from spark_replay.sources.brokers.topic import Span, Topic
from tests.kafka.helpers import ROOT
from tests.spark.damage import Worker
from tests.spark.helpers import Log, put


def part(epoch: int | None, position: int, partition: int = 0) -> Part:
    return Part(
        partition=partition,
        changelog_offset=position,
        as_of_ms=0,
        epoch=epoch,
        topic_id="",
        where="file",
        owner=f"epoch {epoch}",
    )


def held(copies: list[Part]) -> Held:
    """Return a state whose first copy is the owner's."""
    return Held(
        kind="exports",
        where="",
        placement="key",
        partition_count=2,
        parts=tuple(copies[:1]),
        stale=tuple(copies[1:]),
        read=lambda spark: spark.range(0),
    )


@pytest.mark.parametrize(
    ("copies", "pairs"),
    [
        ([part(5, 90), part(3, 90)], []),
        ([part(5, 90), part(3, 80)], []),
        ([part(5, 90), part(5, 100)], []),
        ([part(5, 90), part(None, 100)], []),
        ([part(5, 90), part(3, 100, partition=1)], []),
        ([part(5, 90), part(3, 91)], [(5, 3)]),
        ([part(5, 90), part(3, 91), part(2, 95)], [(5, 3), (5, 2), (3, 2)]),
    ],
)
def test_an_older_owner_that_goes_on(copies: list[Part], pairs: list[tuple[int, int]]):
    assert [(newer.epoch, older.epoch) for newer, older in held(copies).contested()] == pairs


def test_copies_that_go_on_are_a_finding_beside_those_of_the_log():
    """A check that found nothing is in the report too."""
    findings = (finding("writers", {}, (), ["unknown"]),)
    copies = held([part(5, 90), part(3, 91)])
    result = report(Summary([]), topic=Topic("t", (0,), (91,), (91,)), held=copies, findings=findings, seconds=0)
    assert result.totals["checks"] == {"writers": 0, "copies": 1}
    assert result.findings[1].examples == (
        "partition 0 of epoch 3 (epoch 3, position 91) continues behind partition 0 of epoch 5 (epoch 5, position 90)",
    )
    assert (result.violations, result.is_clean) == (1, False)


def test_a_log_that_has_everything():
    spans = ((Span(0, 5, exact=True),), (Span(0, 2, exact=True), Span(2, 5, exact=False)), (Span(3, 5, exact=True),))
    topic = Topic("t", (0, 0, 3), (5, 5, 5), (5, 5, 5), spans=spans)
    assert topic.complete == (True, False, False)


def test_the_store_of_a_changelog():
    assert store_of("shop--spent-changelog", "shop") == "spent"
    assert store_of("shop--Chores-timers-changelog", "shop") == "Chores-timers"
    assert store_of("shop--spent-changelog", "sho") is None
    assert store_of("shop-changelog", "shop") is None
    assert store_of("shop-spent", "shop") is None


def test_where_workers_are(tmp_path: Path):
    folders = [tmp_path / "worker-1" / "data" / "v1" / "actors", tmp_path / "worker-2" / "v2" / "actors"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "worker.json").write_text("{}")
    assert find_folders(tmp_path) == folders
    assert find_folders(folders[0]) == folders[:1]
    names = [worker_name(folder) for folder in folders]
    assert names[0].startswith("data-v1-")
    assert len(set(names)) == 2
    assert kind_of(tmp_path) == "data folders"


def test_what_a_folder_is(tmp_path: Path):
    with pytest.raises(ExportError, match="no folder"):
        kind_of(tmp_path / "none")
    with pytest.raises(ExportError, match=r"no manifest\.json in .*, no worker\.json and no _rebuild\.json"):
        kind_of(tmp_path)
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "manifest.json").write_text("{}")
    assert kind_of(tmp_path) == "exports"
    (tmp_path / "_rebuild.json").write_text("{}")
    assert kind_of(tmp_path) == "rebuild"


def test_the_guide_has_every_cause_and_check_in_order():
    guide = (ROOT / "docs" / "how-to" / "validate.md").read_text()
    causes = guide.partition("## Causes")[2].partition("**To rebuild")[0]
    assert re.findall(r"^\| `(\w+)` \|", causes, re.MULTILINE) == list(CAUSES)
    checks = guide.partition("## Invariants of the log")[2]
    assert sorted(re.findall(r"^\| `(\w+)` \|", checks, re.MULTILINE)) == sorted(CHECKS)


def test_a_damaged_database_does_not_hide_the_others(tmp_path: Path):
    log = Log("app--store-changelog", [put(f"k{number}", "v", offset=number) for number in range(20)])
    topic = Topic(log.topic, (0,) * 3, (20,) * 3, (20,) * 3)
    worker = Worker.of(log, tmp_path / "data", [20] * 3)
    copied: dict[int, int] = {}
    with worker.closing:
        position = worker.stores[1].position()
        assert position is not None
        worker.stores[1].apply([(b"k", b"no metadata")], position)
        with open_side(tmp_path / "data", topic, progress=copied.__setitem__) as side:
            assert [part.partition for part in side.parts] == [0, 2]
            assert "is corrupted" in side.unanswered[1]
        assert {number: copied[number] for number in (0, 2)} == {
            number: sum(write.partition == number for write in log.records) for number in (0, 2)
        }
        for number in (0, 2):
            worker.stores[number].apply([(b"k", b"no metadata")], position)
        with pytest.raises(ExportError, match="is corrupted"), open_side(tmp_path / "data", topic):
            pass
