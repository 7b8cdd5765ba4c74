"""A worker without any edge runs the main job, and one with an extension of the user's tells it of its moments."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import EDGES, ROOT
from tests.kafka.helpers import eventually, make_topics, read_all, send, unique

JOB = f"""
import asyncio, os, sys
from actors import App, Context, WorkerExtension

NAME, EXTENSIONS = os.environ["APP_NAME"], os.environ["CHOSEN"].split()
moments = []

class Noted(WorkerExtension):
    def check(self, setup):
        moments.append("check")

    async def start(self, worker):
        moments.append("start" if not worker.worker.is_assigned else "late")

    async def stop(self):
        moments.append("stop")
        raise RuntimeError("planted")

app = App(NAME, broker=os.environ["KAFKA_URL"], datadir=os.environ["FOLDER"], extensions=EXTENSIONS)
source = app.topic(f"{{NAME}}-in", key_type=str, value_type=str)
out = app.topic(f"{{NAME}}-out", key_type=str, value_type=str)
seen = app.store("seen", key_type=str, value_type=str)

@app.actor(source, stores=[seen])
async def once(ctx: Context, value: str) -> None:
    if seen.put_if_absent(ctx.key, value) is None:
        ctx.send(out, key=ctx.key, value=value)

async def main() -> None:
    async with app.running():
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
print(moments, [name for name in sys.modules if name.startswith({tuple(EDGES)!r})])
"""


def start(environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the job; a line on its standard input ends it."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", JOB], stdin=pipe, stdout=pipe, env=environment, text=True)


@pytest.mark.parametrize(
    ("chosen", "moments"), [("", []), ("__main__:Noted", ["check", "start", "stop"])], ids=["none", "own"]
)
async def test_the_main_job_runs_without_edges(brokers: str, tmp_path: Path, chosen: str, moments: list[str]) -> None:
    name = unique("edgeless")
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    records = [(b"%d" % number, b"%d" % copy) for copy in range(2) for number in range(20)]
    await send(brokers, f"{name}-in", records)
    environment = {"KAFKA_URL": f"kafka://{brokers}", "APP_NAME": name, "FOLDER": str(tmp_path), "CHOSEN": chosen}
    worker = start({**os.environ, "PYTHONPATH": str(ROOT), **environment})
    try:

        async def is_done() -> bool:
            assert worker.poll() is None
            return len(await read_all(brokers, f"{name}-out")) >= 20

        await eventually(is_done)
        said, _ = await asyncio.to_thread(worker.communicate, "\n", 30)
    finally:
        worker.kill()
    assert said == f"{moments} []\n"
    assert sorted(record.key for record in await read_all(brokers, f"{name}-out")) == sorted(
        {key for key, _ in records}
    )
