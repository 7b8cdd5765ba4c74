"""A process of a few clients: `python -m tests.locks.client`. SIGTERM lets them finish what they do.

Each takes locks, uses what they protect without looking whether it still holds them, lets go, and now and then changes
a node by compare-and-set. What a client did and believed is written down; see `tests.locks.history`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from pathlib import Path

import click

from actors.coordination import (
    BusyError,
    ConflictError,
    Coordination,
    CoordinationError,
    CoordinationTimeoutError,
    LeaseLostError,
)
from actors.coordination.client.leases import Lease
from tests.locks.history import Call, Ended, Held, Journal, Outcome, Return, now_s
from tests.locks.plan import KINDS, NODE_NAMES, WAIT_S, Kind
from tests.locks.resource import Accepted, Resource

CALL_S = 5.0
"""Shorter than a takeover after a kill: some calls come to nothing that is known."""
LOOK_S = 0.05


class Client:
    """One who takes locks.

    Args:
        name: of the client.
        coordination: its connection.
        journal: what it did.
        resource: what the locks protect.
        seed: of its choices.
    """

    def __init__(self, name: str, coordination: Coordination, journal: Journal, resource: Resource, seed: str) -> None:
        self._name = name
        self._locks = coordination
        self._journal = journal
        self._resource = resource
        self._chance = random.Random(seed)
        self._count = 0
        self._stopping = asyncio.Event()
        self._versions: dict[str, int] = {}

    async def work(self, stopping: asyncio.Event) -> None:
        """Go on until told to stop."""
        chance = self._chance
        self._stopping = stopping
        while not stopping.is_set():
            if chance.random() < 0.4:
                await self._change(chance.choice(NODE_NAMES))
            else:
                # The first few are wanted by many.
                kind = KINDS[int(len(KINDS) * chance.random() ** 2)]
                await self.take(kind, patient=chance.random() < 0.8, hold_s=self._hold_s(kind))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), chance.uniform(0.0, 0.2))

    def _hold_s(self, kind: Kind) -> float:
        if self._chance.random() < 0.1:
            # So long that it has to be renewed.
            return kind.ttl_s * 1.3
        return self._chance.uniform(0.0, 2.0)

    # --- locks -----------------------------------------------------------------------------------------------------

    async def take(self, kind: Kind, *, patient: bool, hold_s: float) -> None:
        """Take a lock, use it for so long, let go."""
        chance = self._chance
        call = Call(
            id=self._next_id(),
            at_s=now_s(),
            client=self._name,
            op="acquire",
            name=kind.name,
            shared=kind.mode == "readers" and chance.random() < 0.6,
            permits=chance.choice((1, 2)) if kind.mode == "semaphore" else 1,
            limit=kind.limit,
            ttl_s=kind.ttl_s,
            patient=patient,
        )
        self._journal.write(call)
        lease: Lease | None = None
        outcome: Outcome = "ok"
        try:
            lease = await self._locks.acquire(
                kind.name,
                kind.ttl_s,
                timeout=WAIT_S if patient else chance.choice((0.0, 1.0)),
                shared=call.shared,
                permits=call.permits,
                limit=kind.limit if kind.mode == "semaphore" else None,
                data=call.id,
            )
        except CoordinationError as error:
            outcome = _outcome(error)
        self._journal.write(
            Return(id=call.id, at_s=now_s(), outcome=outcome, token=0 if lease is None else lease.token)
        )
        if lease is not None:
            await self._hold(call, lease, hold_s)

    async def _hold(self, call: Call, lease: Lease, hold_s: float) -> None:
        until_s = self._note(call, lease, 0.0)
        end_s, use_s = now_s() + hold_s, 0.0
        while now_s() < end_s and not (lease.lost.is_set() or self._stopping.is_set()):
            if now_s() >= use_s:
                await self._use(call, lease)
                use_s = now_s() + 0.25
            until_s = self._note(call, lease, until_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lease.lost.wait(), LOOK_S)
        at_s, is_held = now_s(), lease.is_held
        if not is_held:
            self._journal.write(Ended(id=call.id, at_s=at_s, lost=True))
        # As a program does that was stopped just before it.
        await self._use(call, lease)
        if is_held:
            self._note(call, lease, until_s)
            at_s = now_s()
            self._journal.write(Ended(id=call.id, at_s=at_s, lost=not lease.is_held))
        await lease.release()

    def _note(self, call: Call, lease: Lease, known_s: float) -> float:
        # The clock first: a process that is stopped in between must not believe in more than it has.
        at_s = now_s()
        until_s = at_s + lease.left_s
        if lease.is_held and until_s > known_s + 0.001:
            self._journal.write(Held(id=call.id, until_s=until_s))
            return until_s
        return known_s

    async def _use(self, acquisition: Call, lease: Lease) -> None:
        if acquisition.limit > 1:
            return
        one = Accepted(acquisition.name, lease.token, acquisition.id, reads=acquisition.shared)
        call = Call(
            id=self._next_id(),
            at_s=now_s(),
            client=self._name,
            op="use",
            name=one.name,
            shared=one.reads,
            grant=one.acquisition,
            token=one.token,
        )
        self._journal.write(call)
        was_held = lease.is_held
        # Beside the event loop, so that one who waits for the database still renews.
        is_accepted = await asyncio.to_thread(self._resource.use, one)
        held = was_held and lease.is_held
        self._journal.write(
            Return(id=call.id, at_s=now_s(), outcome="ok" if is_accepted else "refused", token=one.token, held=held)
        )

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def _change(self, name: str) -> None:
        """Read a node, mostly, and change it, mostly only if nobody else did since it was read last."""
        if self._chance.random() < 0.7:
            await self._get(name)
        roll = self._chance.random()
        if roll < 0.3:
            return
        expected = None if roll < 0.4 else self._versions.get(name, 0)
        await self._put(name, deleting=roll > 0.9, expected=expected)

    async def _get(self, name: str) -> None:
        call = Call(id=self._next_id(), at_s=now_s(), client=self._name, op="get", name=name)
        self._journal.write(call)
        answer = Return(id=call.id, at_s=0.0, outcome="unknown")
        with contextlib.suppress(CoordinationError):
            found = await self._locks.get(name)
            answer.outcome = "ok"
            answer.data, answer.version = found or (None, 0)
            self._versions[name] = answer.version
        answer.at_s = now_s()
        self._journal.write(answer)

    async def _put(self, name: str, *, deleting: bool, expected: int | None) -> None:
        id = self._next_id()
        op, data = ("delete", None) if deleting else ("put", id)
        call = Call(id=id, at_s=now_s(), client=self._name, op=op, name=name, data=data, expected=expected)
        self._journal.write(call)
        answer = Return(id=id, at_s=0.0, outcome="unknown")
        try:
            if data is None:
                answer.version = await self._locks.delete(name, version=expected)
            else:
                answer.version = await self._locks.put(name, data, version=expected)
            answer.outcome = "ok"
        except ConflictError:
            answer.outcome = "refused"
        except CoordinationError:
            pass
        answer.at_s = now_s()
        self._journal.write(answer)

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._name}.{self._count}"


def _outcome(error: CoordinationError) -> Outcome:
    match error:
        case LeaseLostError():
            return "lost"
        case BusyError():
            return "refused"
        case CoordinationTimeoutError() if error.reason == "timeout":
            return "timeout"
        case CoordinationTimeoutError():
            return "unknown"
    raise error


async def _run(brokers: str, app: str, folder: Path, process: int, clients: int, seed: int) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    journal = Journal(folder / f"client-{process}.jsonl")

    async def one(number: int) -> None:
        name = f"{process}-{number}"
        with contextlib.closing(Resource(folder / "resource.db")) as resource:
            async with Coordination(brokers, app=app, call_timeout=CALL_S) as coordination:
                await Client(name, coordination, journal, resource, f"{seed}-{name}").work(stopping)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(one(number))
    journal.close()


@click.command()
@click.option("--brokers", required=True)
@click.option("--app", required=True)
@click.option("--folder", type=Path, required=True)
@click.option("--process", type=int, required=True)
@click.option("--clients", type=int, required=True)
@click.option("--seed", type=int, required=True)
def main(brokers: str, app: str, folder: Path, process: int, clients: int, seed: int) -> None:
    """Be a few clients until SIGTERM comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_run(brokers, app, folder, process, clients, seed))


if __name__ == "__main__":
    main()
