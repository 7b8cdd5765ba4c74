"""What holds of every log: a clean one has no finding, and each damage of one has its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spark_replay import Asked, Finding, find_violations, kafka
from tests.spark.damage import NEW, OLD, PAST_MS, by, extend, named_log, two_owners
from tests.spark.helpers import PARTITIONS, Log, Transaction, home, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_KEY = ("epochs", "source_offsets", "metadata", "partitioner", "put_if_absent")


def check(spark: SparkSession, brokers: str, log: Log, asked: Asked | None = None) -> dict[str, Finding]:
    source = kafka(spark, brokers, log.topic)
    found = find_violations(source, source.describe(), asked or Asked(put_if_absent=True))
    return {finding.check: finding for finding in found}


@pytest.mark.nightly
def test_a_log_as_owners_write_it(spark: SparkSession, brokers: str):
    """Records of a commit are in any order; a key that was deleted, or had expired, may have another value."""
    log = named_log(brokers)
    mixed = Transaction((by(NEW, 62, "a", "1"), by(NEW, 60, "b", "1"), by(NEW, 61, "c", "1")))
    again = Transaction((by(NEW, 63, "a", None), by(NEW, 63, "over", "1", expires_at_ms=PAST_MS)))
    anew = Transaction((by(NEW, 63, "a", "2"), by(NEW, 64, "over", "2"), by(NEW, 64, "b", "1")))
    aborted = Transaction((by(OLD, 1, "a", "aborted"),), committed=False)
    extend(brokers, log, *two_owners(), mixed, again, aborted, anew)
    found = check(spark, brokers, log)
    assert {name: finding.count for name, finding in found.items()} == dict.fromkeys(BY_KEY, 0)
    assert all(finding.examples == finding.notes == () for finding in found.values())


def test_each_damage_of_a_log(spark: SparkSession, brokers: str):
    log = named_log(brokers)
    zombie = by(OLD, 40, "zombie", "1")
    # behind an input of a commit before, in the same partition
    ahead, back = by(NEW, 70, "back", "1"), by(NEW, 65, "back", "1")
    stray = replace(put("stray", "1", epoch=NEW, source_offset=70), partition=(home(b"stray") + 1) % PARTITIONS)
    bare = replace(put("bare", "1"), headers=())
    changed = (by(NEW, 71, "once", "1"), by(NEW, 72, "once", "2"))
    damaged = [(ahead,), (back,), (stray,), (bare,), (changed[0],), (changed[1],), (zombie,)]
    extend(brokers, log, *two_owners(), *map(Transaction, damaged))
    found = check(spark, brokers, log)
    places = {
        "epochs": home(b"zombie"),
        "source_offsets": home(b"back"),
        "metadata": home(b"bare"),
        "partitioner": stray.partition,
        "put_if_absent": home(b"once"),
    }
    assert {name: finding.by_partition for name, finding in found.items()} == {
        name: {place: 1} for name, place in places.items()
    }
    offset = {write.key: write.offset for write in log.records}
    first = next(write.offset for write in log.records if write.key == b"once")
    assert {name: finding.examples for name, finding in found.items()} == {
        "epochs": (
            f"partition {home(b'zombie')} offset {offset[b'zombie']} key zombie is of epoch {OLD}, behind one of "
            f"epoch {NEW}",
        ),
        "source_offsets": (
            f"partition {home(b'back')} offset {offset[b'back']} key back is of input 65, behind one of input 70",
        ),
        "metadata": (
            f"partition {home(b'bare')} offset {offset[b'bare']} key bare has no key or no known write metadata",
        ),
        "partitioner": (
            f"partition {stray.partition} offset {offset[b'stray']} key stray belongs in partition {home(b'stray')}",
        ),
        "put_if_absent": (
            f"partition {home(b'once')} offset {offset[b'once']} key once has another value than the record at offset "
            f"{first}",
        ),
    }
    by_task = check(spark, brokers, log, Asked(placement="task"))
    assert sorted(by_task) == ["epochs", "metadata", "source_offsets"]


def test_offsets_of_each_input_grow_and_an_example_names_the_input(spark: SparkSession, brokers: str):
    log = named_log(brokers)
    places = ((0, 90), (1, 20), (0, 91), (1, 19), (1, 21))
    writes = [replace(by(NEW, offset, "a", "1"), input=place) for place, offset in places]
    extend(brokers, log, *(Transaction((write,)) for write in writes))
    found = check(spark, brokers, log)["source_offsets"]
    [example] = found.examples
    assert (found.count, example.split(" key a ")[1]) == (
        1,
        "is of offset 19 of input 1, behind one of offset 20 of input 1",
    )
