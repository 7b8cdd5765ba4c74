"""What is past its retention: the row `m` says which rows, and the disk lacks none of the others that the log has."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings

from actors import App, Session, Sliding, Tumbling, aggregates
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES
from stores._core.windows import Progress, decode_progress, encode_progress
from tests.examples import examples
from tests.unit.runtime.windows.test_against_records import BEGIN_MS, GRACE_MS, KINDS, LENGTHS, MS, STEPS, make
from tests.unit.runtime.windows.test_changes import SECOND, Shop
from tests.unit.runtime.windows.test_joins import LEFT, RIGHT, World

SEGMENTS_MS = {"tumbling": 1, "hopping": 1, "sliding": 5, "session": 5}


def on_disk(driver, store):
    """The committed rows of the only partition, without their metadata."""
    (files,) = (one for one in driver._disk.files() if one.store == store)
    return {row: raw[METADATA_BYTES:] for row, raw in files.data.items()}


def in_log(driver, store):
    """The last value of each row of the changelog."""
    log = driver._cluster.log(TopicPartition(driver._setup.changelog_topic(store), 0))
    last = {record.key: record.value for record in log.read(0, max_records=1_000_000)[0]}
    return {row: value for row, value in last.items() if value is not None}


def differences(driver, store="sales"):
    """Check disk and log against each other; return what is past its retention in each."""
    disk, log = on_disk(driver, store), in_log(driver, store)
    expired = decode_progress(log[b"m"]).expired
    past = {row for row in disk.keys() | log.keys() if row[:1] == expired[:1] and row < expired}
    assert {row: value for row, value in disk.items() if row not in past} == {
        row: value for row, value in log.items() if row not in past
    }
    return disk.keys() & past, log.keys() & past


def run(kind, steps):
    app, orders, *_ = make(kind)
    stream_ms, retention_ms = -1, LENGTHS[kind] + GRACE_MS
    with ActorTestDriver(app, partitions=1) as driver:
        for step in steps:
            if isinstance(step, str):
                driver.crash(keep_disk=step == "crash")
                continue
            key, amount, at_ms = step
            stream_ms = max(stream_ms, BEGIN_MS + at_ms)
            driver.send(orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_ms)
            differences(driver)
        if stream_ms < 0:
            return 0
        expired = decode_progress(in_log(driver, "sales")[b"m"]).expired
        kept_ms = retention_ms + {"sliding": 2, "session": 1}.get(kind, 0)
        assert int.from_bytes(expired[1:]) == (stream_ms - kept_ms + 1) // SEGMENTS_MS[kind]
        on_disk_still, in_log_still = differences(driver)
        assert on_disk_still <= in_log_still
        return len(in_log_still) - len(on_disk_still)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(steps=STEPS)
def test_disk_and_log_differ_only_in_rows_that_are_past_their_retention(kind, steps):
    run(kind, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_past_its_retention_is_removed_without_a_delete(kind):
    assert run(kind, [("a", 1, 0), ("b", 2, 1), ("a", 3, 150), ("a", 4, 200)]) > 0


def run_join(how, steps):
    """Each record goes to one of the two inputs, and keeps a chunk for 23 ms behind stream time."""
    world, stream_ms = World(how, within=10 * MS, grace=GRACE_MS * MS), -1
    with ActorTestDriver(world.app, partitions=1) as driver:
        for step in steps:
            if isinstance(step, str):
                driver.crash(keep_disk=step == "crash")
                continue
            key, amount, at_ms = step
            stream_ms = max(stream_ms, BEGIN_MS + at_ms)
            side = world.inputs[(LEFT, RIGHT)[amount % 2]]
            driver.send(side, key=key, value=f"{amount}", timestamp_ms=BEGIN_MS + at_ms)
            differences(driver, "joined")
        if stream_ms < 0:
            return 0
        expired = decode_progress(in_log(driver, "joined")[b"m"]).expired
        assert expired[:1] == b"j"
        assert int.from_bytes(expired[1:]) == (stream_ms - 23) // 21
        on_disk_still, in_log_still = differences(driver, "joined")
        assert on_disk_still <= in_log_still
        return len(in_log_still) - len(on_disk_still)


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(max_examples=examples(60))
@given(steps=STEPS)
def test_so_it_is_with_joins(how, steps):
    run_join(how, steps)


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_records_that_no_later_one_matches_are_removed_without_a_delete(how):
    assert run_join(how, [("a", 1, 0), ("b", 2, 1), ("a", 3, 150), ("a", 4, 200)]) > 0


def restart(driver, shop, *, keep_disk):
    """Start another program, with the disk of the former one or with none."""
    driver._kill()
    if not keep_disk:
        driver._disk.erase()
    driver.restart(shop.app)


def keys_at(shop, driver, at_s):
    """The windows that a query would show, of all that begin in a span."""
    found = driver.windows(shop.sales, "a")
    return {(window.start_ms - BEGIN_MS) // 1000 for window in found} & set(at_s)


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_longer_retention_shows_nothing_that_may_have_been_removed(keep_disk):
    before = Shop(Tumbling(seconds=10), retention=20 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "a", 1, 0)
        before.order(driver, "a", 1, 90)
        before.order(driver, "a", 1, 100)
        after = Shop(Tumbling(seconds=10), retention=timedelta(hours=1))
        restart(driver, after, keep_disk=keep_disk)
        assert keys_at(after, driver, range(200)) == {90, 100}
        after.order(driver, "a", 1, 110)
        assert keys_at(after, driver, range(200)) == {90, 100, 110}
        differences(driver)


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Session(5 * SECOND), Sliding(10 * SECOND)])
def test_a_new_on_close_is_not_called_for_what_may_have_been_removed(kind, keep_disk):
    before = Shop(kind, closes=False, retention=30 * SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.order(driver, "old", 1, 0)
        before.order(driver, "new", 1, 990)
        before.order(driver, "now", 1, 1000)
        after = Shop(kind, retention=30 * SECOND)
        restart(driver, after, keep_disk=keep_disk)
        after.order(driver, "now", 1, 1015)
        assert {key for key, *_ in after.sent(driver)} == {"new", "now"}


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_longer_grace_opens_no_record_of_a_join_that_was_closed(keep_disk):
    """What it would match some disks have removed, and what it wrote would be removed with the next takeover."""
    before = World("left", within=SECOND, grace=SECOND)
    with ActorTestDriver(before.app, partitions=1) as driver:
        before.send(driver, LEFT, "a", 0)
        before.send(driver, RIGHT, "end", 100, key="end")
        after = World("left", within=SECOND, grace=1000 * SECOND, late="topic")
        restart(driver, after, keep_disk=keep_disk)
        for side, value, at_s in ((RIGHT, "late", 0), (LEFT, "too", 0), (LEFT, "b", 98.9), (RIGHT, "c", 99)):
            after.send(driver, side, value, at_s)
        assert [one.value for one in driver.outputs(after.late)] == ["late", "too"]
        assert after.results_of(driver) == [("a", None, 0), ("b", "c", 99)]
        differences(driver, "joined")


def test_rows_of_later_releases():
    expired = b"k" + bytes(8)
    later = b"p" + (5).to_bytes(8) + msgspec.msgpack.encode([b"w", 6, "layout", 7, True, expired, 8, 9, {}, 0, "new"])
    assert decode_progress(later) == Progress(5, b"w", 6, "layout", 7, True, expired, 8, 9)
    assert decode_progress(encode_progress(Progress(expired=expired))) == Progress(expired=expired)


@pytest.mark.parametrize("expired", [b"k", b"k" + bytes(9)])
def test_an_expired_row_of_another_length_is_refused(expired):
    with pytest.raises(ValueError, match="not the stream time of windows"):
        decode_progress(encode_progress(Progress(expired=expired)))


def test_the_record_before_is_known_while_a_window_behind_it_is_open():
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    kept = {"grace": timedelta(milliseconds=1), "retention": timedelta(milliseconds=11)}
    near = app.window_store("near", Sliding(timedelta(milliseconds=5)), aggregate=aggregates.sum(), **kept)
    found = []

    @app.actor(orders, stores=[near])
    async def add(ctx, amount):
        found.append(near.add(ctx.key, amount))

    with ActorTestDriver(app, partitions=1) as driver:
        for key, amount, at_ms in (("a", 1, 24), ("b", 2, 31), ("a", 4, 26)):
            driver.send(orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_ms)
    # It closes at 32.
    assert found[-1] == [((BEGIN_MS + 25, BEGIN_MS + 30), 4)]


@pytest.mark.parametrize("kind", [Tumbling(seconds=10), Sliding(10 * SECOND), Session(10 * SECOND)], ids=str)
def test_a_disk_keeps_its_windows_though_the_broker_has_deleted_the_whole_changelog(kind):
    shop = Shop(kind)
    with ActorTestDriver(shop.app, partitions=1) as driver:
        for number in range(2):
            shop.order(driver, "a", 1, 10 + number)
        log = driver._cluster.log(TopicPartition(driver._setup.changelog_topic("sales"), 0))
        log.delete_before(log.end)
        driver.crash()
        # Stream time is known too: this one is late.
        shop.order(driver, "a", 5, -100)
        shop.order(driver, "b", 1, 100)
        found = shop.sent(driver)
        assert {key for key, *_ in found} == {"a"}
        assert max(total for *_, total in found) == 2
        assert min(start_s for _, start_s, _, _ in found) >= 0
