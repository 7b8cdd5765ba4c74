"""The processes of a run: a few owners of locks, a few processes of clients, and one who looks whether it goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.coordination import Coordination, CoordinationError
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, read_all, unique
from tests.locks.client import Client
from tests.locks.history import Journal, now_s, pair, read_events
from tests.locks.plan import Kind
from tests.locks.resource import Resource

logger = logging.getLogger("locks")

MODULE = "actors.coordination.app"
OWNERS = 3
PROCESSES = 5
CLIENTS_EACH = 4
START_S = 90.0
STOP_S = 120.0


class StuckError(AssertionError):
    """A process ended by itself, or didn't end when it was asked to."""


class ClientProcess:
    """A process of `CLIENTS_EACH` clients."""

    def __init__(self, brokers: str, app: str, folder: Path, *, number: int, seed: int) -> None:
        self.journal = folder / f"client-{number}.jsonl"
        self.log_file = folder / f"client-{number}.log"
        given = {"brokers": brokers, "app": app, "folder": folder, "process": number, "clients": CLIENTS_EACH}
        arguments = [text for name, value in {**given, "seed": seed}.items() for text in (f"--{name}", str(value))]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.locks.client", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
                stdout=log,
                stderr=log,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def has_used_a_lock(self) -> bool:
        return self.journal.exists() and b'"held":true' in self.journal.read_bytes()

    def holds(self, names: Collection[str]) -> dict[str, int]:
        """Give which of these locks its clients hold now, with their tokens."""
        found = pair(read_events(self.journal))
        mine = [one for one in found if one.call.name in names and one.until_s > now_s() and one.ended is None]
        return {one.call.name: one.token for one in mine}

    def said(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]


@dataclass(slots=True)
class World:
    """Everything a fault can reach. `done` counts what was done to it."""

    app: str
    brokers: str
    folder: Path
    chance: random.Random
    coordination: Coordination
    journal: Journal
    resource: Resource
    owners: list[WorkerProcess]
    clients: list[ClientProcess] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _probes: int = 0

    @classmethod
    async def create(cls, brokers: str, folder: Path, *, module: str, seed: int) -> World:
        """Start owners, and clients as soon as locks are served; all clients have used one when this returns."""
        app = unique("locks")
        owners = [
            WorkerProcess(
                module, brokers, folder / f"owner-{number}" / "data", COORDINATION_APP=app, COORDINATION_PARTITIONS="8"
            )
            for number in range(OWNERS)
        ]
        coordination = Coordination(brokers, app=app, call_timeout=START_S)
        world = cls(
            app,
            brokers,
            folder,
            random.Random(seed),
            coordination,
            Journal(folder / "probes.jsonl"),
            Resource(folder / "resource.db"),
            owners,
        )
        try:
            for owner in owners:
                owner.start()
            await world._begin(seed)
        except BaseException:
            await world.end()
            raise
        return world

    async def _begin(self, seed: int) -> None:
        # They make the topic before that; whoever asks earlier connects in vain.
        subscribed = "Subscribed to topic"
        await eventually(
            lambda: all(subscribed in owner.log() for owner in self.owners),
            deadline_s=START_S,
            what=lambda: self.owners[0].log()[-3000:],
        )
        until_s = time.monotonic() + START_S
        while True:
            try:
                await self.coordination.look("anything")
                break
            except CoordinationError as error:
                if time.monotonic() > until_s:
                    raise StuckError(f"no owner answers:\n{self.owners[0].log()[-3000:]}") from error
        for number in range(PROCESSES):
            self.clients.append(ClientProcess(self.brokers, self.app, self.folder, number=number, seed=seed))
        for client in self.clients:
            await eventually(client.has_used_a_lock, deadline_s=START_S, what=client.said)

    def shuffled_clients(self) -> list[ClientProcess]:
        return self.chance.sample(self.clients, len(self.clients))

    def check_processes(self, after: str) -> None:
        """Raise if one ended by itself."""
        for owner in self.owners:
            if not owner.is_running():
                raise StuckError(f"after {after} an owner has ended by itself:\n{owner.log()[-3000:]}")
        for client in self.clients:
            if not client.is_running:
                raise StuckError(f"after {after} clients have ended by themselves:\n{client.said()}")

    async def probe(self, kinds: Sequence[Kind]) -> None:
        """Take locks, and let go of each at once. What comes of it is in the history."""

        async def one(kind: Kind) -> None:
            self._probes += 1
            who = Client(f"probe-{self._probes}", self.coordination, self.journal, self.resource, str(self._probes))
            await who.take(kind, patient=True, hold_s=0.0)

        await asyncio.gather(*(one(kind) for kind in kinds))

    async def stop_clients(self) -> None:
        """Let the clients finish what they do."""
        for client in self.clients:
            client.signal(signal.SIGTERM)
        for client in self.clients:
            try:
                code = await asyncio.to_thread(client.wait, STOP_S)
            except subprocess.TimeoutExpired:
                # What it waits for has no answer in the history, and is found there.
                logger.exception("clients don't end: %s", client.said())
                client.kill()
                continue
            if code:
                raise StuckError(f"clients ended with {code}:\n{client.said()}")

    async def requests(self) -> dict[str, int]:
        """Where the request of each acquisition stands in the service's input: an order for each lock.

        A request that was sent again counts where it came first.
        """
        places: dict[str, int] = {}
        for record in await read_all(self.brokers, f"{self.app}-coordination"):
            request = json.loads(record.value)
            if request["type"] == "acquire":
                places.setdefault(request["data"], record.offset)
        return places

    async def end(self) -> None:
        """Kill what is left."""
        for client in self.clients:
            if client.is_running:
                client.kill()
        for owner in self.owners:
            owner.kill()
        await self.coordination.close()
        self.journal.close()
        self.resource.close()
