"""Effects where a task leaves or takes over again: no call that has ended is made again, and its result is handled."""

import asyncio
import json
from collections import Counter

import pytest

from actors import App, HandlerFailedError, OnError
from actors.errors import BatchesRefusedError, CommitRefusedError, OutcomeUnknownError
from actors.ports import TopicPartition
from actors.runtime.outbox import effects
from actors.testing import ActorTestDriver
from actors.testing.fakes.ports import FakeWriter
from tests.unit.runtime.leaving import leave
from tests.unit.runtime.outbox.effect_bench import Log, bench, play

KEYS = 60
CALL_S, HANDLER_S = 0.05, 0.02
TORN = "torn"


def test_a_result_that_is_not_handled_is_kept_for_the_next_owner_who_makes_no_call():
    async def main():
        log = Log(gives="done")
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.message(b"a", log.effect, 2)
        at.commit()
        await asyncio.sleep(1)
        await at.runner.leave()
        at.commit()
        assert at.handled == []
        at.take_over()
        await at.settle()
        assert log.values == [1, 2]
        assert [(key, value) for key, value, _ in at.handled] == [("a", "done")] * 2
        assert at.records() == []

    play(main)


def test_an_end_without_a_result_is_written_when_the_worker_leaves():
    async def main():
        log, failing = Log(), Log(fails=1)
        failing.effect = effects.Effect(failing.effect.function, "failing")
        at = bench(log.effect, failing.effect)
        at.message(b"a", log.effect, 1)
        at.message(b"b", failing.effect, 2)
        at.commit()
        await asyncio.sleep(0.5)
        await at.runner.leave()
        at.commit()
        [(raw_key, record)] = at.records()
        assert (raw_key, record.attempts, record.error) == (b"b", 1, "OSError: no 2")
        at.take_over()
        await at.pass_time(60)
        assert (log.values, failing.values) == ([1], [2, 2])

    play(main)


def test_a_call_that_is_under_way_is_cancelled_and_made_again_by_the_next_owner():
    async def main():
        log = Log(takes_s=2)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.commit()
        await asyncio.sleep(1)
        await at.runner.leave()
        assert log.running == 0
        assert not at.overlay.writes
        at.take_over()
        await at.settle()
        assert [call.attempt for call in log.calls] == [1, 1]

    play(main)


def test_a_result_that_does_not_fit_into_the_changelog_is_named_and_its_call_not_made_again(caplog):
    async def main():
        log = Log(gives="x" * 120_000)
        at = bench(log.effect)
        at.message(b"a", log.effect, 1)
        at.message(b"b", log.effect, 2)
        at.commit()
        await asyncio.sleep(1)
        await at.runner.leave()
        at.commit()
        at.take_over()
        await at.settle()
        assert log.values == [1, 2]
        assert at.handled == []
        assert [record.parked for _, record in at.records()] == [True, True]

    play(main)
    assert "effect work" in caplog.text
    assert "key 'a'" in caplog.text
    assert "120000 bytes don't fit into the changelog" in caplog.text


class Shop:
    """An order makes a call, whose result is handled slowly; counts which calls began, ended and were handled."""

    def __init__(self, *, concurrency=1, **options):
        handler_s = HANDLER_S * concurrency
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.orders = app.topic("orders", key_type=str, value_type=str)
        self.done = app.topic("done", key_type=str, value_type=str)
        self.begun, self.ended, self.begun_late = Counter(), Counter(), []
        self.is_leaving = self.fails = self.refuses = self.cancels = False
        self.sold = set()

        @app.effect()
        async def charge(call, order: str):
            self.begun[call.idempotency_key] += 1
            if self.is_leaving:
                self.begun_late.append(call.idempotency_key)
            await asyncio.sleep(CALL_S)
            self.ended[call.idempotency_key] += 1
            return f"charged {order}"

        @app.actor(self.orders, effects=[charge], concurrency=concurrency, **options)
        async def order(ctx, value):
            if not value.startswith("charged"):
                ctx.effect(charge, value)
                if ctx.key == TORN:
                    await self.sell(value)
                return
            await asyncio.sleep(handler_s)
            if self.is_leaving and self.cancels:
                raise asyncio.CancelledError
            if self.fails:
                raise ValueError("not now")
            ctx.send(self.done, key=ctx.key, value=value)

        self.options = {"partitions": 1, "effects": {charge: charge}}

    async def sell(self, value):
        if self.refuses:
            raise ValueError(f"{value} can't be sold")
        await asyncio.sleep(CALL_S)
        self.sold.add(value)

    def fill(self, driver, key=None):
        """Post orders, each of a key of its own or all of one."""
        for number in range(KEYS):
            driver.post(self.orders, key=key or f"{number:02}", value="hat" if key is None else f"{key} {number}")

    def leave(self, driver, **options):
        self.is_leaving = True
        leave(driver, before_start=self._start, **options)

    def _start(self):
        self.is_leaving = False

    def check(self, driver, key=None):
        """Check that each order of a key of its own had its result once, and as many of the one key if there is one."""
        finals = sorted(one.key for one in driver.outputs(self.done))
        assert finals == [f"{number:02}" for number in range(KEYS)] + [key] * (KEYS if key else 0)
        assert self.begun_late == [], "calls began while the worker was leaving"
        assert max(self.ended.values()) == 1, "calls were repeated that had ended"


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_call_that_has_ended_is_made_again_where_workers_leave(concurrency, keep_disk):
    shop = Shop(concurrency=concurrency)
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        for _ in range(4):
            driver.advance(0.18, settle=False)
            shop.leave(driver, keep_disk=keep_disk, settle=False)
        driver.settle()
        shop.check(driver)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_call_that_has_ended_is_made_again_where_a_result_stops_the_partition(concurrency):
    shop = Shop(concurrency=concurrency)
    shop.fails = True
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        with pytest.raises(HandlerFailedError):
            driver.settle()
        shop.fails = False
        leave(driver)
        shop.check(driver)


def test_a_result_whose_handler_waits_to_be_tried_again_is_kept():
    shop = Shop(on_error=OnError(retries=100))
    shop.fails = True
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        driver.advance(1, settle=False)
        shop.leave(driver, settle=False)
        shop.fails = False
        driver.settle()
        shop.check(driver)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_call_that_has_ended_is_made_again_where_what_a_handler_waits_for_ends_with_the_worker(concurrency):
    shop = Shop(concurrency=concurrency)
    shop.cancels = True
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        driver.advance(0.3, settle=False)
        shop.leave(driver, settle=False)
        driver.settle()
        shop.check(driver)


@pytest.mark.parametrize("keep_disk", [True, False])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_call_that_has_ended_is_made_again_where_a_retry_of_parked_messages_is_cut_off(concurrency, keep_disk):
    shop = Shop(concurrency=concurrency, on_error="park")
    retry = json.dumps({"actor": "order", "what": "message", "command": "retry"}).encode()
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.refuses = True
        shop.fill(driver, TORN)
        driver.settle()
        shop.refuses = False
        shop.fill(driver)
        driver.advance(0.3, settle=False)
        driver.post(shop.orders, key=TORN, value="", headers={"fa-control": retry})
        while len(shop.sold) < 3:
            driver.advance(CALL_S, settle=False)
        shop.leave(driver, keep_disk=keep_disk, settle=False)
        driver.settle()
        shop.check(driver, TORN)


def test_calls_do_not_run_far_ahead_of_what_handles_their_results():
    shop = Shop()
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        most = 0
        for _ in range(60):
            driver.advance(0.01, settle=False)
            handled = len(driver._cluster.log(TopicPartition("done", 0)).history)
            most = max(most, len(shop.ended) - handled)
        driver.settle()
        shop.check(driver)
    assert 0 < most <= effects.MOST_ENDED


@pytest.mark.parametrize(
    "error", [OutcomeUnknownError("no answer"), BatchesRefusedError({0: CommitRefusedError("no")})]
)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_no_call_that_has_ended_is_made_again_where_a_commit_fails_and_the_partition_stays(
    monkeypatch, concurrency, error
):
    shop, write = Shop(concurrency=concurrency), FakeWriter._write
    errors = []

    async def fail_or_write(writer, producer, identity, batches):
        if errors and any(batch.offsets for batch in batches):
            raise errors.pop()
        return await write(writer, producer, identity, batches)

    monkeypatch.setattr(FakeWriter, "_write", fail_or_write)
    with ActorTestDriver(shop.app, **shop.options) as driver:
        shop.fill(driver)
        for _ in range(3):
            driver.advance(0.18, settle=False)
            errors.append(error)
        driver.settle()
        assert not errors
        shop.check(driver)
