"""Answers while workers are killed, started and stopped: right, or 503."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import aiohttp
import pytest

from actors._core.partitioner import partition_for
from actors.client import StateClient
from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique
from tests.kafka.query_judge import Judge, counting_up, following

PARTITIONS = 6
QUESTIONS = 10_000


class Farm:
    """Workers of the app, each with a web server."""

    def __init__(self, brokers: str, folder: Path, started: list[WorkerProcess]) -> None:
        self.brokers = brokers
        self.name = unique("queries")
        self.folder = folder
        self.started = started

    async def make(self) -> None:
        """Make the topics."""
        name = self.name
        await make_topics(self.brokers, f"{name}-in", f"{name}-out", f"{name}-accounts", partitions=PARTITIONS)

    def start(self, **environment: str) -> tuple[WorkerProcess, str]:
        """Start a worker; give it and its address."""
        port = free_port()
        folder = self.folder / f"worker-{len(self.started)}"
        worker = WorkerProcess(
            "tests.kafka.apps.query_app",
            self.brokers,
            folder,
            APP_NAME=self.name,
            WEB_PORT=str(port),
            **environment,
        ).start(web=True)
        self.started.append(worker)
        return worker, f"http://127.0.0.1:{port}"

    def log(self) -> str:
        """The ends of all logs."""
        return "\n".join(worker.log()[-2000:] for worker in self.started)

    async def partitions_of(self, session: aiohttp.ClientSession, url: str) -> set[int]:
        """What a worker owns of the counting actor."""
        try:
            async with session.get(f"{url}/actors") as reply:
                said = await reply.json(content_type=None)
        except aiohttp.ClientConnectionError:
            return set()
        running = ("running", "committing")
        return {
            one["partition"]
            for one in said.get("partitions", ())
            if one["actor"] == "count" and one["state"] in running
        }

    async def all_run(self, session: aiohttp.ClientSession, urls: list[str]) -> None:
        """Wait until the workers own all partitions together, each of them some."""

        async def run() -> bool:
            owned = [await self.partitions_of(session, url) for url in urls]
            return all(owned) and set().union(*owned) == set(range(PARTITIONS))

        await eventually(run, what=self.log)


@pytest.fixture
async def farm(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Farm:
    made = Farm(brokers, tmp_path, workers)
    await made.make()
    return made


async def test_any_worker_answers_right_while_one_is_killed_and_another_started(farm: Farm) -> None:
    keys = [f"key {number}" for number in range(300)]
    judge, names = Judge(), random.Random(1)
    fleet = [farm.start() for _ in range(3)]
    urls = [url for _, url in fleet]
    async with aiohttp.ClientSession() as session:
        await farm.all_run(session, urls)
        async with counting_up(farm.brokers, farm.name, judge, keys, partitions=PARTITIONS, pause_s=0.005):
            left = [names.choice(keys) for _ in range(QUESTIONS)]

            async def ask_on() -> None:
                while left:
                    await judge.ask_until_answered(session, urls, left.pop())

            async def disturb() -> None:
                await eventually(lambda: len(left) < QUESTIONS * 0.7, what=farm.log)
                fleet[0][0].kill()
                await eventually(lambda: judge.unreached > 0, what=farm.log)
                urls.append(farm.start()[1])
                await eventually(lambda: len(left) < QUESTIONS * 0.5 or not left, what=farm.log)

            async with asyncio.TaskGroup() as group:
                for _ in range(12):
                    group.create_task(ask_on())
                group.create_task(disturb())
            # The new worker has its share in the end, and answers for all.
            await farm.all_run(session, urls[1:])
            for key in keys[:30]:
                await judge.ask_until_answered(session, urls[-1:], key)
    print(f"right {judge.right}, refused {judge.refused}, unreached {judge.unreached}", sorted(judge.reasons))
    assert not judge.wrong, judge.wrong[:5]
    assert judge.right == QUESTIONS + 30
    assert judge.refused > 0, "the kill came to nothing"
    assert max(judge.least.values()) > 1


@pytest.mark.parametrize("plant", ["", "no-lease"])
async def test_a_worker_that_stood_still_doesnt_answer_for_what_others_own_by_now(farm: Farm, plant: str) -> None:
    """Its questions wait in front of it while it stands still, and are the first that it sees."""
    judge = Judge()
    (sleeper, asleep), (_, awake) = farm.start(PLANT=plant), farm.start()
    async with aiohttp.ClientSession() as session, following(farm.brokers, farm.name, judge):
        await farm.all_run(session, [asleep, awake])
        owned = await farm.partitions_of(session, asleep)
        keys = [key for key in map(str, range(100)) if partition_for(key.encode(), PARTITIONS) in owned]

        async def count_once() -> None:
            for key in keys:
                judge.sent[key] = judge.sent.get(key, 0) + 1
            pairs = [(key.encode(), b"count") for key in keys]
            await send(farm.brokers, f"{farm.name}-in", pairs, partitions=PARTITIONS)
            await eventually(lambda: all(judge.least.get(key, 0) == judge.sent[key] for key in keys), what=farm.log)

        await count_once()
        for key in keys:
            assert await judge.ask(session, asleep, key)
        sleeper.signal(signal.SIGSTOP)
        await count_once()
        asked = [asyncio.create_task(judge.ask(session, asleep, key)) for key in keys]
        await asyncio.sleep(0.5)
        sleeper.signal(signal.SIGCONT)
        await asyncio.gather(*asked)
        for key in keys:
            await judge.ask_until_answered(session, [asleep], key)
    assert bool(judge.wrong) == bool(plant), judge.wrong[:5]


@pytest.mark.parametrize("plant", ["", "no-wait"])
async def test_what_was_seen_in_an_output_is_in_the_answer(farm: Farm, plant: str) -> None:
    """The transaction's end, which shows its outputs, and RocksDB are 0.3 s apart here."""
    judge = Judge()
    # A static identity needs the coordinator's word for each answer.
    _, url = farm.start(SLOW_COMMIT="0.3", PLANT=plant, INSTANCE_ID="one")
    async with aiohttp.ClientSession() as session:
        await farm.all_run(session, [url])
        async with following(farm.brokers, farm.name, judge):
            for number in range(1, 6):
                judge.sent["k"] = number
                await send(farm.brokers, f"{farm.name}-in", [(b"k", b"count")], partitions=PARTITIONS)
                await eventually(lambda number=number: judge.least.get("k", 0) == number, what=farm.log)
                assert await judge.ask(session, url, "k")
    assert bool(judge.wrong) == bool(plant), judge.wrong[:5]


async def test_the_client_goes_on_over_a_killed_worker(farm: Farm) -> None:
    judge, keys = Judge(), [f"key {number}" for number in range(60)]
    fleet = [farm.start() for _ in range(2)]
    urls = [url for _, url in fleet]
    async with aiohttp.ClientSession() as session:
        await farm.all_run(session, urls)
    async with (
        StateClient(urls) as state,
        counting_up(farm.brokers, farm.name, judge, keys, partitions=PARTITIONS),
    ):
        for turn in range(6):
            if turn == 2:
                fleet[0][0].kill()
            least = dict(judge.least)
            one = {key: await state.get("counts", key, 0) for key in keys[:10]}
            many = await state.get_many("counts", keys)
            for key in keys:
                assert many.get(key, 0) >= max(least.get(key, 0), one.get(key, 0))
                assert many.get(key, 0) <= judge.sent.get(key, 0)
        pairs = [pair async for pair in state.range("counts", prefix="key 1")]
        assert [key for key, _ in pairs] == sorted(key for key in keys if key.startswith("key 1"))
        assert await state.count("counts", exact=True) == len(keys)
        assert await state.ask("count", "status", "key 1", loud=True) >= "KEY 1: 1"
