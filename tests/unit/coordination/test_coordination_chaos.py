"""Clients that stand still, cut lines and killed owners, in virtual time; the history is then checked.

The checks know nothing of the service: they see what clients believed when, and what a fenced resource accepted.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass, field

import pytest

from actors.coordination import CoordinationError, Sharing, locks
from actors.testing import ActorTestDriver
from tests.sim.fakes.network import with_faults
from tests.unit.coordination.test_coordination import an_app
from tests.unit.coordination.test_coordination_client import client, run

CLIENTS, NAMES, FAULTS = 8, ("a", "b", "c"), 6
RECOVERY_S = 10.0


@dataclass
class History:
    """`held`: (name, from, to, token) as the holder believed; `accepted`: by name, the tokens that were let through."""

    held: list[tuple[str, float, float, int]] = field(default_factory=list)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    refused: int = 0
    lost: int = 0

    def write(self, name: str, token: int) -> None:
        tokens = self.accepted.setdefault(name, [])
        if tokens and token < max(tokens):
            self.refused += 1
        else:
            tokens.append(token)

    def check(self) -> None:
        for name in {held[0] for held in self.held}:
            spans = sorted(held[1:] for held in self.held if held[0] == name)
            for (_, end_s, token), (begin_s, _, later) in itertools.pairwise(spans):
                assert end_s <= begin_s, f"{name}: two held it at {begin_s}: tokens {token} and {later}"
                assert token < later, f"{name}: token {later} came after {token}"
        for name, tokens in self.accepted.items():
            assert tokens == sorted(tokens), f"{name}: {tokens} were accepted"


async def use(who: Sharing, order: random.Random, history: History, until_s: float) -> None:
    clock = who._transport.clock
    while clock.monotonic() < until_s:
        name, ttl = order.choice(NAMES), order.choice([3.0, 6.0])
        try:
            lease = await who.acquire(name, ttl, timeout=40.0)
        except CoordinationError:
            await asyncio.sleep(1.0)
            continue
        begin_s = clock.monotonic()
        history.write(name, lease.token)
        if order.random() < 0.3:
            # The process stands still, wakes up, and goes on as if nothing had been.
            lease._renewing.cancel()
            await asyncio.sleep(order.uniform(0.0, 3 * ttl))
            history.write(name, lease.token)
        else:
            await asyncio.sleep(order.uniform(0.0, 2 * ttl))
        history.lost += lease.lost.is_set()
        history.held.append((name, begin_s, min(clock.monotonic(), lease._until_s), lease.token))
        await lease.release()


async def harm(driver: ActorTestDriver, order: random.Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(order.uniform(5.0, 30.0))
        if order.random() < 0.5:
            driver._kill()
            if order.random() < 0.5:
                driver._disk.erase()
            await asyncio.sleep(order.uniform(0.0, 8.0))
            await driver._restart(settle=False)
        else:
            # The clients' line, in which requests and answers are lost.
            driver._network.cut_off.add("")
            await asyncio.sleep(order.uniform(0.5, 8.0))
            driver._network.cut_off.clear()


def chaos(seed: int) -> History:
    history, order = History(), random.Random(seed)
    with with_faults(ActorTestDriver(an_app(), partitions=2)) as driver:

        async def work() -> None:
            begin_s = asyncio.get_running_loop().time()
            users = [
                asyncio.create_task(use(client(driver), random.Random(order.random()), history, begin_s + 300))
                for _ in range(CLIENTS)
            ]
            await harm(driver, order)
            await asyncio.gather(*users)
            last = client(driver)
            leases = await asyncio.gather(*(last.acquire(name, 3, timeout=6 + RECOVERY_S) for name in NAMES))
            for lease in leases:
                history.write(lease.name, lease.token)
                await lease.release()
            for name in NAMES:
                view = await last.look(name)
                assert (view.holders, view.waiting) == ((), 0)

        run(driver, work)
    return history


@pytest.mark.parametrize("seed", [0, 109, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_nothing_is_held_twice_and_stale_tokens_are_refused(seed):
    history = chaos(seed)
    history.check()
    assert len(history.held) > 50
    assert history.refused > 0
    assert set(history.accepted) == set(NAMES)


@pytest.mark.nightly
def test_the_check_finds_a_lock_that_is_granted_twice(monkeypatch):
    monkeypatch.setattr(locks, "_fits", lambda lock, want: len(lock.holders) < 2)
    with pytest.raises(AssertionError, match=r"two held it|were accepted"):
        chaos(0).check()


def test_the_check_finds_a_token_that_is_smaller_than_one_before():
    history = History(held=[("a", 0.0, 1.0, 5), ("a", 2.0, 3.0, 4)])
    with pytest.raises(AssertionError, match="token 4 came after 5"):
        history.check()
