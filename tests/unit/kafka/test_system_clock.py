"""When the machine's clock is believed."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field

import pytest

from actors._kafka.admin.broker_time import require_broker_time
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.runtime.clock import ASK_AGAIN_S, ASK_S, SystemClock, compare, watch

START_MS = 1_800_000_000_000
MARGIN_MS = 300_000
HOUR_MS = 3_600_000
TEN_MINUTES_MS = 600_000


@dataclass
class Machine:
    """A machine at `true_ms` of its life, whose wall clock is off."""

    off_ms: int = 0
    true_ms: int = 0
    clock: SystemClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = SystemClock(
            MARGIN_MS,
            wall_ns=lambda: (START_MS + self.true_ms + self.off_ms) * 1_000_000,
            boot_ms=lambda: 7_000 + self.true_ms,
        )

    def hear(self, off_ms: int = 0, took_ms: int = 0) -> None:
        """Hear from a broker whose clock is off, in an answer that took so long to come."""
        self.clock.heard(START_MS + self.true_ms - took_ms + off_ms, self.clock.boot_ms - took_ms)

    @property
    def wrong_ms(self) -> int:
        """By how much the clock's time is wrong."""
        return self.clock.wall_ms() - START_MS - self.true_ms


@pytest.mark.parametrize("has_heard", [False, True])
@pytest.mark.parametrize("step_ms", [HOUR_MS, -TEN_MINUTES_MS])
def test_a_step_beyond_the_margin_is_not_followed_and_is_named_once(step_ms, has_heard, caplog):
    machine = Machine()
    if has_heard:
        machine.hear()
    machine.off_ms, machine.true_ms = step_ms, 10_000
    assert [machine.wrong_ms, machine.wrong_ms] == [0, 0]
    said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert f"{abs(step_ms) / 1000:.1f} s {'ahead of' if step_ms > 0 else 'behind'}" in said[0]
    machine.off_ms, machine.true_ms = 0, 20_000
    assert machine.wrong_ms == 0
    assert not machine.clock.off_ms


@pytest.mark.parametrize("step_ms", [MARGIN_MS, -MARGIN_MS, 1])
def test_a_step_within_the_margin_is_followed(step_ms, caplog):
    machine = Machine()
    machine.hear()
    machine.off_ms = step_ms
    assert machine.wrong_ms == step_ms
    assert not caplog.records


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_that_the_brokers_agree_with_is_followed(step_ms):
    machine = Machine(off_ms=-step_ms)
    assert machine.wrong_ms == -step_ms
    machine.off_ms, machine.true_ms = 0, 1_000
    assert machine.wrong_ms == -step_ms
    machine.hear(off_ms=3_000)
    assert machine.wrong_ms == 0
    assert not machine.clock.off_ms


def test_a_clock_that_was_wrong_from_the_start_is_bounded_by_the_brokers_time(caplog):
    machine = Machine(off_ms=HOUR_MS)
    machine.hear(took_ms=200)
    assert machine.wrong_ms == -200
    assert "3600.2 s ahead of the broker's" in caplog.text
    # Set right while the worker runs.
    machine.off_ms = 0
    assert machine.wrong_ms == 0


def test_a_broker_whose_clock_is_ahead_makes_nothing_expire(caplog):
    machine = Machine()
    machine.hear(off_ms=HOUR_MS)
    assert machine.wrong_ms == 0
    assert "3600.0 s behind the broker's" in caplog.text
    assert "The earlier time counts" in caplog.text


def test_a_broker_that_disagrees_with_the_clock_and_with_another_broker_is_only_named(caplog):
    machine = Machine()
    machine.hear()
    machine.hear(off_ms=-HOUR_MS)
    assert machine.wrong_ms == 0
    assert not machine.clock.off_ms
    assert "a broker's clock is 3600.0 s behind this machine's" in caplog.text


def test_an_answer_that_came_late_says_nothing():
    machine = Machine()
    machine.hear()
    machine.off_ms = HOUR_MS
    machine.hear(off_ms=HOUR_MS, took_ms=MARGIN_MS)
    assert machine.wrong_ms == 0


def test_a_machine_that_was_suspended_or_stopped_has_made_no_step(caplog):
    machine = Machine()
    machine.hear()
    machine.true_ms += 10 * HOUR_MS
    assert machine.wrong_ms == 0
    assert not caplog.records


def test_steps_are_noticed_and_the_brokers_asked_while_the_worker_is_idle(caplog):
    caplog.set_level(logging.INFO)
    machine, asked = Machine(), []

    class Waking(Exception):  # noqa: N818
        """Ends the watch."""

    async def pass_time(seconds: float) -> None:
        machine.true_ms += int(seconds * 1000)
        if machine.true_ms > 2.5 * ASK_S * 1000:
            raise Waking
        if machine.true_ms == 1.5 * ASK_S * 1000:
            machine.off_ms = HOUR_MS

    async def ask() -> int | None:
        asked.append(machine.true_ms // 1000)
        if len(asked) == 3:
            raise BrokerUnavailableError("no broker answers")
        return START_MS + machine.true_ms

    machine.clock.monotonic = lambda: machine.true_ms / 1000
    machine.clock.sleep = pass_time

    async def main() -> None:
        await compare(machine.clock, ask)
        with pytest.raises(Waking):
            await watch(machine.clock, ask)

    asyncio.run(main())
    assert asked[:3] == [0, ASK_S, 1.5 * ASK_S]
    assert {later - before for before, later in itertools.pairwise(asked[2:])} == {ASK_AGAIN_S}
    assert "no broker answers" in caplog.text
    assert caplog.text.count("3600.0 s ahead of the broker's") == 1
    assert caplog.text.count("is still 3600.0 s ahead") == len(asked) - 2


def test_a_registry_without_the_brokers_time_is_refused():
    require_broker_time("shop-actors-owners", {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(ConfigurationError, match=r"--topic shop-actors-owners --add-config message.timestamp.type=Log"):
        require_broker_time("shop-actors-owners", {"message.timestamp.type": "CreateTime"})
