"""One key's history: what was written, by which owner, and what became of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from spark_replay import InputError, explain_key, kafka
from spark_replay.cli import main
from spark_replay.printing import key_bytes, printable
from stores._core.windows import WORD
from tests.spark.helpers import NOW_MS, Transaction, Write, home, put, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, args)])


def test_the_time_line_of_a_key(spark: SparkSession, brokers: str):
    at = [{"timestamp_ms": NOW_MS + hour * HOUR_MS} for hour in range(8)]
    log = write_log(
        brokers,
        [
            Transaction((put("a", "one", source_offset=5, epoch=2, **at[0]), put("b", "beside", epoch=2, **at[0]))),
            Transaction((put("a", "lost", source_offset=6, epoch=2, **at[1]),), committed=False),
            Transaction((put("a", "short", source_offset=7, epoch=3, expires_at_ms=NOW_MS + 3 * HOUR_MS, **at[2]),)),
            Transaction((put("a", "late", source_offset=8, epoch=2, **at[4]),)),
            Transaction((put("a", None, source_offset=9, epoch=3, **at[5]),)),
            Transaction((Write((home(b"a") + 1) % 3, b"a", b"astray", headers=(), **at[6]),)),
        ],
    )
    result = run("a", "--brokers", brokers, "--changelog", log.topic, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    events = found["events"]
    assert [(event["kind"], event["value"], event["transaction"]) for event in events] == [
        ("put", "one", "committed"),
        ("put", "lost", "aborted"),
        ("put", "short", "committed"),
        ("expire", "short", "committed"),
        ("put", "late", "committed"),
        ("delete", None, "committed"),
        ("put", "astray", "committed"),
    ]
    assert [event["source_offset"] for event in events] == [5, 6, 7, 7, 8, 9, None]
    assert [event["at_ms"] - NOW_MS for event in events] == [hour * HOUR_MS for hour in (0, 1, 2, 3, 4, 5, 6)]
    assert events[4]["remarks"] == ["behind epoch 3: its owner had been replaced"]
    assert events[6]["remarks"] == [
        "no write metadata: another program wrote it",
        f"murmur2 puts the key into partition {home(b'a')}",
    ]
    assert (found["key"], found["records"], found["totals"]) == ("a", 6, {"records": 6})
    for line in ("put one  by input 5, epoch 2, committed", "put lost  by input 6, epoch 2, aborted", "  expired"):
        assert line in result.stderr
    assert "beside" not in result.stderr


@pytest.mark.nightly
def test_a_key_that_expires_later_and_an_open_transaction(spark: SparkSession, brokers: str):
    log = write_log(brokers, [Transaction((put("a", "1", expires_at_ms=2**42),))])
    [row] = explain_key(kafka(spark, brokers, log.topic), b"a").collect()
    assert (row["transaction"], row["expires_at_ms"], row["home"]) == ("committed", 2**42, home(b"a"))
    assert "expired" not in run("a", "--brokers", brokers, "--changelog", log.topic).stderr


@pytest.mark.nightly
def test_a_clock_that_goes_back(spark: SparkSession, brokers: str):
    """The order is that of the offsets."""
    writes = [put("a", str(hour), timestamp_ms=NOW_MS + hour * HOUR_MS) for hour in (3, 1, 2)]
    log = write_log(brokers, [Transaction((write,)) for write in writes])
    found = json.loads(run("a", "--brokers", brokers, "--changelog", log.topic, "--json").stdout)
    assert [event["value"] for event in found["events"]] == ["3", "1", "2"]


def test_timers_and_windows_of_a_key(spark: SparkSession, brokers: str):
    """Their rows have the key within; the keys of others begin or end with it."""
    key, other = b"a, b", b"xa, b"

    def of(row: bytes, key: bytes, **more: int) -> Write:
        return Write(home(key), row, b"v", **more)

    def timer(key: bytes) -> bytes:
        return b"n" + len(key).to_bytes(4) + key + b"remind"

    timers = write_log(brokers, [Transaction((of(timer(key), key), of(timer(key + b"!"), key)))], store="act-timers")
    rows = [b"w" + NOW_MS.to_bytes(WORD) + key for key in (key, other)]
    windows = write_log(
        brokers,
        [Transaction((of(rows[0], key), of(rows[1], other)))],
        config={"cleanup.policy": "compact,delete", "retention.ms": "-1"},
    )
    changelogs = ["--changelog", timers.topic, "--changelog", windows.topic]
    result = run(printable(key), "--brokers", brokers, *changelogs, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [event["row"] for event in found["events"]] == [
        "timer remind",
        f"the window from 2025-10-09 08:53:20 UTC ({NOW_MS} ms)",
    ]
    assert found["notes"] == [
        f"topic {windows.topic} is compacted: earlier writes of the key may be gone from it; an archive that was begun "
        "before has them (--archive)"
    ]


def test_a_key_that_is_unknown_and_few_of_many(spark: SparkSession, brokers: str):
    log = write_log(brokers, [Transaction(tuple(put("a", str(number)) for number in range(5)))])
    rest = ["--brokers", brokers, "--changelog", log.topic]
    result = run("nobody", *rest)
    assert result.exit_code == 2
    assert f"Error: topic {log.topic} has no record of the key nobody" in result.stderr
    found = json.loads(run("a", *rest, "--limit", 2, "--json").stdout)
    assert ([event["value"] for event in found["events"]], found["records"]) == (["3", "4"], 5)
    assert found["notes"] == [f"not shown: 3 older records of {log.topic}. Raise --limit"]


@pytest.mark.parametrize("raw", [b"a", "grün".encode(), b"\x00\xff", b""])
def test_a_key_as_reports_show_it(raw: bytes):
    assert key_bytes(printable(raw)) == raw


def test_a_key_that_is_no_base64():
    with pytest.raises(InputError, match="isn't base64"):
        key_bytes("base64:###")
