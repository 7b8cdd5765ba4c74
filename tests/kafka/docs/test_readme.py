"""The README's program is the example's, and the example does on a real broker what the README says."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import re
import shlex
import sys
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from dev.kafka import free_port
from tests import documents
from tests.documents import program
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "examples.run_commands"
INPUT, OUTPUT = "raw-data", "runs"
GUIDE = "docs/how-to/local-broker.md"


def python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)


def test_the_readmes_program_is_the_examples() -> None:
    shown = python_blocks((ROOT / "README.md").read_text())[0]
    example = (ROOT / "examples" / "run_commands.py").read_text()
    assert program(shown) == program(example)
    for planted in ("put_if_", "days=7", "key=ctx.key, ", " is None", "raw-data"):
        assert planted in shown
        assert program(shown.replace(planted, "", 1)) != program(example)


async def make_missing_topics(brokers: str) -> None:
    """Make the example's topics, unless they are there: their names are fixed, and the cluster may not be new."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        existing = set(await admin.list_topics())
    finally:
        await admin.close()
    missing = sorted({INPUT, OUTPUT} - existing)
    if missing:
        await make_topics(brokers, *missing, partitions=4)


async def request(brokers: str, keys: list[str]) -> None:
    """Ask for the commands in this order."""
    async with producing(brokers) as producer:
        for key in keys:
            value = json.dumps({"command": "resize", "args": [key]}).encode()
            await producer.send(INPUT, value, key.encode())


async def shown_send(brokers: str) -> None:
    """Send what the guide to the local broker sends, with its command."""
    (shown,) = [line for line in documents.block(GUIDE, "The example by hand").commands() if " send " in line]
    program, *words = shlex.split(shown)
    assert program == "faust"
    url = ";".join(f"kafka://{broker}" for broker in brokers.split(","))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "faust", *words), cwd=ROOT, env={**os.environ, "KAFKA_URL": url}
    )
    async with asyncio.timeout(60):
        assert await process.wait() == 0


async def runs_of(brokers: str, mine: str) -> dict[str, list[tuple[str, list[str]]]]:
    """The runs of this test's commands, by key, read committed."""
    found: dict[str, list[tuple[str, list[str]]]] = collections.defaultdict(list)
    for record in await read_all(brokers, OUTPUT):
        if record.key.decode().startswith(mine):
            run = json.loads(record.value)
            found[record.key.decode()].append((run["command"], run["args"]))
    return found


async def test_the_example_runs_each_command_once_also_after_a_restart(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """Also the README's question for the state is asked while it runs."""
    await make_missing_topics(brokers)
    port, mine = free_port(), unique("command")
    first, later = ([f"{mine}-{word}-{number}" for number in range(100)] for word in ("first", "later"))
    worker = WorkerProcess(MODULE, brokers, tmp_path / "worker", WEB_PORT=str(port)).start(web=True)
    workers.append(worker)

    async def have_run(keys: list[str]) -> bool:
        assert worker.is_running(), worker.log()[-3000:]
        return set(keys) <= (await runs_of(brokers, mine)).keys()

    await request(brokers, first + first[::-1])
    await eventually(lambda: have_run(first), what="the first commands are run")
    assert worker.terminate() == 0, worker.log()[-3000:]
    worker.start(web=True)
    # The later ones come behind the repeats in every partition: once they ran, the repeats were handled.
    await shown_send(brokers)
    await request(brokers, [*first, *later])
    await eventually(lambda: have_run(later), what="the later commands are run")
    (question,) = documents.commands_of("README.md")
    run = {"key": "command-17", "value": {"command": "resize", "args": ["a.png"]}}

    async def says_what_was_run() -> bool:
        return documents.shows(await documents.run(question, port), run)

    await eventually(says_what_was_run, what=worker.log)
    assert worker.terminate() == 0, worker.log()[-3000:]

    found = await runs_of(brokers, mine)
    assert found == {key: [("resize", [key])] for key in first + later}
