"""The page of a report: complete and inert, whatever users wrote. And the profile that its figures are of."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from spark_replay import ToolMissingError, kafka, profile_log
from spark_replay.cli import main
from spark_replay.cli.options import command_line, html_option, source_options
from spark_replay.comparison.causes import CAUSES, DIFFERENCES
from spark_replay.report.advice import advice_for, meaning_of
from spark_replay.report.html import Made, render_profile, render_report, require_page, without_password, write_page
from spark_replay.report.profile import Profile
from tests.spark.helpers import NOW_MS, PARTITIONS, Export, Log, Transaction, Write, fold, put, write_log
from tests.spark.report.pages import MADE, NASTY, make_profile, make_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VOID = {"meta", "link", "img", "br", "path", "use"}
FIGURES = 8


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
    parsed = inert(render_report(make_report(12), made=MADE, profile=make_profile(12)))
    assert "All 12,066 keys that could be compared are equal Nothing to do." in parsed.words
    assert ("section", "class", "verdict good") in parsed.attributes
    for fact in (MADE.command, MADE.source, "2025-10-09 08:53:20 UTC", "faust-actors 0.1.0", "spent of app shop"):
        assert fact in parsed.words
    assert "compared at 5,000 to 5,011; the log of 12 partitions ends at 6,000 to 6,011" in parsed.words
    assert parsed.tags["figure"] == FIGURES
    assert sum(name == "style" and value.startswith("--share: ") for _, name, value in parsed.attributes) > 100
    assert ("th", "scope", "row") in parsed.attributes


def test_page_names_causes_and_what_to_do():
    causes = {"stale_owner": 2, "never_committed": 5}
    parsed = inert(render_report(make_report(12, causes=causes, findings=True), made=MADE))
    assert "7 mismatches, 12,066 keys are equal; 7 records against a rule of the log" in parsed.words
    assert f"Begin with never_committed. {advice_for('never_committed')}" in parsed.words
    for cause in causes:
        assert f"{meaning_of(cause)} {advice_for(cause)}" in parsed.words
    assert "nobody holds partition 2, which has keys" in parsed.words
    assert "stale copy, not compared: partition 1 of worker worker-3" in parsed.words
    assert "epochs: partition 1: epoch 3 at offset 77 behind epoch 4" in parsed.words
    assert "partition 0, key customer-17 stale_owner: epoch differs" in parsed.words
    assert ("section", "class", "verdict bad") in parsed.attributes


def test_every_cause_has_a_meaning_and_an_advice():
    for cause in (*CAUSES, *DIFFERENCES):
        assert meaning_of(cause) != cause.replace("_", " ")
        assert advice_for(cause) != advice_for("a cause of a later release")


def test_a_cause_that_is_not_known_here_appears():
    parsed = inert(render_report(make_report(3, causes={"a_new_cause": 3}), made=MADE))
    assert "By cause: a_new_cause 3. Begin with a_new_cause. See the examples." in parsed.words


def test_what_users_wrote_is_shown_and_never_runs():
    report = make_report(3, causes={NASTY: 1}, key=NASTY)
    report = replace(report, against=NASTY, notes=[NASTY], stale_copies=[NASTY], changelog=NASTY, store=NASTY)
    made = Made(command=NASTY, source=NASTY)
    parsed = inert(render_report(report, made=made, profile=make_profile(3, key=NASTY)))
    assert parsed.words.count("<script>alert('$x^2$')</script>&amp;{{ 7*7 }}") > 20
    assert ("meta", "http-equiv", "Content-Security-Policy") in parsed.attributes


def test_page_of_512_partitions():
    page = render_report(make_report(512, causes={"stale_owner": 3}), made=MADE, profile=make_profile(512))
    parsed = inert(page)
    assert "3 partitions of 512; most in partition 0: 1." in parsed.words
    assert parsed.tags["figure"] == FIGURES + 1
    assert len(page) < 1_000_000


@pytest.mark.parametrize("partitions", [0, 1])
def test_page_of_an_empty_log(partitions: int):
    profile = make_profile(0)
    parts = [replace(part, records=0, keys=0) for part in make_profile(partitions).partitions]
    parsed = inert(render_report(make_report(0), made=MADE, profile=replace(profile, partitions=parts)))
    assert "There are no keys on either side" in parsed.words
    assert "It has no records." in parsed.words
    assert parsed.tags["figure"] == 0
    assert "The log is empty" in inert(render_profile(profile, made=MADE)).words


def test_page_of_a_profile():
    profile = make_profile(12)
    parsed = inert(render_profile(profile, made=MADE))
    top = max(profile.partitions, key=lambda part: part.keys)
    assert f"the largest is partition {top.partition} with {top.keys:,}, {profile.skew('keys'):.2f} times the mean" in (
        parsed.words
    )
    assert (
        "48 owners of 12 partitions, from first record to last; 1 began while an earlier one still wrote."
        in parsed.words
    )
    assert ("section", "class", "verdict bad") in parsed.attributes
    assert profile.most_written[0].key in parsed.words


def test_times_that_no_calendar_has():
    far = 10**17
    profile = make_profile(2)
    epochs = [replace(profile.epochs[0], last_ms=far)]
    slots = [replace(profile.slots[0], start_ms=far)]
    parsed = inert(render_profile(replace(profile, epochs=epochs, slots=slots, at_ms=far), made=MADE))
    assert f"{far} ms" in parsed.words


def test_a_page_is_made_of_the_same_bytes_again():
    assert render_profile(make_profile(3), made=MADE) == render_profile(make_profile(3), made=MADE)


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
        "python -m spark_replay validate --archive s3a://…@bucket/x --changelog 'a b' "
        "--kafka-option sasl.jaas.config=… --spark-option spark.hadoop.fs.s3a.secret.key=…"
    )
    page = render_report(make_report(1), made=Made(command=line, source="archive s3a://me:secret@bucket/x"))
    assert "secret@" not in page
    assert "archive s3a://…@bucket/x" in page


def test_a_file_that_is_no_page_is_kept(tmp_path: Path):
    file = tmp_path / "report.html"
    require_page(file)
    write_page(file, render_profile(make_profile(0), made=MADE))
    require_page(file)
    file.write_text("<html>my thesis</html>")
    result = run("profile", "--brokers", "127.0.0.1:1", "--changelog", "t", "--html", file)
    assert (result.exit_code, file.read_text()) == (2, "<html>my thesis</html>")
    assert "exists and is no report" in result.stderr
    result = run("profile", "--brokers", "127.0.0.1:1", "--changelog", "t", "--html", tmp_path / "none" / "a.html")
    assert (result.exit_code, "there is no folder" in result.stderr) == (2, True)


def test_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ToolMissingError, match=r"Jinja2 isn't installed: pip install 'faust-actors\[spark\]'"):
        render_profile(make_profile(1), made=MADE)
    result = run("profile", "--brokers", "127.0.0.1:1", "--changelog", "t", "--html", tmp_path / "a.html")
    assert (result.exit_code, "Jinja2 isn't installed" in result.stderr) == (2, True)


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


@pytest.fixture(scope="module")
def profile(spark: SparkSession, brokers: str, log: Log) -> Profile:
    return profile_log(kafka(spark, brokers, log.topic), at_ms=NOW_MS)


@pytest.mark.nightly
def test_profile_counts_what_the_log_holds(profile: Profile, log: Log):
    live = fold([write for write in log.records if write.key is not None])
    for part in profile.partitions:
        written = [write for write in log.records if write.partition == part.partition]
        held = [write for (number, _), write in live.items() if number == part.partition]
        assert part.records == len(written)
        assert part.log_bytes == sum(len(write.key or b"") + len(write.value or b"") for write in written)
        assert (part.keys, part.key_bytes, part.value_bytes) == (
            len(held),
            sum(len(write.key or b"") for write in held),
            sum(len(write.value or b"") for write in held),
        )
        assert (part.start, part.end >= log.ends[part.partition]) == (0, True)
    totals = profile.totals
    assert (totals["keys"], totals["records"], totals["tombstones"], totals["damaged"]) == (2, 8, 1, 1)
    assert (totals["expired"], totals["deleted"], totals["partitions"]) == (1, 1, PARTITIONS)


def test_profile_names_the_largest_keys(profile: Profile):
    assert [(key.key, key.records) for key in profile.most_written[:2]] == [("often", 3), ("gone", 2)]
    assert (profile.largest[0].key, profile.largest[0].log_bytes) == (NASTY, len(NASTY) + 100)
    assert {key.key for key in profile.largest} == {"often", "gone", "over", NASTY}


def test_profile_over_time(profile: Profile):
    assert {(age.below_ms, age.keys) for age in profile.ages if age.keys} == {(60_000, 2)}
    assert (profile.slot_ms, sum(slot.records for slot in profile.slots)) == (1_800_000, 8)
    assert [slot.records for slot in profile.slots if slot.records] in ([2, 1, 5], [2, 1, 4, 1])
    assert sum(slot.tombstones for slot in profile.slots) == 1
    starts = [slot.start_ms for slot in profile.slots]
    assert starts == list(range(starts[0], starts[-1] + 1, profile.slot_ms))


def test_profile_of_owners(profile: Profile, log: Log):
    found = {(epoch.partition, epoch.epoch): epoch for epoch in profile.epochs}
    with_metadata = [write for write in log.records if write.key is not None]
    assert set(found) == {(write.partition, write.epoch) for write in with_metadata}
    assert (profile.owners, any(epoch.overlaps for epoch in profile.epochs)) == (len(found), False)
    for (partition, number), epoch in found.items():
        offsets = [write.offset for write in with_metadata if (write.partition, write.epoch) == (partition, number)]
        assert (epoch.first_offset, epoch.last_offset, epoch.records) == (min(offsets), max(offsets), len(offsets))


@pytest.mark.nightly
def test_profile_sees_owners_that_overlap(spark: SparkSession, brokers: str):
    writes = [put("k", "1", epoch=4), put("k", "2", epoch=5), put("k", "3", epoch=4)]
    log = write_log(brokers, [Transaction((write,)) for write in writes])
    found = profile_log(kafka(spark, brokers, log.topic))
    assert [(epoch.epoch, epoch.overlaps) for epoch in found.epochs] == [(4, False), (5, True)]
    assert "1 owner began while an earlier one still wrote" in inert(render_profile(found, made=MADE)).words


def test_profile_of_an_empty_topic(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [])
    page, file = tmp_path / "a.html", tmp_path / "a.json"
    result = run("profile", "--brokers", brokers, "--changelog", log.topic, "--html", page, "--json", file)
    assert result.exit_code == 0, result.output
    totals = json.loads(result.stdout)
    assert (totals["records"], totals["keys"], totals["skew"]["keys"]) == (0, 0, None)
    assert json.loads(file.read_text())["totals"] == totals
    assert "The log is empty" in inert(page.read_text()).words


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
    assert parsed.tags["figure"] == FIGURES + 1
    assert f"--against {folder} --html {page}" in parsed.words
    assert "client.id=…" in parsed.words
    assert "secret" not in parsed.words


def test_dry_run_writes_no_page(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    page = tmp_path / "a.html"
    result = run("profile", "--brokers", brokers, "--changelog", log.topic, "--html", page, "--dry-run")
    assert (result.exit_code, page.exists()) == (0, False)
    assert json.loads(result.stdout)["command"] == "profile"
