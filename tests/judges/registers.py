"""Clients that change registers by asks and read them by asks and queries, while workers are killed and paused.

What is promised, and judged: all of it together is linearizable. A question is handled once, at some moment between the
ask and its answer; one without an answer, at any time or never. A query's answer is the committed state of a moment
between request and answer, and has all keys of a partition as of the same moment. So each shelf, a few registers of one
partition, is one object.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from actors import AskTimeoutError
from actors._core.partitioner import partition_for
from dev.kafka import free_port
from tests.judges import registers_app
from tests.judges.porcupine import Verdict, judge
from tests.judges.registers_app import Read, Swap, Write
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, unique

MODULE = "tests.judges.registers_app"
PARTITIONS = 4
SHELVES = 8
WRITERS, READERS = 8, 8
SESSION_S = 6.0
SHORT, LONG = timedelta(seconds=0.3), timedelta(seconds=60)
"""How long an answer is waited for: some aren't, so that questions stay without a known outcome."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Registers of one partition."""

    name: str
    keys: tuple[str, ...]
    partition: int


def make_shelves() -> list[Shelf]:
    """Return shelves of three registers each, the same number of them in each partition."""
    shelves = []
    for number in range(SHELVES):
        partition = number % PARTITIONS
        names = (f"{number}-{register}" for register in range(1000))
        keys = [name for name in names if partition_for(name.encode(), PARTITIONS) == partition]
        shelves.append(Shelf(f"shelf-{number}", tuple(keys[:3]), partition))
    return shelves


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the judge says of a run, and how often what happened in it."""

    verdict: Verdict
    happened: Mapping[str, int]

    @property
    def missing(self) -> list[str]:
        """What a run says nothing of, because it didn't happen."""
        return [what for what in HAPPENED if not self.happened.get(what)]


HAPPENED = ("write ok", "swap ok", "swap conflict", "unknown", "asked", "key", "many", "look")


class Run:
    """The workers, the clients' history, and what faults can reach."""

    def __init__(self, brokers: str, folder: Path, *, workers: int, seed: int, environment: Mapping[str, str]) -> None:
        self.name = unique("registers")
        self.shelves = make_shelves()
        self.chance = random.Random(seed)
        self.history: list[dict[str, Any]] = []
        self.happened: Counter[str] = Counter()
        self.urls: list[str] = []
        self.workers: list[WorkerProcess] = []
        for number in range(workers):
            port = free_port()
            self.urls.append(f"http://127.0.0.1:{port}")
            settings = {"APP_NAME": self.name, "WEB_PORT": str(port), **environment}
            self.workers.append(WorkerProcess(MODULE, brokers, folder / f"worker-{number}", **settings))
        self._brokers = brokers
        self._outside = registers_app.make(self.name, ";".join(f"kafka://{broker}" for broker in brokers.split(",")))
        self._values = 0
        self._last: dict[str, str] = {}
        self._session: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Run workers and clients for the time of the block; each client has its last answer when it ends."""
        await make_topics(self._brokers, f"{self.name}-in", partitions=PARTITIONS)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as self._session:
            try:
                for worker in self.workers:
                    worker.start(web=True)
                await self.all_run()
                stopping = asyncio.Event()
                async with asyncio.TaskGroup() as clients:
                    for action in (*[self.change] * WRITERS, *[self.look_around] * READERS):
                        clients.create_task(self._repeat(action, stopping))
                    try:
                        yield
                    finally:
                        stopping.set()
            finally:
                for worker in self.workers:
                    worker.kill()
                await self._outside.app.close_asks()

    async def _repeat(self, action: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await action()
            await asyncio.sleep(self.chance.uniform(0.0, 0.05))

    # --- what clients do -------------------------------------------------------------------------------------------

    async def change(self) -> None:
        """Change a register, mostly if it holds what was seen last, or read it by an ask."""
        shelf = self.chance.choice(self.shelves)
        roll = self.chance.random()
        if roll < 0.15:
            await self.ask(shelf, self.chance.choice(shelf.keys), Read())
        elif roll < 0.35:
            await self.write(shelf, self.chance.choice(shelf.keys))
        else:
            key = self.chance.choice(shelf.keys)
            value = None if roll > 0.9 else self._next_value()
            await self.ask(shelf, key, Swap(self._last.get(key) or None, value))

    async def write(self, shelf: Shelf, key: str, timeout: timedelta | None = None) -> None:
        """Write a value of its own to a register."""
        await self.ask(shelf, key, Write(self._next_value()), timeout)

    async def ask(self, shelf: Shelf, key: str, message: Read | Write | Swap, timeout: timedelta | None = None) -> None:
        """Ask, and note what was asked and answered."""
        timeout = timeout or (SHORT if self.chance.random() < 0.05 else LONG)
        called_ns = time.monotonic_ns()
        outcome, answer = "unknown", None
        try:
            answer = await self._outside.register.at(key, timeout=timeout)(message)
            outcome = "conflict" if answer is False else "ok"
        except AskTimeoutError:
            self.happened["unknown"] += 1
        match message:
            case Read() if outcome == "ok":
                self.happened["asked"] += 1
                self._saw(shelf, {key: answer}, called_ns)
            case Write(value):
                self.happened[f"write {outcome}"] += 1
                self._note(shelf, "write", called_ns, key=key, outcome=outcome, value=value, held=answer or "")
            case Swap(expected, value):
                self.happened[f"swap {outcome}"] += 1
                values = {"expected": expected or "", "value": value or ""}
                self._note(shelf, "swap", called_ns, key=key, outcome=outcome, **values)

    async def look_around(self) -> None:
        """Read from some worker, by one of the queries."""
        shelf, url = self.chance.choice(self.shelves), self.chance.choice(self.urls)
        await self.look(shelf, url, self.chance.choice(("key", "many", "look")))

    async def look(self, shelf: Shelf, url: str, kind: str) -> bool:
        """Ask a worker, and note what it answered; return whether it did."""
        key = self.chance.choice(shelf.keys)
        called_ns = time.monotonic_ns()
        try:
            seen = await self._queried(shelf, url, kind, key)
        except (aiohttp.ClientError, TimeoutError):
            self.happened["unreached"] += 1
            return False
        if seen is None:
            self.happened["refused"] += 1
            return False
        self.happened[kind] += 1
        self._saw(shelf, seen, called_ns)
        return True

    async def _queried(self, shelf: Shelf, url: str, kind: str, key: str) -> dict[str, str | None] | None:
        request = {"method": "GET", "url": f"{url}/actors/registers/{key}"}
        if kind == "many":
            request = {"method": "POST", "url": f"{url}/actors/registers/_many", "json": {"keys": shelf.keys}}
        elif kind == "look":
            request["url"] = f"{url}/actors/register/_ask/look/{key}"
        async with self._session.request(**request) as reply:
            content = await reply.json(content_type=None)
        if reply.status == 503:
            return None
        if kind == "many" and reply.status == 200:
            return {item["key"]: item["value"] for item in content["results"]}
        is_absent = reply.status == 404 and content["type"].endswith(":no-such-key")
        assert reply.status == 200 or is_absent, (reply.status, content)
        return {key: None if is_absent else content["value"]}

    def _saw(self, shelf: Shelf, seen: Mapping[str, str | None], called_ns: int) -> None:
        self._last.update({key: value or "" for key, value in seen.items()})
        places = {shelf.keys.index(key): value or "" for key, value in seen.items()}
        self._note(shelf, "read", called_ns, seen=places)

    def _note(self, shelf: Shelf, op: str, called_ns: int, *, key: str = "", outcome: str = "ok", **more: Any) -> None:
        common = {"on": shelf.name, "op": op, "outcome": outcome, "call_ns": called_ns}
        register = shelf.keys.index(key) if key else 0
        self.history.append({**common, "return_ns": time.monotonic_ns(), "register": register, **more})

    def _next_value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    # --- what faults do --------------------------------------------------------------------------------------------

    async def owned(self, url: str) -> set[int]:
        """Return the partitions that a worker answers for."""
        try:
            async with self._session.get(f"{url}/actors", timeout=aiohttp.ClientTimeout(total=2)) as reply:
                content = await reply.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            return set()
        running = ("running", "committing")
        return {part["partition"] for part in content.get("partitions", ()) if part["state"] in running}

    async def all_run(self) -> None:
        """Wait until all workers own something, and together all partitions."""

        async def run() -> bool:
            owned = [await self.owned(url) for url in self.urls]
            return all(owned) and set().union(*owned) == set(range(PARTITIONS))

        await eventually(run, deadline_s=120, what=self.log)

    def log(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(worker.log()[-2000:] for worker in self.workers)

    async def read_everything(self) -> None:
        """Read each shelf from each worker until there is an answer."""
        for shelf in self.shelves:
            for url in self.urls:
                await eventually(lambda shelf=shelf, url=url: self.look(shelf, url, "many"), what=self.log)


Fault = Callable[[Run], Awaitable[None]]


async def kill_one(run: Run) -> None:
    """`kill -9` of a worker, started again at once or after others have its partitions."""
    worker = run.chance.choice(run.workers)
    worker.kill()
    run.happened["kills"] += 1
    await asyncio.sleep(run.chance.choice([0.0, SESSION_S + 2.0]) if len(run.workers) > 1 else 0.0)
    worker.start(web=True)


async def kill_all(run: Run) -> None:
    """`kill -9` of every worker."""
    for worker in run.workers:
        worker.kill()
        run.happened["kills"] += 1
    for worker in run.workers:
        worker.start(web=True)


async def pause_one(run: Run) -> None:
    """A worker stands still until others have changed what it owned. Reads that wait in front of it are its first."""
    number = run.chance.randrange(len(run.workers))
    url, others = run.urls[number], [other for other in run.urls if other != run.urls[number]]
    owned = await run.owned(url)
    run.workers[number].signal(signal.SIGSTOP)
    run.happened["pauses"] += 1
    try:

        async def are_taken() -> bool:
            return owned <= set().union(*[await run.owned(other) for other in others])

        await eventually(are_taken, what=run.log)
        shelves = [shelf for shelf in run.shelves if shelf.partition in owned]
        await asyncio.gather(*(run.write(shelf, key, LONG) for shelf in shelves for key in shelf.keys))
        looks = [(shelf, kind) for shelf in shelves for kind in ("key", "many", "look")]
        waiting = [asyncio.create_task(run.look(shelf, url, kind)) for shelf, kind in looks]
        await asyncio.sleep(0.5)
    finally:
        run.workers[number].signal(signal.SIGCONT)
    await asyncio.gather(*waiting)


async def judge_run(
    brokers: str,
    folder: Path,
    faults: Sequence[Fault],
    *,
    workers: int = 3,
    calm_s: float = 4.0,
    seed: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the faults one after the other, and let Porcupine judge what the clients saw.

    Args:
        brokers: of the cluster.
        folder: for data and logs.
        faults: in their order.
        workers: how many there are.
        calm_s: how long clients are left alone before each fault, and at the end.
        seed: of the choices of clients and faults.
        environment: further variables of the workers.
    """
    run = Run(brokers, folder, workers=workers, seed=seed, environment=environment or {})
    async with run.going():
        for fault in faults:
            await asyncio.sleep(calm_s)
            await fault(run)
            await run.all_run()
        await asyncio.sleep(calm_s)
        await run.read_everything()
    verdict = await asyncio.to_thread(judge, "registers", run.history)
    return Outcome(verdict, {**run.happened, "operations": len(run.history)})
