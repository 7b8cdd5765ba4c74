"""Faust's own agents, tables and pages keep working beside actors."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

FAUSTS_OWN_CRASH = "Not in the middle of a transaction"
"""Agents of an exactly-once app commit by Faust's own transactions, and on a busy machine Faust sometimes commits one
that it hasn't begun, and ends the worker. The next worker reads those records again; actors are not concerned."""


async def test_an_agent_consumes_what_an_actor_sends(brokers: str, tmp_path: Path) -> None:
    name = unique("mixed")
    await make_topics(brokers, f"{name}-orders", f"{name}-accepted", f"{name}-totals")
    worker = WorkerProcess("tests.kafka.apps.mixed_app", brokers, tmp_path / "data", APP_NAME=name).start()
    try:
        await eventually(lambda: "owns" in worker.log(), what=worker.log)
        orders = [
            (b"order-%d" % (n % 10), json.dumps({"item": "tea", "amount": 1 + n % 10}).encode()) for n in range(20)
        ]
        await send(brokers, f"{name}-orders", orders)

        async def summed() -> bool:
            values = [int(record.value) for record in await read_all(brokers, f"{name}-totals")]
            return max(values, default=0) == sum(range(1, 11))

        await eventually(summed, what="the agent's total; " + worker.log()[-3000:])
        assert len(await read_all(brokers, f"{name}-accepted")) == 10
    finally:
        code = worker.terminate()
    assert code == 0 or FAUSTS_OWN_CRASH in worker.log(), worker.log()[-3000:]


async def test_a_page_is_served(brokers: str, tmp_path: Path) -> None:
    name = unique("page")
    await make_topics(brokers, f"{name}-orders", f"{name}-accepted", f"{name}-totals")
    port = free_port()
    worker = WorkerProcess(
        "tests.kafka.apps.mixed_app", brokers, tmp_path / "data", APP_NAME=name, WEB_PORT=str(port)
    ).start(web=True)
    try:

        def served() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as reply:
                    return reply.status == 200
            except OSError:
                return False

        await eventually(served, what="Faust's own page; " + worker.log()[-2000:])
    finally:
        assert worker.terminate() == 0, worker.log()[-3000:]
