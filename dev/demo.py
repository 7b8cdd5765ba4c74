"""The main job from end to end: `python -m dev.demo`, or `make demo`.

100,000 run commands, every one asked for twice, go to a real broker by Kafka's own console producer. Two workers run
each command once; one of them is killed while it is busy, and started again. Then Spark rebuilds the
state from the changelog and compares it with what the workers hold. All files are in `.local/demo`.

The last line on standard output is a JSON object; the exit code is 1 if a number in it isn't what it has to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition
from rich.console import Console
from rich.markup import escape

from dev.kafka import (
    CONSOLE_PRODUCER,
    KAFKA_VERSION,
    TOPIC_COMMAND,
    Cluster,
    LocalKafkaError,
    ensure_jars,
    run_tool,
    tool_command,
)

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".local" / "demo"
EXPORTS = FOLDER / "exports"

APP, STORE = "dispatcher", "run-command-state"
INPUT, OUTPUT = "raw-data", "runs"
CHANGELOG, OWNERS = f"{APP}-{STORE}-changelog", f"{APP}-actors-owners"
PARTITIONS = 4
COMMANDS, DISTINCT = 100_000, 50_000

BUSY_RUNS = 2_000
"""The kill waits for so many runs, so that there is state to lose."""
BUSY_COMMANDS = 500
"""…and until so many commands wait in the partitions of the worker to kill, so that it is at work."""
DEADLINE_S = 90.0
SPARK_DEADLINE_S = 180.0
STOP_S = 20.0
POLL_S = 0.02


class DemoError(Exception):
    """Something isn't as it has to be; the text says what."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last line. `runs` were counted by a read-committed consumer, the keys by Spark."""

    commands: int
    distinct: int
    runs: int
    run_twice: int
    never_run: int
    spark_keys: int
    spark_mismatches: int
    seconds: float

    def problems(self) -> list[str]:
        """Say what is off."""
        wanted = {
            "commands": COMMANDS,
            "distinct": DISTINCT,
            "runs": DISTINCT,
            "run_twice": 0,
            "never_run": 0,
            "spark_keys": DISTINCT,
            "spark_mismatches": 0,
        }
        found = asdict(self)
        return [
            f"{name} is {found[name]:,}, not {value:,}"
            for name, value in wanted.items()
            if found[name] != value
        ]


# --- progress -----------------------------------------------------------------------------------------------


class Steps:
    """The list of steps on standard error: a spinner on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while the block runs, and its seconds when it is done."""
        step = Step(title)
        began = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"        {title} …", markup=False)
        with self._console.status(escape(title)) as status:
            step.changed = lambda: status.update(escape(step.text()))
            try:
                yield step
            except BaseException:
                self._line(began, "[red]failed[/]", step)
                raise
        self._line(began, "", step)

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def _line(self, began: float, mark: str, step: Step) -> None:
        self._console.print(f"{time.monotonic() - began:6.1f} s  {escape(step.text())} {mark}".rstrip())


@dataclass(slots=True)
class Step:
    """A step that is under way. `note` is shown behind its title, at the end too."""

    title: str
    _note: str = ""
    changed: Callable[[], None] = field(default=lambda: None)

    def note(self, text: str) -> None:
        """Say how far it is, or what came out."""
        self._note = text
        self.changed()

    def text(self) -> str:
        """Give the title and the note."""
        return f"{self.title}: {self._note}" if self._note else self.title


# --- processes ----------------------------------------------------------------------------------------------


class WorkerProcess:
    """A real `faust worker` with a data folder of its own. Each start gets a new web port, and so a new address."""

    def __init__(self, name: str, brokers: str) -> None:
        self.name = name
        self.folder = FOLDER / name
        self.log_file = FOLDER / f"{name}.log"
        self.port = 0
        self._environment = environment(brokers)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Its log is appended to."""
        self.port = free_port()
        command = [*app_command(self.folder), "worker", "--loglevel", "info", "--web-port", str(self.port)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        """Raise if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            said = self.log_file.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise DemoError(f"{self.name} ended with code {self._process.returncode}: {said[-1]}")

    def owns(self, address: str) -> bool:
        """Tell whether an address in the leader registry is this process."""
        return address.endswith(f":{self.port}")

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait for the end of one that was asked to stop; kill it if it takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


def app_command(folder: Path) -> list[str]:
    """Give the beginning of a command of the example's app."""
    return [sys.executable, "-m", "faust", "-A", "examples.run_commands", "-D", str(folder)]


def environment(brokers: str) -> dict[str, str]:
    """Give the environment in which the example's app finds the brokers."""
    return {**os.environ, "KAFKA_URL": ";".join(f"kafka://{address}" for address in brokers.split(","))}


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def run(
    name: str,
    command: Sequence[str],
    *,
    deadline_s: float,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run a command to its end, and give the JSON object of its last line, or {}. What it says goes to `{name}.log`.

    Args:
        name: for the log and for errors.
        command: what to run.
        deadline_s: after so many seconds it is killed.
        stdin: its standard input.
        env: its environment; ours by default.
        note: is told each line of its standard error.

    Raises:
        DemoError: it failed or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    log = FOLDER / f"{name}.log"
    try:
        async with asyncio.timeout(deadline_s):
            said = await _follow(process, stdin, log, note)
            code = await process.wait()
    except TimeoutError:
        raise DemoError(f"{name} wasn't done after {deadline_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    lines = said.strip().splitlines() or [""]
    result = _parsed(lines[-1])
    if code != 0 and not result:
        raise DemoError(f"{name} failed with code {code}: {_last_line(log)}")
    return result


async def _follow(
    process: asyncio.subprocess.Process, stdin: bytes, log: Path, note: Callable[[str], None] | None
) -> str:
    """Feed a process and write down what it says; give its standard output."""
    source, out, err = process.stdin, process.stdout, process.stderr
    if source is None or out is None or err is None:
        raise AssertionError("all three are pipes")

    async def feed() -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            source.write(stdin)
            await source.drain()
            source.close()

    async def listen() -> None:
        with log.open("ab") as file:
            while chunk := await err.read(65_536):
                file.write(chunk)
                file.flush()
                lines = chunk.decode(errors="replace").strip().splitlines()
                if note is not None and lines:
                    note(lines[-1].strip())

    _, _, said = await asyncio.gather(feed(), listen(), out.read())
    with log.open("ab") as file:
        file.write(said)
    return said.decode(errors="replace")


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# --- what is seen from outside ------------------------------------------------------------------------------


class TopicReader:
    """Reads a topic from its start, read committed, as far as it goes at each call."""

    def __init__(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        self._consumer = consumer
        self._partitions = partitions

    @classmethod
    async def open(cls, brokers: str, topic: str, partitions: int, stack: AsyncExitStack) -> TopicReader:
        """Make a reader that is closed with the stack."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=brokers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        stack.push_async_callback(consumer.stop)
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(parts)
        return cls(consumer, parts)

    async def ends(self) -> dict[TopicPartition, int]:
        """Give each partition's last stable offset."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets(self._partitions)
        return found

    async def new_records(self) -> list[Any]:
        """Give what was committed since the last call."""
        ends = await self.ends()
        records: list[Any] = []
        while any([await self._consumer.position(part) < end for part, end in ends.items()]):
            for batch in (await self._consumer.getmany(timeout_ms=50)).values():
                records += batch
        return records


class View:
    """The job as a client of the broker sees it: the runs, who owns what, and how far the group is."""

    def __init__(
        self, admin: AIOKafkaAdminClient, commands: TopicReader, runs: TopicReader, owners: TopicReader
    ) -> None:
        self.runs: Counter[str] = Counter()
        self._admin = admin
        self._commands = commands
        self._runs = runs
        self._owners = owners
        self._addresses: dict[int, tuple[int, str]] = {}

    @classmethod
    async def open(cls, brokers: str, stack: AsyncExitStack) -> View:
        """Connect; everything is closed with the stack. The registry has to be there."""
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
        await admin.start()
        stack.push_async_callback(admin.close)
        return cls(
            admin,
            await TopicReader.open(brokers, INPUT, PARTITIONS, stack),
            await TopicReader.open(brokers, OUTPUT, PARTITIONS, stack),
            await TopicReader.open(brokers, OWNERS, 1, stack),
        )

    async def count_runs(self) -> int:
        """Read on in the output, and give the number of runs so far."""
        self.runs.update(record.key.decode() for record in await self._runs.new_records())
        return self.runs.total()

    async def count_commands(self) -> int:
        """Give the number of commands that are on the broker."""
        return sum((await self._commands.ends()).values())

    async def owners(self) -> dict[int, str]:
        """Give the address of each partition's owner; the newest epoch counts."""
        for record in await self._owners.new_records():
            owner = json.loads(record.value)
            known_epoch, _ = self._addresses.get(owner["partition"], (0, ""))
            if owner["epoch"] > known_epoch:
                self._addresses[owner["partition"]] = owner["epoch"], owner["address"]
        return {partition: address for partition, (_, address) in self._addresses.items()}

    async def lag(self) -> dict[int, int]:
        """Give how many commands of each partition aren't committed as handled."""
        ends = await self._commands.ends()
        try:
            committed = await self._admin.list_consumer_group_offsets(f"{APP}-actors", partitions=list(ends))
        except KafkaError:  # the coordinator moves: ask again
            committed = {}
        offsets = {part: max(0, found.offset) for part, found in committed.items()}
        return {part.partition: end - offsets.get(part, 0) for part, end in ends.items()}


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, workers: Iterable[WorkerProcess]
) -> None:
    """Wait for a condition while the workers run.

    Raises:
        DemoError: it didn't come true in time, or a worker ended.
    """
    end_s = time.monotonic() + DEADLINE_S
    while not await condition():
        for worker in workers:
            worker.check()
        if time.monotonic() > end_s:
            raise DemoError(f"{what}: not within {DEADLINE_S:g} s")
        await asyncio.sleep(POLL_S)


# --- the job ------------------------------------------------------------------------------------------------


def command_lines() -> bytes:
    """Give the input of the console producer: key, separator, value; one line a command.

    A third of the repeats follows at once, a third a little later, a third at any time until the end: they meet the first
    request in the same commit, in one of the next, or long after it.
    """
    chance = random.Random(4)
    order = [(float(number), number) for number in range(DISTINCT)]
    for number in range(DISTINCT):
        gap = (0.5, chance.uniform(1, 2_000), chance.uniform(0, DISTINCT - number))[number % 3]
        order.append((number + gap, number))
    lines = (
        f'resize-{number:05d}|{{"command": "resize", "args": ["image-{number:05d}.png", "800x600"]}}\n'
        for _, number in sorted(order)
    )
    return "".join(lines).encode()


async def send_commands(brokers: str) -> None:
    """Send all commands with Kafka's console producer."""
    arguments = ["--bootstrap-server", brokers, "--topic", INPUT, "--request-timeout-ms", "30000"]
    arguments += ["--property", "parse.key=true", "--property", "key.separator=|"]
    command = tool_command(CONSOLE_PRODUCER, *arguments)
    await run("console-producer", command, deadline_s=DEADLINE_S, stdin=command_lines())


async def start_kafka(step: Step, stack: AsyncExitStack) -> str:
    """Start a broker in our folder, or take the cluster of KAFKA_BROKERS; give the bootstrap list."""
    existing = os.environ.get("KAFKA_BROKERS", "").strip()
    await asyncio.to_thread(ensure_jars)
    if existing:
        step.note(f"KAFKA_BROKERS={existing}")
        return existing
    folder = FOLDER / "kafka"
    # The callback comes first: a start that is cut off has brokers too.
    stack.push_async_callback(asyncio.to_thread, take_down, folder)
    cluster = await asyncio.to_thread(Cluster.up, folder)
    step.note(f"{KAFKA_VERSION} at {cluster.bootstrap}")
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
    ours = {INPUT, OUTPUT, CHANGELOG, OWNERS}
    listed = await asyncio.to_thread(run_tool, TOPIC_COMMAND, "--bootstrap-server", brokers, "--list")
    taken = sorted(ours & set(listed.stdout.split()))
    if taken:
        raise DemoError(
            f"the cluster at {brokers} has {', '.join(taken)} already, and the demo counts on empty ones: "
            "delete them with kafka-topics.sh --delete, or unset KAFKA_BROKERS"
        )
    if os.environ.get("KAFKA_BROKERS", "").strip():
        stack.push_async_callback(asyncio.to_thread, delete_topics, brokers, ours)
    for topic in (INPUT, OUTPUT):
        create = ["--create", "--topic", topic, "--partitions", str(PARTITIONS)]
        await asyncio.to_thread(run_tool, TOPIC_COMMAND, "--bootstrap-server", brokers, *create)


def delete_topics(brokers: str, topics: Iterable[str]) -> None:
    """Delete the topics that the demo and its app made."""
    names = "|".join(sorted(topics))
    run_tool(TOPIC_COMMAND, "--bootstrap-server", brokers, "--delete", "--if-exists", "--topic", names)


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
    """Wait until all partitions are owned by these processes, and each of them owns some."""

    async def all_own() -> bool:
        owners = await view.owners()
        held = [sum(worker.owns(address) for address in owners.values()) for worker in workers]
        step.note(
            ", ".join(f"{worker.name} owns {count}" for worker, count in zip(workers, held, strict=True))
        )
        return sum(held) == PARTITIONS and all(held)

    await until(all_own, "both workers own partitions", workers)


async def kill_while_busy(
    view: View, victim: WorkerProcess, workers: Sequence[WorkerProcess], step: Step
) -> None:
    """`kill -9` in the middle of the work, proven by the commands that its partitions are left with.

    Raises:
        DemoError: it wasn't busy.
    """
    owners = await view.owners()
    partitions = [number for number, address in owners.items() if victim.owns(address)]

    async def waiting() -> int:
        lag = await view.lag()
        return sum(lag[number] for number in partitions)

    async def busy() -> bool:
        runs = await view.count_runs()
        step.note(f"{runs:,} runs")
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


async def audit(brokers: str, steps: Steps) -> tuple[int, int]:
    """Rebuild the state with Spark and validate the exports; give keys and mismatches."""
    with steps.step("Spark rebuilds the state from the changelog") as step:
        rebuilt = await spark("rebuild", brokers, step, "--to", str(FOLDER / "rebuild"))
        step.note(f"{rebuilt['keys']:,} keys of {rebuilt['records']:,} records")
    with steps.step("Spark validates the exports, key by key") as step:
        report = FOLDER / "validate.json"
        found = await spark("validate", brokers, step, "--against", str(EXPORTS), "--json", str(report))
        step.note(f"{found['keys']:,} keys, {found['mismatches']:,} mismatches")
    if rebuilt["keys"] != found["keys"]:
        raise DemoError(f"the rebuild has {rebuilt['keys']:,} keys, the validation saw {found['keys']:,}")
    return found["keys"], found["mismatches"]


async def work(brokers: str, steps: Steps, stack: AsyncExitStack) -> View:
    """Let two workers handle all commands, and kill one of them; give the view of the result."""
    with steps.step("two workers start") as step:
        workers = await start_workers(brokers, stack)
        view = await open_view(brokers, workers, stack)
        await until_all_own(view, workers, step)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send_commands(brokers))
        victim = workers[1]
        with steps.step(
            f"{COMMANDS:,} commands are sent, {victim.name} gets kill -9 while it is busy"
        ) as step:
            await kill_while_busy(view, victim, workers[:1], step)
        victim.start()
        with steps.step("all commands are sent"):
            await sending
    with steps.step(f"{victim.name} is started again, the rest is handled") as step:
        await until_done(view, workers, step)
    with steps.step("both workers own partitions again") as step:
        await until_all_own(view, workers, step)
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
    keys, mismatches = await audit(brokers, steps)
    with steps.step("the runs are counted, read committed") as step:
        runs = await view.count_runs()
        step.note(f"{runs:,} runs of {len(view.runs):,} commands")
    wanted = {f"resize-{number:05d}" for number in range(DISTINCT)}
    return Outcome(
        commands=await view.count_commands(),
        distinct=DISTINCT,
        runs=runs,
        run_twice=sum(count - 1 for count in view.runs.values()),
        never_run=len(wanted - view.runs.keys()),
        spark_keys=keys,
        spark_mismatches=mismatches,
        seconds=0.0,
    )


# --- start and end ------------------------------------------------------------------------------------------


@contextmanager
def fresh_folder() -> Iterator[None]:
    """Take the folder for this process, ending and deleting what an earlier demo left in it.

    Raises:
        DemoError: another demo runs in it.
    """
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {FOLDER}: wait for its end") from None
        take_down(FOLDER / "kafka")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        yield


async def guarded(steps: Steps) -> Outcome:
    """Do everything and stop what was started, whatever happens. A signal cancels the work; a second one changes nothing."""
    loop, task, stack = asyncio.get_running_loop(), asyncio.current_task(), AsyncExitStack()
    if task is None:
        raise AssertionError("a coroutine runs in a task")
    stopped: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not stopped:
            task.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await demo(steps, stack)
    except asyncio.CancelledError:
        raise DemoError(f"stopped by {stopped[0].name if stopped else 'cancellation'}") from None
    finally:
        stopped.append(signal.SIGTERM)
        with steps.step("everything that was started stops"):
            await stack.aclose()


def main() -> int:
    """Run the demo; give the exit code."""
    began = time.monotonic()
    steps = Steps()
    try:
        with fresh_folder():
            outcome = asyncio.run(guarded(steps))
            shutil.rmtree(FOLDER / "kafka", ignore_errors=True)
    except (DemoError, LocalKafkaError, KafkaError) as failure:
        steps.say(f"the demo failed: {failure}; logs are in {FOLDER}")
        return 1
    seconds = round(time.monotonic() - began, 1)
    outcome = Outcome(**{**asdict(outcome), "seconds": seconds})
    for problem in outcome.problems():
        steps.say(f"the demo failed: {problem}; logs are in {FOLDER}")
    print(json.dumps(asdict(outcome)))
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
