"""How far event time may go: sources, their silence, and what is believed of tasks upstream."""

from __future__ import annotations

from typing import Any

import pytest

from actors._core.task.commit import CommitMark, parse_mark
from actors._core.task.feed_times import (
    MOST_LOOKS,
    RETRY_S,
    UNKNOWN_MS,
    FeedTimes,
    Look,
    SourceTime,
    TimeMark,
    UpstreamTimes,
)
from actors._core.task.topic_ids import TopicIds

NOON_MS = 1_700_000_000_000
IDLE_S = 1.0


def look(sent_s: float, *, took_s: float = 0.0, wall_ms: int = NOON_MS, **named: Any) -> Look:
    asked = {"marks": {}, "ends": {}, "counts": {}} | named
    return Look(sent_s, sent_s + took_s, wall_ms, **asked)


def looked(source: SourceTime, sent_s: float, end: int = 5, *, others_ms: int = 700, **named: Any) -> int:
    """Look at a source that has handled everything up to offset 5; return its time."""
    epoch, handled = named.pop("epoch", 0), named.pop("handled", 5)
    source.looked(look(sent_s, **named), (end, epoch), handled=handled, others_ms=others_ms)
    return source.time_ms


def test_a_source_at_its_end_follows_the_others_as_they_were_before_its_silence() -> None:
    source = SourceTime(IDLE_S)
    assert looked(source, 0.0, others_ms=700) == UNKNOWN_MS
    assert looked(source, 0.9, others_ms=800) == UNKNOWN_MS
    # What the others came to in the silence doesn't count: a record may have been written meanwhile.
    assert looked(source, 1.0, others_ms=900) == 700
    assert looked(source, 1.9, others_ms=950) == 800


def test_silence_lasts_from_an_answer_to_a_question() -> None:
    source = SourceTime(IDLE_S)
    looked(source, 0.0, took_s=0.5)
    assert looked(source, 1.4, took_s=0.5) == UNKNOWN_MS
    assert looked(source, 1.5) == 700


def test_a_record_that_came_ends_the_silence() -> None:
    source = SourceTime(IDLE_S)
    looked(source, 0.0)
    assert looked(source, 1.0, end=6, handled=6) == UNKNOWN_MS
    assert looked(source, 1.5, end=6, handled=6) == UNKNOWN_MS
    assert looked(source, 2.0, end=6, handled=6) == 700


def test_a_source_with_something_left_isnt_silent() -> None:
    source = SourceTime(IDLE_S)
    looked(source, 0.0, handled=4)
    assert looked(source, 5.0, handled=4) == UNKNOWN_MS
    # It is at its end since the first look: what was left was there before.
    assert looked(source, 5.1, handled=5) == 700


def test_a_source_follows_no_further_than_the_clock_and_in_steps() -> None:
    source = SourceTime(IDLE_S, time_ms=NOON_MS - 60_000)
    ahead = {"others_ms": NOON_MS + 3_600_000}
    looked(source, 0.0, **ahead)
    assert looked(source, 1.0, **ahead) == NOON_MS - 1_000
    assert looked(source, 2.0, wall_ms=NOON_MS + 1_000, **ahead) == NOON_MS - 1_000
    assert looked(source, 11.0, wall_ms=NOON_MS + 10_000, **ahead) == NOON_MS + 9_000


@pytest.mark.parametrize("by", ["a failed look", "another leader"])
def test_producers_may_retry_for_a_while(by: str) -> None:
    source = SourceTime(IDLE_S)
    looked(source, 0.0)
    if by == "a failed look":
        source.failed(0.5)
    for sent_s in (1.0, 5.0, 0.9 + RETRY_S - 0.5):
        assert looked(source, sent_s, epoch=int(by != "a failed look")) == UNKNOWN_MS
    assert looked(source, 1.0 + RETRY_S, epoch=int(by != "a failed look")) == 700


def test_in_tests_silence_takes_no_time_and_the_clock_doesnt_count() -> None:
    source = SourceTime(0.0)
    looked(source, 0.0, others_ms=NOON_MS + 5)
    assert looked(source, 0.0, others_ms=NOON_MS + 9) == NOON_MS + 5


# --- tasks upstream ---------------------------------------------------------------------------------------------------


def upstream_look(times: list[int], end: int) -> Look:
    marks = {("in", number): TimeMark(output_ms=time_ms) for number, time_ms in enumerate(times)}
    return look(0.0, marks=marks, ends={("hop", 3): (end, 0)}, counts={"in": max(2, len(times))})


def test_what_is_upstream_is_believed_once_all_below_the_end_is_handled() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    assert times.least == (UNKNOWN_MS, None)
    times.looked(upstream_look([70, 90], 10), 3)
    assert not times.believe({"hop": 9})
    assert times.least == (UNKNOWN_MS, None)
    assert times.believe({"hop": 10})
    assert times.least == (70, ("in", 0))


def test_a_partition_without_a_commit_holds_and_so_does_a_new_one() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    times.looked(upstream_look([70], 0), 3)
    times.believe({"hop": 0})
    assert times.least == (UNKNOWN_MS, ("in", 1))
    times.looked(upstream_look([70, 80, UNKNOWN_MS], 0), 3)
    times.believe({"hop": 0})
    assert times.least == (UNKNOWN_MS, ("in", 2))


def test_a_partition_that_a_topic_lacks_since_it_was_created_again_holds_nothing() -> None:
    times = UpstreamTimes({"hop": ("in",)})

    def believe(output_ms: list[int], topic_id: str) -> tuple[int, tuple[str, int] | None]:
        marks = {("in", number): TimeMark(output_ms=time_ms) for number, time_ms in enumerate(output_ms)}
        counts = {"in": len(output_ms)}
        times.looked(look(0.0, marks=marks, ends={("hop", 3): (0, 0)}, counts=counts, ids={"in": topic_id}), 3)
        times.believe({"hop": 0})
        return times.least

    assert believe([70, 90, 50], "first") == (50, ("in", 2))
    # A broker that doesn't know of the growth yet: the partition is there.
    assert believe([80, 95], "first") == (50, ("in", 2))
    assert believe([85, 97], "second") == (85, ("in", 0))
    # A broker that doesn't know of the new topic yet: what isn't known holds.
    assert believe([70, 90, UNKNOWN_MS], "first") == (UNKNOWN_MS, ("in", 2))
    assert believe([99, 98], "second") == (98, ("in", 1))


def test_the_oldest_look_stays_and_the_newest_is_replaced_whole() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    for number in range(MOST_LOOKS + 2):
        times.looked(upstream_look([number, 100], 10 * number), 3)
    assert times.believe({"hop": 0})
    assert times.least == (0, ("in", 0))
    assert not times.believe({"hop": 29})
    times.believe({"hop": 30})
    assert times.least == (3, ("in", 0))


def test_an_old_answer_is_safe() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    for output_ms in (70, 50):
        times.looked(upstream_look([output_ms, 100], 0), 3)
        times.believe({"hop": 0})
    assert times.least == (70, ("in", 0))


def test_stream_time_is_the_least_of_all_feeds_and_never_goes_back() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    feeds = FeedTimes({0: SourceTime(IDLE_S)}, times)
    feeds.sources[0].time_ms = 60
    assert not feeds.advance()
    assert (feeds.stream_ms, feeds.holder) == (UNKNOWN_MS, None)
    times.looked(upstream_look([70, 90], 0), 3)
    times.believe({"hop": 0})
    assert feeds.advance()
    assert (feeds.stream_ms, feeds.holder) == (60, 0)
    feeds.sources[0].time_ms = 200
    feeds.advance()
    assert (feeds.stream_ms, feeds.holder) == (70, ("in", 0))
    times.looked(upstream_look([70, 90, 20], 0), 3)
    times.believe({"hop": 0})
    assert not feeds.advance()
    assert (feeds.stream_ms, feeds.least_ms, feeds.holder) == (70, 20, ("in", 2))


def test_a_released_feed_counts_again_when_it_has_a_later_time() -> None:
    times = UpstreamTimes({"hop": ("in",)})
    feeds = FeedTimes({0: SourceTime(IDLE_S)}, times, released={("in", 1): 20})
    feeds.sources[0].time_ms = 60
    # Before the first look nothing is known of those upstream.
    assert not feeds.advance()
    times.looked(upstream_look([50, 20], 0), 3)
    times.believe({"hop": 0})
    assert feeds.advance()
    assert (feeds.stream_ms, feeds.holder) == (50, ("in", 0))
    times.looked(upstream_look([70, 21], 0), 3)
    times.believe({"hop": 0})
    assert not feeds.advance()
    assert (feeds.stream_ms, feeds.least_ms, feeds.holder) == (50, 21, ("in", 1))
    feeds.released = {("in", 0): 70, ("in", 1): 21, 0: 60}
    assert not feeds.advance()
    assert (feeds.stream_ms, feeds.holder) == (50, None)


# --- marks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [TimeMark(), TimeMark(5, 7), TimeMark(source_ms=0), TimeMark(output_ms=9)])
@pytest.mark.parametrize("now_ms", [0, NOON_MS])
@pytest.mark.parametrize("finished", ["", "AQ=="])
def test_marks_carry_times(times: TimeMark, now_ms: int, finished: str) -> None:
    mark = CommitMark(3, 4, "cafe", finished, now_ms, TopicIds.of("", {}), times)
    assert parse_mark(mark.encode()) == mark


@pytest.mark.parametrize("text", ["x.y.z", "5.-3.1e9", "5.", "5.6.7.8"])
def test_times_that_another_program_wrote_are_no_times_or_numbers(text: str) -> None:
    mark = parse_mark(f"1;2;cafe~,0.{text}")
    assert mark is not None
    assert mark.times in (TimeMark(), TimeMark(6, 7))


def test_a_source_that_follows_the_clock_moves_by_half_of_its_distance() -> None:
    source = SourceTime(IDLE_S, behind_ms=10_000)
    source.time_ms = NOON_MS - 14_999
    for sent_s in (0.0, 1.0):
        assert looked(source, sent_s, others_ms=UNKNOWN_MS) == NOON_MS - 14_999
    assert looked(source, 2.0, others_ms=UNKNOWN_MS, wall_ms=NOON_MS + 1) == NOON_MS + 1 - 10_000


def test_a_source_that_follows_the_clock_is_silent_first() -> None:
    source = SourceTime(IDLE_S, behind_ms=10_000)
    assert looked(source, 0.0) == UNKNOWN_MS
    assert looked(source, 1.0, end=6, handled=6) == UNKNOWN_MS
    assert looked(source, 2.0, end=6, handled=5) == UNKNOWN_MS
    assert looked(source, 2.1, end=6, handled=6) == NOON_MS - 10_000
    source.failed(2.2)
    assert looked(source, 12.1, end=6, handled=6, wall_ms=NOON_MS + 60_000) == NOON_MS - 10_000


def test_a_source_that_follows_the_clock_follows_what_is_ahead_of_it() -> None:
    source = SourceTime(IDLE_S, behind_ms=10_000)
    looked(source, 0.0, others_ms=NOON_MS - 5_000)
    assert looked(source, 1.0, others_ms=NOON_MS) == NOON_MS - 5_000
