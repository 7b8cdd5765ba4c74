"""Each firing of a timer has an id of its own, which stays the same until it is handled."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actors import App, Context
from actors.testing import ActorTestDriver
from tests.unit.runtime.timers.test_timers import HOUR, SECOND, Task

START = datetime(2001, 1, 1, tzinfo=UTC)


def chained(at: Any) -> tuple[Any, Any, list[int], list[int]]:
    """Each firing of the timer asks for 1 to be booked, and sets the same timer again, three times in all."""
    app = App("timers", broker="kafka://127.0.0.1:1")
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=int)
    booked: list[int] = []
    answers: list[int] = []

    @app.actor(inbox)
    def book(ctx: Context, amount: int) -> int:
        booked.append(amount)
        return len(booked)

    @app.actor(orders, concurrency=4, timers=True)
    async def order(ctx: Context, left: int) -> None:
        if ctx.timer is not None:
            answers.append(await ctx.ask(book, "sum", 1))
        if left:
            ctx.schedule(left - 1, name="again", **at())

    return app, orders, booked, answers


@pytest.mark.parametrize("at", [lambda: {"after": timedelta(0)}, lambda: {"at": START}], ids=["after 0", "same moment"])
def test_a_timer_that_is_set_again_for_the_same_moment_asks_anew(at: Any) -> None:
    app, orders, booked, answers = chained(at)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="a", value=3)
        assert (booked, answers) == ([1, 1, 1], [1, 2, 3])


def test_a_firing_that_is_handled_again_after_a_crash_has_its_id() -> None:
    task = Task()
    for _ in range(2):
        task.schedule(name="t", after=HOUR)
    task.schedule(key="b", name="t", every=HOUR)
    task.commit()
    ids = [internal.record.id for internal in task.take(after=HOUR)]
    task.take_over()
    turns = task.take()
    assert [internal.record.id for internal in turns] == ids
    assert len(set(ids)) == 2
    for internal in turns:
        internal.consume(Context(task.state, internal.record, None, internal.record.key))
        task.scope.release()
        internal.handled()
    [again] = task.take(after=HOUR)
    assert again.record.id not in ids


def test_a_timer_that_replaces_one_that_is_in_hand_fires_once_as_itself() -> None:
    task = Task()
    task.schedule("old", name="t", after=SECOND)
    [internal] = task.take(after=SECOND)
    task.schedule("new", name="t", after=timedelta(0))
    assert not internal.consume(Context(task.state, internal.record, None, b"a"))
    internal.handled()
    [new] = task.take()
    assert (new.record.value, new.record.id != internal.record.id) == (b"new", True)
