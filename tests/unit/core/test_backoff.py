"""Waits between tries, and the lines that are logged meanwhile."""

import pytest

from actors._core.backoff import Backoff
from actors._core.logs import Reminders


def test_waits_grow_to_the_longest_one():
    backoff = Backoff(0.1, longest_s=1.0)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 5, 10**6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_wait_grows_from_the_one_before():
    backoff = Backoff(0.002, longest_s=0.005, factor=1.5)
    assert backoff.longer_s(backoff.first_s) == pytest.approx(backoff.delay_s(2)) == pytest.approx(0.003)
    assert backoff.longer_s(0.004) == 0.005


def test_a_line_is_due_once_in_a_while_for_each_kind():
    reminders = Reminders(10.0)
    assert [reminders.is_due(now_s) for now_s in (0.0, 9.9, 10.0, 19.9, 20.0)] == [True, False, True, False, True]
    assert reminders.is_due(20.0, "other")
    reminders.forget("other")
    assert reminders.is_due(20.1, "other")


def test_old_kinds_are_forgotten():
    reminders = Reminders(10.0)
    for number in range(1_000):
        reminders.is_due(number, number)
    assert len(reminders._said_s) <= 10
