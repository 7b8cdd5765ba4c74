"""Effects outside Kafka: failures, parking, and the limits of what is held in memory."""

import asyncio

import pytest

from actors.runtime.handlers.effect import Effect
from actors.runtime.outbox.calls import make_key
from actors.runtime.outbox.effects import AT_ONCE
from stores._core.overlay import with_metadata
from stores._core.record import encode_metadata
from tests.unit.runtime.outbox.effect_bench import Log, bench, effect, play

# --- limits ----------------------------------------------------------------------------------------------------------


def backlog(at, log, count):
    for number in range(count):
        for again in range(1 if number % 10 else 3):
            at.message(b"%05d" % number, log.effect, (number, again))
    at.runner.before_commit()
    at.committed.apply([(key, with_metadata(entry)) for key, entry in at.overlay.freeze().items()], at.position())


def test_a_large_backlog_is_worked_off_with_few_at_once_and_few_in_memory():
    async def main():
        log = Log(takes_s=0.01)
        at = bench(log.effect)
        backlog(at, log, 1_200)
        at.take_over()
        most = 0
        while at.runner.is_busy:
            await at.turns()
            most = max(most, len(at.runner._lines._ready))
            if at.overlay.writes:
                at.commit()
            await asyncio.sleep(0.01)
        assert len(log.values) == 1_440
        assert sorted(log.values, key=lambda value: value[0]) == sorted(log.values)
        assert len(set(map(tuple, log.values))) == 1_440
        assert log.most == AT_ONCE
        assert 500 <= most <= 1_000
        assert at.records() == []

    play(main)


def test_a_burst_in_one_commit_that_is_larger_than_what_is_held_is_found_again():
    async def main():
        log = Log()
        at = bench(log.effect)
        at.message(b"a", log.effect, -1)
        at.commit()
        await at.settle()
        for number in range(1_500):
            at.message(b"%05d" % number, log.effect, number)
        at.commit()
        await at.settle()
        assert log.values[0] == -1
        assert sorted(log.values[1:]) == list(range(1_500))

    play(main)


def test_a_burst_behind_a_walk_that_goes_on_is_found_again_and_nothing_runs_twice():
    async def main():
        log = Log(takes_s=20)
        at = bench(log.effect)
        backlog(at, log, 1_200)
        at.take_over()
        await at.turns()
        for number in range(300):
            at.message(b"%03d" % number, log.effect, ("burst", number))
        at.commit()
        await at.settle()
        assert len(log.values) == 1_740
        assert len(set(map(tuple, log.values))) == 1_740

    play(main)


def test_a_walk_passes_over_what_runs():
    async def main():
        log = Log(takes_s=5)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        at.runner._lines._miss()
        await at.turns()
        await at.settle()
        assert len(log.calls) == 1

    play(main)


def test_the_next_key_begins_although_the_task_is_busy():
    async def main():
        log = Log(takes_s=1)
        at = bench(log.effect)
        for number in range(AT_ONCE + 1):
            at.message(b"%d" % number, log.effect, number)
        at.commit()
        await asyncio.sleep(1.5)
        assert len(log.calls) == AT_ONCE + 1

    play(main)


async def many_that_fail(attempts: int):
    """More than are held, each of which has failed once."""
    log = Log(fails=1_300, attempts=attempts)
    at = bench(log.effect)
    for number in range(1_300):
        at.message(b"%05d" % number, log.effect, number)
    at.commit()
    await at.settle()
    return log, at


def test_more_that_wait_than_are_held_are_all_tried_again():
    async def main():
        log, at = await many_that_fail(attempts=0)
        assert len(at.records()) == 1_300
        assert len(at.runner._lines._waiting) == 1_000
        await at.pass_time(60)
        assert at.records() == []
        assert sorted(log.values) == sorted([*range(1_300), *range(1_300)])

    play(main)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_call_is_parked_after_its_attempts_holds_up_its_key_only_and_can_be_retried(caplog):
    async def main():
        log = Log(fails=2, attempts=2)
        at = bench(log.effect)
        at.message(b"a", log.effect, "first")
        at.commit()
        await at.pass_time(100)
        at.message(b"a", log.effect, "behind")
        at.message(b"b", log.effect, "other")
        at.commit()
        await at.pass_time(1_000)
        assert log.values == ["first", "first", "other"]
        assert [(key, record.parked, record.attempts) for key, record in at.records()] == [
            (b"a", True, 2),
            (b"a", False, 0),
        ]
        assert not at.runner.is_busy
        assert "faust parked retry work" in caplog.text
        assert "OSError: no first" in caplog.text
        at.take_over()
        await at.settle()
        assert len(log.values) == 3
        assert at.runner.retry(at.state, b"b") == 0
        assert at.runner.retry(at.state, b"a") == 1
        at.state.scope.release()
        at.commit()
        await at.settle()
        assert log.values[3:] == ["first", "behind"]
        assert log.calls[3].attempt == 1
        assert at.records() == []

    play(main)


def test_a_parked_call_can_be_dropped_and_any_other_by_its_id():
    async def main():
        log = Log(fails=1, attempts=1)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        unwanted = at.message(b"a", log.effect, 2)
        at.message(b"a", log.effect, 3)
        at.commit()
        await at.settle()
        assert at.runner.drop(at.state, b"a", "unknown") == 0
        assert at.runner.drop(at.state, b"a", unwanted) == 1
        assert at.runner.drop(at.state, b"a") == 1
        assert at.runner.drop(at.state, b"a") == 0
        at.state.scope.release()
        at.commit()
        await at.settle()
        assert log.values == [1, 3]

    play(main)


def settled(at, count, keys):
    """Give how many of the parked lines were retried or dropped, and commit that."""
    found = sum(count(at.state, key) for key in keys)
    at.state.scope.release()
    at.commit()
    return found


def test_what_is_parked_is_counted_also_by_the_next_owner():
    async def main():
        log = Log(fails=4, attempts=1)
        at = bench(log.effect)
        assert at.meters.parked_effects == 0, "nothing can be there before the first input"
        for key in (b"a", b"b", b"c"):
            at.message(key, log.effect, 1)
            at.message(key, log.effect, 2)
        at.commit()
        assert at.meters.parked_effects == 0
        await at.settle()
        assert at.meters.parked_effects == 3
        at.take_over()
        assert at.meters.parked_effects is None
        await at.settle()
        assert at.meters.parked_effects == 3
        assert settled(at, at.runner.retry, [b"a"]) == 1
        assert at.meters.parked_effects == 2
        await at.settle()
        assert at.meters.parked_effects == 3, "it failed again"
        assert settled(at, at.runner.drop, [b"a"]) == 1
        await at.settle()
        assert at.meters.parked_effects == 2
        assert settled(at, at.runner.retry, [b"b", b"c"]) == 2
        await at.settle()
        assert at.meters.parked_effects == 0
        assert at.records() == []

    play(main)


def test_of_more_that_are_parked_than_are_held_the_others_are_found_when_there_is_room():
    async def main():
        _, at = await many_that_fail(attempts=1)
        for _ in range(2):
            assert at.meters.parked_effects == len(at.runner._lines._parked) == 1_000
            at.take_over()
            await at.settle()
        assert settled(at, at.runner.drop, [b"%05d" % number for number in range(400)]) == 400
        assert at.meters.parked_effects == 600
        await at.pass_time(2)
        assert at.meters.parked_effects == 900
        assert settled(at, at.runner.drop, [b"%05d" % number for number in range(400, 1_299)]) == 899
        await at.pass_time(2)
        assert at.meters.parked_effects == 1
        assert settled(at, at.runner.drop, [b"01299"]) == 1
        assert at.meters.parked_effects == 0
        assert at.runner.wait_s() > 1_000, "nothing is looked for any more"

    play(main)


def test_a_call_that_is_dropped_while_it_runs_has_no_outcome():
    async def main():
        log = Log(takes_s=5, gives="late")
        at = bench(log.effect)
        unwanted = at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        assert at.runner.drop(at.state, b"a", unwanted) == 1
        at.state.scope.release()
        at.message(b"a", log.effect, 2)
        at.commit()
        await at.settle()
        assert log.values == [1, 2]
        assert log.most == 1
        assert [entry[2][:7] + entry[2][-9:] for entry in at.handled] == ["in-0-1--1-result"]

    play(main)


def test_an_outcome_is_not_that_of_the_call_that_took_the_place_of_a_dropped_one():
    async def main():
        log = Log(takes_s=5)
        at = bench(log.effect)
        unwanted = at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        assert at.runner.drop(at.state, b"a", unwanted) == 1
        at.state.scope.release()
        at.message(b"a", log.effect, 2)
        assert list(at.overlay.writes) == [make_key(b"a", 1)]
        at.commit()
        await at.settle()
        assert log.values == [1, 2]
        assert log.times == [0, 5]

    play(main)


def test_a_call_that_is_dropped_in_the_commit_of_its_outcome_has_none():
    async def main():
        log = Log(gives="late")
        at = bench(log.effect)
        unwanted = at.message(b"a", log.effect, 1)
        at.message(b"a", log.effect, 2)
        at.commit()
        await asyncio.sleep(1)
        at.runner.drop(at.state, b"a", unwanted)
        at.state.scope.release()
        await at.turns()
        assert at.handled == []
        at.commit()
        await at.settle()
        assert log.values == [1, 2]
        assert len(at.handled) == 1

    play(main)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (asyncio.CancelledError("own"), "CancelledError: own"),
        (TimeoutError("theirs"), "TimeoutError: theirs"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ValueError("\x01" * 100_000), "ValueError: " + "\x01" * 488),
    ],
)
def test_whatever_a_function_raises_is_a_failure_that_can_be_written(error, shown):
    async def main():
        async def fails(call):
            raise error

        at = bench(effect(fails))
        at.message(b"a", at.effects["fails"])
        at.commit()
        await at.settle()
        [(_, record)] = at.records()
        assert record.error == shown

    play(main)


def test_an_attempt_that_takes_too_long_is_a_failure():
    async def main():
        log = Log(takes_s=40, attempts=1)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await at.settle()
        [(_, record)] = at.records()
        assert (record.error, record.parked) == ("no end after 30 s", True)
        assert log.running == 0
        assert asyncio.get_running_loop().time() == pytest.approx(30)

    play(main)


def test_a_result_that_the_actor_does_not_take_parks_the_call():
    async def main():
        log = Log(gives=5)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await at.settle()
        [(_, record)] = at.records()
        assert record.parked
        assert "it succeeded, but what it returned" in record.error
        assert "takes text, not 5" in record.error
        assert at.handled == []

    play(main)


def test_a_call_of_a_function_that_the_actor_lists_no_more_is_parked():
    async def main():
        old, new = Log(), Log()
        at = bench(old.effect)
        at.message(b"a", old.effect, 1)
        at.commit()
        await at.runner.close()
        renamed = bench(Effect(new.effect.function, "other"), committed=at.committed, offset=1)
        await renamed.settle()
        [(_, record)] = renamed.records()
        assert record.parked
        assert "lists no effect named 'work': was it renamed or removed?" in record.error
        assert new.calls == []

    play(main)


def test_a_damaged_record_is_left_and_holds_up_its_key_only(caplog):
    async def main():
        log = Log()
        at = bench(log.effect)
        for number in range(2):
            at.message(b"a", log.effect, f"a{number}")
        at.message(b"b", log.effect, "b")
        backup = make_key(b"a", 1)
        at.runner.before_commit()
        entries = {key: with_metadata(entry) for key, entry in at.overlay.freeze().items()}
        metadata = encode_metadata(1, 0)
        entries |= {backup: metadata + b"\xff{", b"e\0\0\0\x09x": metadata + b"{}"}
        at.committed.apply(entries.items(), at.position())
        at.take_over()
        await at.settle()
        at.message(b"a", log.effect, "a2")
        at.commit()
        await at.settle()
        assert log.values == ["b"]
        assert at.meters.parked_effects == 1
        assert at.committed.get(backup) == metadata + b"\xff{"
        assert caplog.text.count("isn't an effect's call") == 2
        assert backup.hex() in caplog.text

    play(main)


def test_an_error_of_the_store_reaches_the_tenure():
    async def main():
        log = Log(takes_s=1)
        at = bench(log.effect)
        for number in range(AT_ONCE + 1):
            at.message(b"%d" % number, log.effect, number)
        at.commit()
        await asyncio.sleep(0)
        at.committed.close()
        await asyncio.sleep(2)
        assert at.runner.wait_s() == 0
        with pytest.raises(Exception, match="closed"):
            at.runner.take()

    play(main)


def test_close_cancels_what_runs_also_what_has_not_begun_and_may_be_called_twice():
    async def main():
        log = Log(takes_s=100)
        at = bench(log.effect)
        for key in (b"a", b"b"):
            at.message(key, log.effect, 1)
            at.commit()
            if key == b"a":
                await asyncio.sleep(1)
        await at.runner.close()
        await at.runner.close()
        assert len(log.calls) == 1
        assert log.running == 0
        assert not at.runner.is_busy
        assert len(at.records()) == 2

    play(main)
