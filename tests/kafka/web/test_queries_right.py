"""Answers while workers are killed, started and stopped: right, or 503."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from actors._core.partitioner import partition_for
from actors.client import StateClient
from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique
from tests.kafka.web.query_judge import Judge, counting_up, following
from tests.kafka.web.query_witness import Question, Witness, changelog_of

PARTITIONS = 6
KINDS = ("key", "many", "page", "ask")


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


class Examination:
    """Different keys in random order, and what is asked of them by and by.

    All but every 50th is counted once before it begins. From then on messages go to those that are asked for next, and
    to those that were asked for last, so that answers and commits meet.
    """

    def __init__(self, farm: Farm, witness: Witness, count: int) -> None:
        self.farm = farm
        self.witness = witness
        self.count = count
        self.chance = random.Random(1)
        self.keys = [f"key {number:04d}" for number in range(count)]
        self.known = [key for number, key in enumerate(self.keys) if number % 50]
        self.order = self.chance.sample(self.keys, count)
        self.asked = 0
        self.urls: list[str] = []
        self.session: aiohttp.ClientSession

    @property
    def is_over(self) -> bool:
        """Whether each key was asked for."""
        return self.asked >= self.count

    async def seed(self) -> None:
        """Have keys counted once."""
        self.witness.sent = dict.fromkeys(self.known, 1)
        pairs = [(key.encode(), b"count") for key in self.known]
        await send(self.farm.brokers, f"{self.farm.name}-in", pairs, partitions=PARTITIONS)
        await eventually(lambda: self.witness.least == self.witness.sent, what=self.farm.log)

    def nearby(self) -> str:
        """One of those that are asked for about now."""
        return self.order[min(self.count - 1, max(0, self.asked + self.chance.randrange(-20, 40)))]

    def messages(self) -> Iterator[str]:
        """Whom to send the next message, without an end."""
        while True:
            yield self.nearby()

    async def put(self, question: Question) -> None:
        """Ask until there is an answer; a range to its end."""
        while True:
            answer = await self.witness.put_until_answered(self.session, self.urls, question)
            if answer.next is None:
                return
            last = answer.told[-1].key if answer.told else question.start
            question = replace(question, start=last, after=True, cursor=answer.next)

    async def ask_each_key(self) -> None:
        """Ask for the keys that nobody else has asked for, and now and then something about several."""
        while not self.is_over:
            number, self.asked = self.asked, self.asked + 1
            key = self.order[number]
            await self.put(Question("key", f"/actors/counts/{key}", (key,)))
            if number % 25 == 0:
                await self.put(self.other("committed", number // 25))
            if number % (self.count // 4) == 0:
                await self.put(Question("page", "/actors/counts", limit=1000))
                await self.put(Question("count", "/actors/counts/_count?exact=true"))

    async def ask_copies(self) -> None:
        """Ask copies, also while the owner is dead."""
        turn = 0
        while not self.is_over:
            turn += 1
            key = self.nearby()
            await self.put(Question("key", f"/actors/counts/{key}", (key,), read="standby"))
            if turn % 4 == 0:
                await self.put(self.other("standby", turn // 4))
            await asyncio.sleep(0.01)

    def other(self, read: str, turn: int) -> Question:
        """A question that isn't for the value of one key."""
        if turn % 3 == 0:
            key = self.nearby()
            return Question("ask", f"/actors/count/_ask/status/{key}", (key,), read)
        if turn % 3 == 1:
            some = dict.fromkeys([*(self.nearby() for _ in range(20)), *self.chance.sample(self.keys, 20)])
            return Question("many", "/actors/counts/_many", tuple(some), read)
        first = self.chance.randrange(self.count // 100)
        prefix = f"key {first:02d}"
        return Question("page", f"/actors/counts?prefix={prefix}", read=read, start=prefix, end=f"{prefix}~", limit=40)


@pytest.mark.nightly
async def test_any_worker_answers_right_while_one_is_killed_and_another_started(farm: Farm) -> None:
    """10,000 different keys are asked for through three workers in turn; one is killed, another one is started.

    Each key is asked for alone; among these questions are many keys at once, ranges, the whole store a page at a time,
    exact counts and an actor's query, of owners and, at the same time, with `read=standby`. Right means:

    - **Exact**: what an answer says of a key is what the changelog, read committed, has for it before the answer's
      position. So it is nothing that isn't committed, and no mixture of two states.
    - **Of the moment**: a committed answer has all that anybody had seen before it was asked for, in the output topic
      or in another answer; so no key, and no partition's position, goes back. Nor has it more than was sent.
    - **As old as it says**: a copy's answer has all that anybody had seen by its `staleness_ms` before the question.
    - **Complete**: a page has each key of its range as of its positions, once and in order, and each of many keys is
      answered for in its place.
    - Else it is **503** with a reason and `Retry-After`. Only the killed worker, and the new one until it is there,
      may be unreachable.
    """
    witness = Witness()
    test = Examination(farm, witness, 10_000)
    fleet = [farm.start(TABLE_STANDBY_REPLICAS="1") for _ in range(3)]
    test.urls = [url for _, url in fleet]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as test.session:
        await farm.all_run(test.session, test.urls)
        async with following(farm.brokers, farm.name, witness):
            await test.seed()
        async with counting_up(farm.brokers, farm.name, witness, test.messages(), partitions=PARTITIONS, pause_s=0.005):

            async def disturb() -> None:
                await eventually(lambda: test.asked > test.count * 0.3, what=farm.log)
                killed, url = fleet[0]
                lost = await farm.partitions_of(test.session, url)
                witness.silent.add(url)
                killed.kill()
                answers = len(witness.answers)

                def copies_answer() -> bool:
                    return any(lost & answer.ages_s.keys() for answer in witness.answers[answers:])

                # Nobody takes over within the session of 6 s.
                await eventually(lambda: witness.unreached > 0 and copies_answer(), deadline_s=5, what=farm.log)
                new = farm.start(TABLE_STANDBY_REPLICAS="1")[1]
                witness.silent.add(new)
                test.urls[0] = new

            async with asyncio.TaskGroup() as group:
                for _ in range(12):
                    group.create_task(test.ask_each_key())
                for _ in range(2):
                    group.create_task(test.ask_copies())
                group.create_task(disturb())
            # The new worker has its share in the end, and answers for all.
            await farm.all_run(test.session, test.urls)
            for key in test.order[:30]:
                await witness.put_until_answered(
                    test.session, test.urls[:1], Question("key", f"/actors/counts/{key}", (key,))
                )
    changelog = changelog_of(await read_all(farm.brokers, f"{farm.name}--counts-changelog"))
    wrong = witness.wrong + [text for answer in witness.answers for text in changelog.contradictions(answer)]
    print(f"right {witness.right}, refused {witness.refused}, unreached {witness.unreached}", sorted(witness.reasons))
    print(dict(witness.kinds), f"sent {sum(witness.sent.values())}")
    assert not wrong, (len(wrong), wrong[:5])
    alone = [
        answer for answer in witness.answers if answer.question.kind == "key" and answer.question.read == "committed"
    ]
    assert {one.key for answer in alone for one in answer.told} == set(test.keys)
    assert all(witness.kinds[kind, read] for kind in KINDS for read in ("committed", "standby"))
    assert witness.refused > 0, "the kill came to nothing"
    assert max(witness.least.values()) > 1


@pytest.mark.nightly
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


@pytest.mark.parametrize("plant", ["", pytest.param("no-wait", marks=pytest.mark.nightly)])
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


@pytest.mark.nightly
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
