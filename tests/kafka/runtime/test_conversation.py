"""The program of a conversation on a real broker: every line is kept and answered once, whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.client import StateClient
from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.conversation_app"
ROOMS, LINES, PARTS = ("ada", "bob", "cyd"), 20, 2
ROOMS_LINES = len(ROOMS) * LINES


@pytest.mark.parametrize("kills", [0, pytest.param(PARTS, marks=pytest.mark.nightly)])
async def test_each_line_is_kept_and_answered_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], kills: int
) -> None:
    name, ports = unique("conversation"), [free_port(), free_port()]
    await make_topics(brokers, f"{name}-questions", f"{name}-answers")
    for port in ports:
        settings = {"APP_NAME": name, "FAUST_ACTORS_WEB_PORT": str(port)}
        workers.append(WorkerProcess(MODULE, brokers, tmp_path / str(port), **settings).start(web=True))
    for worker in workers:
        await eventually(lambda worker=worker: "owns" in worker.log(), what=worker.log)

    def logs() -> str:
        return "\n---\n".join(worker.log()[-2000:] for worker in workers)

    async def answers() -> list[tuple[str, str]]:
        return [(record.key.decode(), record.value.decode()) for record in await read_all(brokers, f"{name}-answers")]

    batch = LINES // PARTS
    for part in range(PARTS):
        numbers, before = range(part * batch, (part + 1) * batch), len(await answers())
        lines = [(room.encode(), f"{room} {number}".encode()) for number in numbers for room in ROOMS]
        await send(brokers, f"{name}-questions", lines)

        async def has_more(before: int = before) -> bool:
            return len(await answers()) > before

        await eventually(has_more, what=logs)
        if part < kills:
            victim = workers[part % 2]
            victim.kill()
            victim.start(web=True)

    async def all_answered() -> bool:
        return len(await answers()) >= ROOMS_LINES

    await eventually(all_answered, deadline_s=150, what=logs)
    assert sorted(await answers()) == sorted((room, f"re {room} {number}") for room in ROOMS for number in range(LINES))
    async with StateClient(f"http://127.0.0.1:{ports[0]}") as state:
        for room in ROOMS:
            lines = [line async for _, line in state.rows("lines", room)]
            said = [f"{room} {number}" for number in range(LINES)]
            assert [line for line in lines if not line.startswith("re ")] == said
            assert [line for line in lines if line.startswith("re ")] == [f"re {line}" for line in said]
