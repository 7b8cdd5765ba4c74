"""An actor with state whose list of inputs changes from one version of the app to the next, on the test driver."""

from __future__ import annotations

import re

import pytest

from actors import App, Context
from actors.errors import ConfigurationError, TakeoverRefusedError
from actors.testing import ActorTestDriver
from stores._core.record import INPUTS_VERSION, METADATA_VERSION

NAMES = ("orders", "payments", "refunds")


class Version:
    """A version of the app: it sums up what comes from some of the topics, and echoes each sum with its input."""

    def __init__(self, *inputs: str) -> None:
        self.app = app = App("shop", store="memory://")
        self.topics = {name: app.topic(name, key_type=str, value_type=int) for name in NAMES}
        self.out = app.topic("out", key_type=str, value_type=str)
        self.state = app.store("state", key_type=str, value_type=int)

        @app.actor(*(self.topics[name] for name in inputs), stores=[self.state], name="join")
        async def join(ctx: Context, value: int) -> None:
            total = self.state.get(ctx.key, 0) + value
            self.state.set(ctx.key, total)
            ctx.send(self.out, key=ctx.key, value=f"{ctx.topic}/{ctx.offset}: {total}")

    def echoes(self, driver: ActorTestDriver) -> list[str]:
        """Return what was echoed since the last look."""
        return [record.value for record in driver.outputs(self.out)]


def written_versions(driver: ActorTestDriver) -> dict[bytes, int]:
    """Return by key the version of the write metadata that the store has."""
    return {key: raw[0] for files in driver._disk.files() if files.store == "state" for key, raw in files.data.items()}


def offsets(driver: ActorTestDriver) -> tuple[int, ...]:
    """Return the position's offsets of the only partition's store."""
    (found,) = [files.position() for files in driver._disk.files() if files.store == "state"]
    assert found is not None
    return found.offsets


@pytest.mark.parametrize("keep_disk", [True, False])
def test_an_input_that_is_added_behind_the_others_goes_on_with_the_state(keep_disk: bool) -> None:
    one, two = Version("orders"), Version("orders", "payments")
    with ActorTestDriver(one.app, partitions=1) as driver:
        driver.send(one.topics["orders"], key="a", value=1)
        driver.send(one.topics["orders"], key="b", value=10)
        driver.send(one.topics["payments"], key="a", value=2)
        assert one.echoes(driver) == ["orders/0: 1", "orders/1: 10"]
        if not keep_disk:
            driver._disk.erase()
        driver.restart(two.app)
        assert two.echoes(driver) == ["payments/0: 3"]
        driver.send(two.topics["orders"], key="a", value=3)
        assert two.echoes(driver) == ["orders/2: 6"]
        assert offsets(driver) == (3, 1)
        assert written_versions(driver) == {b"a": INPUTS_VERSION, b"b": METADATA_VERSION}
        # A restore of the whole changelog, in which both versions are, stands at the same place.
        driver.crash(keep_disk=False)
        assert offsets(driver) == (3, 1)
        driver.send(two.topics["payments"], key="b", value=4)
        assert two.echoes(driver) == ["payments/1: 14"]
        assert driver.items(two.state) == {"a": 6, "b": 14}


@pytest.mark.parametrize("keep_disk", [True, False])
def test_the_last_input_can_be_removed_and_the_state_stays(keep_disk: bool) -> None:
    two, one = Version("orders", "payments"), Version("orders")
    with ActorTestDriver(two.app, partitions=1) as driver:
        driver.send(two.topics["orders"], key="a", value=1)
        for value in (2, 3, 4):
            driver.send(two.topics["payments"], key="a", value=value)
        assert len(two.echoes(driver)) == 4
        if not keep_disk:
            driver._disk.erase()
        driver.restart(one.app)
        driver.send(one.topics["payments"], key="a", value=100)
        driver.send(one.topics["orders"], key="a", value=5)
        assert one.echoes(driver) == ["orders/1: 15"]
        # Writes of version 2 in the changelog have higher offsets than those of the new owner, and another input's.
        driver.crash(keep_disk=False)
        assert offsets(driver)[0] == 2
        driver.send(one.topics["orders"], key="b", value=6)
        assert one.echoes(driver) == ["orders/2: 6"]
        assert driver.items(one.state) == {"a": 15, "b": 6}
        # Added again, the input goes on where the group left it.
        driver.restart(two.app)
        assert two.echoes(driver) == ["payments/3: 115"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("orders", "payments"), ("payments", "orders")),
        (("orders", "payments"), ("payments",)),
        (("orders", "payments"), ("orders", "refunds")),
        (("orders",), ("payments", "orders")),
        (("orders", "payments", "refunds"), ("orders", "refunds")),
    ],
    ids=lambda names: ",".join(names),
)
@pytest.mark.parametrize("is_checked", [True, False])
def test_another_order_of_inputs_is_refused_by_name_and_nothing_is_handled(
    before: tuple[str, ...], now: tuple[str, ...], is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_checked:
        monkeypatch.setattr("actors._faust.startup.registry.check_program", lambda *_: None)
    first, second = Version(*before), Version(*now)
    with ActorTestDriver(first.app, partitions=1) as driver:
        for name in before:
            driver.send(first.topics[name], key="a", value=1)
        first.echoes(driver)
        refusal = f"{', '.join(now)} now, and read {', '.join(before)} "
        refusals = (TakeoverRefusedError, ConfigurationError) if is_checked else TakeoverRefusedError
        with pytest.raises(refusals, match=re.escape(refusal)) as raised:
            driver.restart(second.app)
        assert "Declare the inputs in the former order, and new ones behind them" in str(raised.value)
        assert second.echoes(driver) == []
        # The remedy, as printed.
        driver.restart(first.app)
        driver.send(first.topics[before[-1]], key="a", value=1)
        assert first.echoes(driver) == [f"{before[-1]}/1: {len(before) + 1}"]
