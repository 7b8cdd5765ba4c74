"""Calls that are never repeated, on a real broker, with workers that are killed again and again."""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.never_app"
ORDERS = 200
BURSTS = 3
KINDS = ("made", "refused", "unclear")


@pytest.mark.parametrize("kills", [0, pytest.param(BURSTS, marks=pytest.mark.nightly)])
async def test_no_call_is_made_twice_and_each_order_is_told_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], kills: int
) -> None:
    name, outside = unique("never"), tmp_path / "outside"
    outside.mkdir()
    await make_topics(brokers, f"{name}-orders", f"{name}-told")
    for each in range(2):
        worker = WorkerProcess(MODULE, brokers, tmp_path / f"data-{each}", APP_NAME=name, EFFECTS_FOLDER=str(outside))
        workers.append(worker.start())

    def logs() -> str:
        return "\n---\n".join(worker.log()[-2000:] for worker in workers)

    for worker in workers:
        await eventually(lambda worker=worker: "owns" in worker.log(), what=logs)

    def lines(what: str) -> list[dict[str, object]]:
        file = outside / "lines"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [row for row in rows if row["what"] == what]

    async def outcomes() -> dict[str, list[str]]:
        texts: dict[str, list[str]] = collections.defaultdict(list)
        for record in await read_all(brokers, f"{name}-told"):
            texts[record.key.decode()].append(record.value.decode())
        return texts

    batch = ORDERS // BURSTS + 1
    for burst in range(BURSTS):
        numbers = range(burst * batch, min(ORDERS, (burst + 1) * batch))
        await send(brokers, f"{name}-orders", [(f"o-{number}".encode(), str(number).encode()) for number in numbers])
        begun = len(lines("begun"))
        await eventually(lambda begun=begun: len(lines("begun")) >= min(begun + 5, ORDERS - 1), what=logs)
        if burst < kills:
            # In the middle of some calls, and of what they led to.
            await asyncio.sleep(0.03 * burst)
            victim = workers[burst % 2]
            victim.kill()
            victim.start()

    async def all_told() -> bool:
        return len(await outcomes()) == ORDERS

    await eventually(all_told, what=logs)
    check(await outcomes(), lines, kills)


def check(texts: dict[str, list[str]], lines: Callable[[str], list[dict[str, Any]]], kills: int) -> None:
    """Each order was told once, what is true, and no call was made twice."""
    assert {key for key, told in texts.items() if len(told) != 1} == set()
    assert max(collections.Counter(row["number"] for row in lines("begun")).values()) == 1
    made = {row["number"] for row in lines("made")}
    numbers = {kind: {int(key[2:]) for key, (text,) in texts.items() if text.startswith(kind)} for kind in KINDS}
    assert sum(map(len, numbers.values())) == ORDERS
    assert numbers["made"] <= made
    assert {number % 7 for number in numbers["refused"]} == {0}
    # 16 calls of each of the 2 partitions may be under way, or begin, at a kill.
    assert min(kills, 1) <= len(numbers["unclear"]) <= kills * 32
