"""Messages that are skipped, and those of them that become dead letters."""

from __future__ import annotations

import pytest

from actors import OnError
from actors.testing import ActorTestDriver
from tests.unit.runtime.quarantine.test_parked import World


@pytest.mark.parametrize("is_buried", [True, False])
def test_what_is_skipped_is_a_dead_letter_if_that_is_wanted(is_buried: bool):
    world = World(OnError(then="skip", dead_letters=is_buried))
    sent = [(b"a", b"bad 1"), (b"a", b"\xff"), (b"\xff", b"x"), (None, b"x"), (b"a", None)]
    with ActorTestDriver(world.app, partitions=1) as driver:
        for key, value in sent:
            driver.post(world.raw, key=key, value=value, partition=0)
        world.post(driver, "a good")
        letters = driver.outputs(world.letters)
        assert [(letter.key, letter.value) for letter in letters] == (sent if is_buried else [])
        assert [dict(letter.headers)["fa-origin"] for letter in letters] == [
            b"in/0/%d" % number for number in range(len(letters))
        ]
        assert [value.split(" ")[0] for value in (sent.value for sent in driver.outputs(world.done))] == ["good"]


def test_what_is_skipped_and_too_large_for_a_dead_letter_is_passed_over(caplog: pytest.LogCaptureFixture):
    world = World(OnError(then="skip", dead_letters=True))
    with ActorTestDriver(world.app) as driver:
        world.post(driver, "a bad" + "x" * (1_048_588 - 150), "a good")
        assert driver.outputs(world.letters) == []
        assert len(driver.outputs(world.done)) == 1
    assert "no dead letter" in caplog.text


def test_dead_letters_of_what_stops_are_refused():
    with pytest.raises(ValueError, match="stays there"):
        OnError(dead_letters=True)
