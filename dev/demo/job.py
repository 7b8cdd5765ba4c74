"""The steps of the demo, in their order."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from dev.demo.names import (
    BUSY_COMMANDS,
    BUSY_RUNS,
    CHANGELOG,
    COMMANDS,
    DEADLINE_S,
    DISTINCT,
    EXPORTS,
    FOLDER,
    INPUT,
    LATE,
    OUTPUT,
    OWNERS,
    PARTITIONS,
    REBUILD,
    SPARK_DEADLINE_S,
    STORE,
    DemoError,
)
from dev.demo.processes import WorkerProcess, app_command, environment, run
from dev.demo.progress import Step, Steps
from dev.demo.view import View, until
from dev.kafka import (
    CONSOLE_PRODUCER,
    TOPIC_COMMAND,
    Cluster,
    ensure_jars,
    existing_brokers,
    kafka_version,
    run_tool,
    tool_command,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last line. `runs` were counted by a read-committed consumer, the others by Spark.

    `spark_records` is what the audit read: the records behind the rebuild.
    """

    commands: int
    distinct: int
    runs: int
    run_twice: int
    never_run: int
    spark_keys: int
    spark_records: int
    spark_mismatches: int
    seconds: float

    def problems(self) -> list[str]:
        """Return what is off."""
        lines = command_lines()
        wanted = {
            "commands": COMMANDS,
            "distinct": DISTINCT,
            "runs": DISTINCT,
            "run_twice": 0,
            "never_run": 0,
            "spark_keys": DISTINCT,
            "spark_records": len({*lines[-LATE:]} - {*lines[:-LATE]}),
            "spark_mismatches": 0,
        }
        found = asdict(self)
        return [f"{name} is {found[name]:,}, not {value:,}" for name, value in wanted.items() if found[name] != value]


def command_lines() -> list[str]:
    """Return the input of the console producer: key, separator, value; one line a command.

    A third of the repeats follows at once, a third a little later, a third at any time until the end: they
    meet the first request in the same commit, in one of the next, or long after it.
    """
    chance = random.Random(4)
    order = [(float(number), number) for number in range(DISTINCT)]
    for number in range(DISTINCT):
        gap = (0.5, chance.uniform(1, 2_000), chance.uniform(0, DISTINCT - number))[number % 3]
        order.append((number + gap, number))
    return [
        f'resize-{number:05d}|{{"command": "resize", "args": ["image-{number:05d}.png", "800x600"]}}\n'
        for _, number in sorted(order)
    ]


@asynccontextmanager
async def under_way(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Do something beside the block; what isn't done at the block's end is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def send_commands(brokers: str, lines: Sequence[str]) -> None:
    """Send commands with Kafka's console producer."""
    arguments = ["--bootstrap-server", brokers, "--topic", INPUT, "--request-timeout-ms", "30000"]
    arguments += ["--property", "parse.key=true", "--property", "key.separator=|"]
    command = tool_command(CONSOLE_PRODUCER, *arguments)
    await run("console-producer", command, deadline_s=DEADLINE_S, stdin="".join(lines).encode())


async def start_kafka(step: Step, stack: AsyncExitStack) -> str:
    """Start a broker in our folder, or take the cluster that the environment names; give the bootstrap list."""
    existing = existing_brokers()
    await asyncio.to_thread(ensure_jars)
    if existing:
        step.note(f"the cluster at {existing}")
        return existing
    folder = FOLDER / "kafka"
    # The callback comes first: a start that is cut off has brokers too.
    stack.push_async_callback(asyncio.to_thread, take_down, folder)
    cluster = await asyncio.to_thread(Cluster.up, folder)
    step.note(f"{kafka_version()} at {cluster.bootstrap}")
    return cluster.bootstrap


def take_down(folder: Path) -> None:
    """End the broker in `folder`, if there is one."""
    if (folder / "state.json").exists():
        Cluster.open(folder).down()


async def make_topics(brokers: str, stack: AsyncExitStack) -> None:
    """Make the example's topics. On a cluster that was there before, they are deleted at the end.

    Raises:
        DemoError: one of them exists: it isn't ours to use.
    """
    if existing_brokers():
        ours = {INPUT, OUTPUT, CHANGELOG, OWNERS}
        listed = await topic_command(brokers, "--list")
        taken = sorted(ours & set(listed.split()))
        if taken:
            raise DemoError(
                f"the cluster at {brokers} has {', '.join(taken)} already, and the demo counts on empty ones: "
                "delete them with kafka-topics.sh --delete, or unset KAFKA_URL and KAFKA_BROKERS"
            )
        names = "|".join(sorted(ours))
        stack.push_async_callback(topic_command, brokers, "--delete", "--if-exists", "--topic", names)
    partitions = ["--partitions", str(PARTITIONS)]
    await asyncio.gather(
        *(topic_command(brokers, "--create", "--topic", topic, *partitions) for topic in (INPUT, OUTPUT))
    )


async def topic_command(brokers: str, *arguments: str) -> str:
    """Run Kafka's own tool for topics, and give what it printed."""
    done = await asyncio.to_thread(run_tool, TOPIC_COMMAND, "--bootstrap-server", brokers, *arguments)
    return done.stdout


async def start_workers(brokers: str, stack: AsyncExitStack) -> list[WorkerProcess]:
    """Start two workers, which end with the stack."""
    workers = [WorkerProcess("worker-1", brokers), WorkerProcess("worker-2", brokers)]
    stack.push_async_callback(asyncio.to_thread, stop_workers, workers)
    for worker in workers:
        worker.start()
    return workers


def stop_workers(workers: Sequence[WorkerProcess]) -> None:
    """Stop the workers side by side."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait()


async def open_view(brokers: str, workers: Sequence[WorkerProcess], stack: AsyncExitStack) -> View:
    """Connect as soon as a worker has made the registry."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:

        async def has_registry() -> bool:
            return OWNERS in await admin.list_topics()

        await until(has_registry, f"a worker makes the topic {OWNERS}", workers)
    finally:
        await admin.close()
    return await View.open(brokers, stack)


async def until_all_own(view: View, workers: Sequence[WorkerProcess], step: Step) -> None:
    """Wait until all partitions are owned by these processes, by each as many."""

    async def all_own() -> bool:
        owners = await view.owners()
        held = [sum(worker.owns(address) for address in owners.values()) for worker in workers]
        step.note(", ".join(f"{worker.name} owns {count}" for worker, count in zip(workers, held, strict=True)))
        return all(count == PARTITIONS // len(workers) for count in held)

    await until(all_own, "the workers share the partitions", workers)


async def kill_while_busy(
    view: View, workers: Sequence[WorkerProcess], victim: WorkerProcess, sending: asyncio.Task[None], step: Step
) -> None:
    """`kill -9` in the middle of the work, proven by the commands that its partitions are left with.

    Raises:
        DemoError: it wasn't busy, or the commands didn't come.
    """
    owners = await view.owners()
    partitions = [number for number, address in owners.items() if victim.owns(address)]

    async def waiting() -> int:
        lag = await view.lag()
        return sum(lag[number] for number in partitions)

    async def busy() -> bool:
        runs = await view.count_runs()
        step.note(f"{runs:,} runs")
        if sending.done():
            sending.result()
        return runs >= BUSY_RUNS and await waiting() >= BUSY_COMMANDS

    await until(busy, f"{victim.name} is busy", workers)
    victim.kill()
    left, runs = await waiting(), await view.count_runs()
    if not left or runs >= DISTINCT:
        raise DemoError(f"{victim.name} had nothing to do when it was killed: {runs:,} runs, {left} waiting")
    step.note(
        f"{runs:,} of {DISTINCT:,} runs were committed, {left:,} commands waited in its partitions "
        f"{', '.join(map(str, sorted(partitions)))}"
    )


async def until_done(view: View, workers: Sequence[WorkerProcess], step: Step) -> None:
    """Wait until the group's lag is zero."""

    async def done() -> bool:
        lag = sum((await view.lag()).values())
        step.note(f"{await view.count_runs():,} runs, {lag:,} commands to go")
        return lag == 0

    await until(done, "the group's lag is zero", workers)


async def export_stores(workers: Sequence[WorkerProcess], brokers: str) -> str:
    """Export what each worker's RocksDB holds, while it runs."""
    counts = await asyncio.gather(*(_export(worker, brokers) for worker in workers))
    return ", ".join(f"{worker.name} {count:,} keys" for worker, count in zip(workers, counts, strict=True))


async def _export(worker: WorkerProcess, brokers: str) -> int:
    command = [*app_command(worker.folder), "state", "export", STORE, "--to", str(EXPORTS)]
    done = await run(f"export-{worker.name}", command, deadline_s=DEADLINE_S, env=environment(brokers))
    return int(done["keys"])


async def spark(action: str, brokers: str, step: Step, *arguments: str) -> dict[str, Any]:
    """Run an action of `spark_replay` on the changelog."""
    command = [sys.executable, "-m", "spark_replay", action, "--brokers", brokers, "--changelog", CHANGELOG]
    return await run(action, [*command, *arguments], deadline_s=SPARK_DEADLINE_S, note=step.note)


async def rebuild(brokers: str, steps: Steps) -> None:
    """Rebuild the state with Spark."""
    with steps.step("Spark rebuilds the state from the changelog") as step:
        rebuilt = await spark("rebuild", brokers, step, "--to", str(REBUILD))
        step.note(f"{rebuilt['keys']:,} keys of {rebuilt['records']:,} records")


async def audit(brokers: str, steps: Steps) -> dict[str, Any]:
    """Validate the exports with the rebuild and what the changelog has behind it; give the counts."""
    with steps.step("Spark audits the exports from the rebuild on, key by key") as step:
        found = await spark("validate", brokers, step, "--against", str(EXPORTS), "--incremental", str(REBUILD))
        step.note(f"{found['keys']:,} keys, {found['records']:,} new records, {found['mismatches']:,} mismatches")
    return found


async def work(brokers: str, steps: Steps, stack: AsyncExitStack) -> View:
    """Let two workers handle the commands, kill one of them, and rebuild before the last ones come; give the view."""
    with steps.step("two workers start") as step:
        workers = await start_workers(brokers, stack)
        view = await open_view(brokers, workers, stack)
        await until_all_own(view, workers, step)
    victim, lines = workers[1], command_lines()
    async with under_way(send_commands(brokers, lines[:-LATE])) as sending:
        with steps.step(f"commands come in, {victim.name} gets kill -9 while it is busy") as step:
            await kill_while_busy(view, workers, victim, sending, step)
        victim.start()
        with steps.step(f"{COMMANDS - LATE:,} commands are sent"):
            await sending
    with steps.step(f"{victim.name} is started again, the rest is handled") as step:
        await until_done(view, workers, step)
    with steps.step("the workers share the partitions again") as step:
        await until_all_own(view, workers, step)
    await rebuild(brokers, steps)
    with steps.step(f"the last {LATE:,} commands are sent and handled") as step:
        await send_commands(brokers, lines[-LATE:])
        await until_done(view, workers, step)
    with steps.step("the workers' stores are exported") as step:
        step.note(await export_stores(workers, brokers))
    return view


async def demo(steps: Steps, stack: AsyncExitStack) -> Outcome:
    """Do everything, and give what came out; `seconds` is for the caller to set."""
    with steps.step("Kafka starts") as step:
        brokers = await start_kafka(step, stack)
    with steps.step(f"topics {INPUT} and {OUTPUT}"):
        await make_topics(brokers, stack)
    view = await work(brokers, steps, stack)
    with steps.step("the runs are counted, read committed") as step:
        runs = await view.count_runs()
        step.note(f"{runs:,} runs of {len(view.runs):,} commands")
    found = await audit(brokers, steps)
    wanted = {f"resize-{number:05d}" for number in range(DISTINCT)}
    return Outcome(
        commands=await view.count_commands(),
        distinct=DISTINCT,
        runs=runs,
        run_twice=sum(count - 1 for count in view.runs.values()),
        never_run=len(wanted - view.runs.keys()),
        spark_keys=found["keys"],
        spark_records=found["records"],
        spark_mismatches=found["mismatches"],
        seconds=0.0,
    )
