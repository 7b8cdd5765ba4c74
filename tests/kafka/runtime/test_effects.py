"""Effects on a real broker, with workers that die in the middle of a call, behind it, and behind its result."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.effects_app"
KEYS = [f"till-{number}" for number in range(6)]
EACH = 6
Lines = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shop:
    """The app, its topics made, and what its effects write to and read from."""

    name: str
    brokers: str
    folder: Path
    workers: list[WorkerProcess]

    async def begin(self, count: int) -> None:
        """Start workers, and wait until each owns something."""
        for each in range(count):
            folder = self.folder / f"data-{each}"
            worker = WorkerProcess(
                MODULE, self.brokers, folder, APP_NAME=self.name, EFFECTS_FOLDER=str(self.folder / "outside")
            )
            self.workers.append(worker.start())
        for worker in self.workers:
            await eventually(lambda worker=worker: "owns" in worker.log(), what=self.logs)

    def order(self, what: str) -> Path:
        """Tell the effects to do something; they go on when the file is gone."""
        file = self.folder / "outside" / what
        file.touch()
        return file

    async def pay(self, *payments: tuple[str, int]) -> None:
        records = [(key.encode(), json.dumps({"type": "pay", "number": number}).encode()) for key, number in payments]
        await send(self.brokers, f"{self.name}-payments", records)

    def lines(self, what: str, number: int | None = None) -> Lines:
        """What the effects wrote, in the order of time."""
        file = self.folder / "outside" / "lines"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in found if line["what"] == what and number in (None, line["number"])]

    async def receipts(self) -> dict[str, list[str]]:
        """The results that were handled, by key."""
        found: dict[str, list[str]] = collections.defaultdict(list)
        for record in await read_all(self.brokers, f"{self.name}-receipts"):
            found[record.key.decode()].append(record.value.decode())
        return dict(found)

    async def outbox(self) -> Lines:
        """What the changelog leaves of the calls."""
        records = await read_all(self.brokers, f"{self.name}--Till-effects-changelog")
        last = {record.key: record.value for record in records}
        return [json.loads(value) for _, value in sorted(last.items()) if value is not None]

    async def until_charged(self, count: int) -> None:
        async def is_over() -> bool:
            return sum(map(len, (await self.receipts()).values())) >= count and await self.outbox() == []

        await eventually(is_over, what=self.logs)

    async def restarted_after_its_death(self) -> None:
        """Wait until a worker is dead by its own hand, and start it again."""
        await eventually(lambda: self._dead(), what=self.logs)
        (dead,) = self._dead()
        assert dead.wait() == -9
        dead.start()

    def _dead(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if not worker.is_running()]

    def logs(self) -> str:
        return "\n---\n".join(worker.log()[-2000:] for worker in self.workers)


@pytest.fixture
async def shop(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Shop:
    name = unique("effects")
    (tmp_path / "outside").mkdir()
    await make_topics(brokers, f"{name}-payments", f"{name}-receipts")
    return Shop(name, brokers, tmp_path, workers)


@pytest.mark.nightly
async def test_effects_happen_in_order_with_one_id_and_their_results_once_whoever_is_killed(shop: Shop) -> None:
    await shop.begin(2)
    payments = [(key, 10 * each + place) for each in range(EACH) for place, key in enumerate(KEYS)]
    hung, died_after, died_in_result = 21, 33, 45
    hang = shop.order(f"hang-{hung}")
    hang_again = shop.order(f"hang-{died_after}")
    hang_last = shop.order(f"hang-{died_in_result}")
    shop.order(f"die-after-{died_after}")
    shop.order(f"die-in-result-{died_in_result}")
    await shop.pay(*payments)

    # In the middle of a call.
    await eventually(lambda: shop.lines("begun", hung), what=shop.logs)
    (victim,) = [worker for worker in shop.workers if worker.pid == shop.lines("begun", hung)[0]["pid"]]
    victim.kill()
    await eventually(lambda: len(shop.lines("begun", hung)) > 1, what=shop.logs)
    assert shop.lines("charged", hung) == []
    hang.unlink()
    victim.start()
    # Between its success and its commit.
    await eventually(lambda: shop.lines("begun", died_after), what=shop.logs)
    hang_again.unlink()
    await shop.restarted_after_its_death()
    # While its result is handled.
    await eventually(lambda: len(shop.lines("charged", died_after)) == 2, what=shop.logs)
    hang_last.unlink()
    await shop.restarted_after_its_death()

    await shop.until_charged(len(payments))
    await check(shop, payments, killed=[hung, died_after, died_in_result])


async def check(shop: Shop, payments: list[tuple[str, int]], *, killed: list[int]) -> None:
    """Each payment was charged, with one id, in order; its receipt was given once; a new owner's token is higher."""
    begun, charged = shop.lines("begun"), shop.lines("charged")
    pairs = {(line["number"], line["id"]) for line in begun}
    assert len(pairs) == len({number for number, _ in pairs}) == len({id for _, id in pairs}) == len(payments)
    first = list(dict.fromkeys((line["key"], line["number"]) for line in charged))
    tried = list(dict.fromkeys((line["key"], line["number"]) for line in begun))
    receipts = await shop.receipts()
    for key in KEYS:
        asked = [number for its_key, number in payments if its_key == key]
        assert [number for its_key, number in first if its_key == key] == asked
        assert [number for its_key, number in tried if its_key == key] == asked
        assert receipts[key] == [f"{number} {count}" for count, number in enumerate(asked, 1)]
    for number in killed:
        calls = shop.lines("begun", number)
        assert len({line["pid"] for line in calls}) > 1
        tokens = [line["token"] for line in calls]
        assert tokens == sorted(set(tokens))
        # What a death cut short doesn't count as an attempt.
        assert {line["attempt"] for line in calls} == {1}
    for key in KEYS:
        tokens = [line["token"] for line in begun if line["key"] == key]
        assert tokens == sorted(tokens)


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
async def test_an_effect_whose_attempts_are_used_up_is_parked_and_its_line_waits(shop: Shop, is_killed: bool) -> None:
    fail = shop.order("fail-1")
    await shop.begin(1)
    await shop.pay(("a", 1), ("a", 2), ("b", 3))

    async def parked() -> Lines:
        return [call for call in await shop.outbox() if call["parked"]]

    await eventually(parked, what=shop.logs)
    (worker,) = shop.workers
    if is_killed:
        worker.kill()
    fail.unlink()
    if is_killed:
        worker.start()
    await shop.pay(("b", 4))

    async def b_goes_on() -> bool:
        return (await shop.receipts()).get("b") == ["3 1", "4 2"]

    await eventually(b_goes_on, what=shop.logs)
    first, second = await shop.outbox()
    assert (first["args"], first["attempts"], first["parked"]) == ([1], 3, True)
    assert first["error"] == "ValueError: nobody charges 1"
    assert (second["args"], second["attempts"], second["parked"]) == ([2], 0, False)
    assert [line["attempt"] for line in shop.lines("begun", 1)] == [1, 2, 3]
    assert len({line["id"] for line in shop.lines("begun", 1)}) == 1
    assert shop.lines("begun", 2) == shop.lines("charged", 1) == []
    assert set(await shop.receipts()) == {"b"}
