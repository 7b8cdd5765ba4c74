"""The page of a report: complete and inert, whatever users wrote."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from spark_replay.cli import main
from spark_replay.cli.options import command_line, html_option, source_options
from spark_replay.comparison.causes import CAUSES
from spark_replay.report.html import Made, render_report, require_page, without_password, write_page
from tests.spark.helpers import NOW_MS, Export, Log, Transaction, Write, put, write_log
from tests.spark.report.pages import MADE, NASTY, make_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VOID = {"meta", "link", "img", "br", "path", "use"}


class Parsed(HTMLParser):
    """A page's tags, which have to be closed in order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def inert(page: str) -> Parsed:
    """Parse a page that mustn't run or load anything."""
    parsed = Parsed(page)
    assert not {"script", "iframe", "object", "embed", "base", "form", "svg", "img"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:,")), (tag, name, value)
    assert "url(http" not in page
    assert "@import" not in page
    return parsed


def test_what_makes_a_page_active_is_seen():
    for damage in ("<script>1</script>", "<img src=x>", "<p onclick=1></p>", "<a href='http://127.0.0.1'></a>", "<p>"):
        with pytest.raises(AssertionError):
            inert(f"<html>{damage}</html>")


def test_page_of_a_validation_without_mismatches():
    parsed = inert(render_report(make_report(12), made=MADE))
    assert "All 12,066 keys that could be compared are equal Nothing to do." in parsed.words
    assert ("section", "class", "verdict good") in parsed.attributes
    for fact in (MADE.command, MADE.source, "2025-10-09 08:53:20 UTC", "faust-actors 0.1.0", "spent of app shop"):
        assert fact in parsed.words
    assert "compared at 5,000 to 5,011; the log of 12 partitions ends at 6,000 to 6,011" in parsed.words
    assert ("th", "scope", "row") in parsed.attributes


def test_page_names_causes_and_what_to_do():
    causes = {"stale_owner": 2, "never_committed": 5}
    parsed = inert(render_report(make_report(12, causes=causes, findings=True), made=MADE))
    assert "7 mismatches, 12,066 keys are equal; a rule of the log is broken by 7 records" in parsed.words
    assert f"Begin with never_committed. {CAUSES['never_committed'].advice}" in parsed.words
    for cause in causes:
        assert f"{CAUSES[cause].meaning} {CAUSES[cause].advice}" in parsed.words
    assert "partition 2 has keys in the log, and the compared state lacks the partition" in parsed.words
    assert "stale copy, not compared: partition 1 of worker worker-3" in parsed.words
    assert "epochs: partition 1: epoch 3 at offset 77 behind epoch 4" in parsed.words
    assert "partition 0, key customer-17 stale_owner: epoch differs" in parsed.words
    assert ("section", "class", "verdict bad") in parsed.attributes


def test_what_users_wrote_is_shown_and_never_runs():
    report = make_report(3, causes={"unknown": 1}, key=NASTY)
    report = replace(report, against=NASTY, notes=[NASTY], stale_copies=[NASTY], changelog=NASTY, store=NASTY)
    made = Made(command=NASTY, source=NASTY)
    parsed = inert(render_report(report, made=made))
    assert parsed.words.count("<script>alert('$x^2$')</script>&amp;{{ 7*7 }}") > 10
    assert ("meta", "http-equiv", "Content-Security-Policy") in parsed.attributes


def test_page_of_512_partitions():
    page = render_report(make_report(512, causes={"stale_owner": 3}), made=MADE)
    parsed = inert(page)
    assert parsed.tags["tr"] > 512
    assert len(page) < 1_000_000


def test_page_of_an_empty_log():
    parsed = inert(render_report(make_report(0), made=MADE))
    assert "There are no keys on either side" in parsed.words
    assert "Keys by partition" not in parsed.words


def test_page_names_partitions_that_were_not_compared():
    report = replace(make_report(2), unanswered={1: "503: the partition is moving"}, over=1)
    parsed = inert(render_report(report, made=MADE))
    assert "not compared: partition 1: 503: the partition is moving" in parsed.words
    assert "1 expired key not removed yet; no mismatch" in parsed.words


def test_a_time_that_no_calendar_has():
    assert f"{10**17} ms after 1970" in inert(render_report(make_report(2), made=replace(MADE, at_ms=10**17))).words


def test_a_page_is_made_of_the_same_bytes_again():
    assert render_report(make_report(3), made=MADE) == render_report(make_report(3), made=MADE)


def test_no_password_gets_into_a_page():
    @click.command("validate")
    @source_options
    @html_option
    @click.pass_context
    def command(context: click.Context, **options: object) -> None:
        click.echo(command_line(context))

    secret = ["--kafka-option", "sasl.jaas.config=secret", "--spark-option", "spark.hadoop.fs.s3a.secret.key=secret"]
    result = CliRunner().invoke(command, [*secret, "--changelog", "a b", "--archive", "s3a://me:secret@bucket/x"])
    assert result.exit_code == 0, result.output
    line = without_password(result.stdout.strip())
    assert line == (
        "python -m spark_replay validate --changelog 'a b' --archive s3a://…@bucket/x "
        "--kafka-option sasl.jaas.config=… --spark-option spark.hadoop.fs.s3a.secret.key=…"
    )
    page = render_report(make_report(1), made=Made(command=line, source="archive s3a://me:secret@bucket/x"))
    assert "secret@" not in page
    assert "archive s3a://…@bucket/x" in page


def test_a_file_that_is_no_page_is_kept(tmp_path: Path):
    file = tmp_path / "report.html"
    require_page(file)
    write_page(file, render_report(make_report(0), made=MADE))
    require_page(file)
    file.write_text("<html>my thesis</html>")
    sides = ("--brokers", "127.0.0.1:1", "--changelog", "t", "--against", tmp_path)
    result = run("validate", *sides, "--html", file)
    assert (result.exit_code, file.read_text()) == (2, "<html>my thesis</html>")
    assert "exists and is no report" in result.stderr
    result = run("validate", *sides, "--html", tmp_path / "none" / "a.html")
    assert (result.exit_code, "there is no folder" in result.stderr) == (2, True)


# --- with Spark and a broker


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


HOUR_MS = 3_600_000
LOG = [
    Transaction(
        (
            put("often", "1", epoch=1, timestamp_ms=NOW_MS - 30 * HOUR_MS),
            put("gone", "x", epoch=1, timestamp_ms=NOW_MS - 30 * HOUR_MS),
        )
    ),
    Transaction((put("aborted", "x" * 500, epoch=1, timestamp_ms=NOW_MS - 29 * HOUR_MS),), committed=False),
    Transaction((put("often", "22", epoch=2, timestamp_ms=NOW_MS - 2 * HOUR_MS),)),
    Transaction(
        (
            put("often", "333", epoch=3, timestamp_ms=NOW_MS - 5_000),
            put("gone", None, epoch=3, timestamp_ms=NOW_MS - 5_000),
            put("over", "x", epoch=3, expires_at_ms=NOW_MS - 1, timestamp_ms=NOW_MS - 5_000),
            put(NASTY, "y" * 100, epoch=3, timestamp_ms=NOW_MS - 5_000),
            Write(0, None, b"no key", headers=(), timestamp_ms=NOW_MS),
        )
    ),
]


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    # these are older than what retention keeps by default
    return write_log(brokers, LOG, config={"retention.ms": "-1"})


def test_validate_writes_a_page(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    export = Export.of(log)
    # the fold takes the record without a key for a state of its own
    export.rows[0] = [row for row in export.rows[0] if row.key is not None]
    export.replace(NASTY.encode(), value=NASTY.encode() * 2)
    folder, page = export.write(tmp_path / "exports"), tmp_path / "report.html"
    rest = ["--against", folder, "--html", page, "--kafka-option", "client.id=secret"]
    result = run("validate", "--brokers", brokers, "--changelog", log.topic, *rest)
    assert result.exit_code == 1, result.output
    parsed = inert(page.read_text())
    assert "2 mismatches" in parsed.words
    assert "different_value 1" in parsed.words
    assert f"--against {folder} --html {page}" in parsed.words
    assert "client.id=…" in parsed.words
    assert "secret" not in parsed.words
