"""The faults, each one a coroutine on the world that ends when what it broke runs again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping

from tests.kafka.helpers import eventually
from tests.locks.plan import KINDS, MAX_TTL_S
from tests.locks.world import World

SESSION_S = 10.0
"""So long the broker waits for a worker that is silent: the default of the lock service's app."""
KINDS_FOR_ONE = frozenset(kind.name for kind in KINDS if kind.mode == "lock")
PAUSES = 3
"""So many processes are stopped in turn until others use in time what one of them holds."""
Fault = Callable[[World], Awaitable[None]]


async def kill_owner(world: World) -> None:
    """`kill -9` of an owner, started again at once or after the others have its locks."""
    owner = world.chance.choice(world.owners)
    owner.kill()
    world.done["owner_kills"] += 1
    await asyncio.sleep(world.chance.choice([0.0, SESSION_S + 2.0]))
    owner.start()


async def kill_all_owners(world: World) -> None:
    """`kill -9` of every owner."""
    for owner in world.owners:
        owner.kill()
        world.done["owner_kills"] += 1
    for owner in world.owners:
        owner.start()


async def pause_owner(world: World) -> None:
    """An owner stands still until others have its locks, and goes on as if nothing had been."""
    await _pause(world, SESSION_S + 2.0)


async def pause_owner_shortly(world: World) -> None:
    """An owner stands still for longer than some leases last, and is the owner still."""
    await _pause(world, 4.0)


async def _pause(world: World, for_s: float) -> None:
    owner = world.chance.choice(world.owners)
    owner.signal(signal.SIGSTOP)
    world.done["owner_pauses"] += 1
    await asyncio.sleep(for_s)
    owner.signal(signal.SIGCONT)


async def pause_clients(world: World) -> None:
    """A process of clients stands still until others have used what it holds, and then goes on writing."""
    for _ in range(PAUSES):
        if await _pause_clients(world):
            return


async def _pause_clients(world: World) -> bool:
    """Return whether others used in time what the process holds."""
    process = await eventually(
        lambda: next((one for one in world.shuffled_clients() if one.holds(KINDS_FOR_ONE)), None)
    )
    process.signal(signal.SIGSTOP)
    world.done["client_pauses"] += 1
    held = process.holds(KINDS_FOR_ONE)
    wanting = asyncio.create_task(world.probe([kind for kind in KINDS if kind.name in held]))
    await asyncio.sleep(MAX_TTL_S + 1.0)
    try:
        await eventually(lambda: asyncio.to_thread(_are_used_by_others, world, held), deadline_s=30.0)
        is_used = bool(held)
    except AssertionError:
        # It stands in the middle of a write to the database, and holds up all others.
        is_used = False
    process.signal(signal.SIGCONT)
    await wanting
    return is_used


def _are_used_by_others(world: World, held: Mapping[str, int]) -> bool:
    return all(world.resource.greatest(name) > token for name, token in held.items())


async def pause_clients_and_kill_owner(world: World) -> None:
    """Both at once."""
    await asyncio.gather(pause_clients(world), kill_owner(world))


async def pause_clients_and_owner(world: World) -> None:
    """Both at once."""
    await asyncio.gather(pause_clients(world), pause_owner(world))


FAULTS: tuple[Fault, ...] = (
    kill_owner,
    pause_clients,
    pause_owner,
    pause_clients_and_kill_owner,
    kill_all_owners,
    pause_owner_shortly,
    pause_clients_and_owner,
)
QUICK: tuple[Fault, ...] = (kill_owner, pause_clients_and_owner)
