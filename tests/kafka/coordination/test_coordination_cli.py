"""`faust -A … locks` as an operator calls it: real processes, a real broker, a worker of the service."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from actors._core.partitioner import partition_for
from actors.coordination import Coordination
from actors.coordination.messages import MAX_DATA
from actors.coordination.service.coordinator import PARTITIONS
from tests.kafka import forked
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, unique

MODULE = "actors.coordination.app"
NOBODY_LISTENS = "127.0.0.1:1"
TIMEOUT_S = 60.0
"""Every command has ended by then."""

Done = subprocess.CompletedProcess[str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """The lock service, with a worker and a client."""

    name: str
    brokers: str
    folder: Path
    worker: WorkerProcess
    client: Coordination

    def environment(self, *, brokers: str | None = None, name: str | None = None) -> Mapping[str, str]:
        """The environment of a command."""
        addresses = ";".join(f"kafka://{broker}" for broker in (brokers or self.brokers).split(","))
        name = name or self.name
        return {**os.environ, "KAFKA_URL": addresses, "COORDINATION_APP": name, "APP_NAME": name}

    def command(self, *arguments: str) -> list[str]:
        """The command `faust -A … arguments`, in a process of its own."""
        return [sys.executable, "-m", "faust", "-A", MODULE, *arguments]

    async def faust(self, *arguments: str, stdin: bytes = b"", module: str = MODULE, **where: str) -> Done:
        """Call `faust -A …` without a terminal."""
        return await asyncio.to_thread(
            forked.faust,
            *("-A", module, *arguments),
            environment=self.environment(**where),
            stdin=stdin,
            timeout_s=TIMEOUT_S,
        )

    async def said(self, *arguments: str, **more: Any) -> str:
        """Call a command that has to succeed, and give what it printed."""
        done = await self.faust(*arguments, **more)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    async def json(self, *arguments: str, **more: Any) -> Any:
        """Call a command that has to succeed with `--json`, and give what it printed."""
        return json.loads(await self.said("--json", *arguments, **more))

    async def names(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """What `locks list` shows, by name."""
        return {row["name"]: row for row in (await self.json("locks", "list", *arguments))["names"]}

    async def until_up(self) -> None:
        """Wait until the service answers."""
        assert (await self.client.look("anything")).last_token == 0

    async def until_waiting(self, name: str, count: int) -> None:
        """Wait until so many wait for a lock."""

        async def are_waiting() -> bool:
            return (await self.client.look(name)).waiting == count

        await eventually(are_waiting)


@pytest.fixture(scope="module")
async def service(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    name, folder = unique("locks-cli"), tmp_path_factory.mktemp("locks-cli") / "worker"
    worker = WorkerProcess(MODULE, brokers, folder, COORDINATION_APP=name).start()
    try:
        async with Coordination(brokers, app=name, call_timeout=60) as client:
            running = Service(name, brokers, folder, worker, client)
            await running.until_up()
            yield running
    finally:
        worker.kill()


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A call that waits while the block runs, and is withdrawn at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def refused(done: Done, code: int, *parts: str) -> None:
    """Check that a command ended with `code` and one clear error, without a traceback."""
    assert done.returncode == code, done
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.splitlines() == errors
    for part in parts:
        assert part in errors[0], done.stderr


def cells(table: str, name: str) -> list[list[str]]:
    """The rows of a table that begin with a name, split at two spaces."""
    rows = [line.strip() for line in table.splitlines() if line.split()[:1] == [name]]
    return [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]


# --- help and usage ------------------------------------------------------------------------------------------------


async def test_help_as_a_newcomer_calls_it(service: Service) -> None:
    root, locks = await asyncio.gather(service.said("--help"), service.said("locks", "--help"))
    assert "\n  locks " in root
    for part in ("list ", "show ", "break ", "set ", "faust -A actors.coordination.app locks break "):
        assert part in locks


async def test_bad_arguments_are_usage_errors(service: Service) -> None:
    for arguments, part in (
        (["locks", "set", "x", "1", "--delete"], "--delete"),
        (["locks", "set", "x"], "VALUE"),
        (["locks", "set", "x", os.fsdecode(b"\xff")], "isn't UTF-8 text"),
        (["locks", "break", os.fsdecode(b"\xff"), "--yes"], "isn't UTF-8 text"),
    ):
        refused(await service.faust(*arguments), 2, part)


async def test_an_app_without_the_service_says_so(service: Service) -> None:
    for command in (["locks", "list"], ["locks", "break", "x", "--yes"], ["locks", "set", "x", "1"]):
        done = await service.faust(*command, module="tests.kafka.apps.cli_app")
        refused(done, 1, f"app {service.name} runs no coordination service", "-A actors.coordination.app")


async def test_a_service_that_was_never_started_and_a_broker_that_is_away(service: Service) -> None:
    for command in (["locks", "list"], ["locks", "set", "x", "1"]):
        refused(await service.faust(*command, name=unique("never")), 1, "was never started", "Start a worker")
        refused(await service.faust(*command, brokers=NOBODY_LISTENS), 1, NOBODY_LISTENS, "`broker`")


# --- locks list and show -------------------------------------------------------------------------------------------


async def test_list_and_show_what_is_held_and_who_waits(service: Service) -> None:
    client = service.client
    printer = await client.acquire("see-printer", ttl=600, owner="ada\x1b[31m", data="10.0.0.1 [b]")
    pool = [
        await client.acquire("see-pool", ttl=600, owner=owner, permits=permits, limit=4)
        for owner, permits in (("p1", 1), ("p2", 2))
    ]
    readers = [await client.acquire("see-readers", ttl=600, owner=owner, shared=True) for owner in ("r1", "r2")]
    async with client.lock("see-free", ttl=60) as freed:
        pass
    await client.put("see-node", "a node")
    async with (
        client.join("see-group", "worker-1", data="here", ttl=600),
        beside(client.acquire("see-printer", ttl=60, timeout=300, owner="bob", data="second")) as first,
        beside(client.barrier("see-barrier", 2, timeout=300, party="early")) as early,
    ):
        await service.until_waiting("see-printer", 1)
        async with beside(client.acquire("see-printer", ttl=60, timeout=300, owner="cid")) as second:
            await service.until_waiting("see-printer", 2)
            await eventually(lambda: is_listed(service, "see-barrier"))
            await check_list(service, printer.token, freed.token, [lease.token for lease in readers])
            await check_show(service, printer.token)
            assert await client.barrier("see-barrier", 2) == await early == 1
            await printer.release()
            await (await asyncio.wait_for(first, 30)).release()
            await (await asyncio.wait_for(second, 30)).release()
    for lease in [*pool, *readers]:
        await lease.release()
    held = await service.names("--held", "--prefix", "see-")
    assert held == {}
    assert "no locks to show" in await service.said("locks", "list", "--held", "--prefix", "see-")


async def is_listed(service: Service, name: str) -> bool:
    return name in await service.names("--all")


async def check_list(service: Service, token: int, freed_token: int, reader_tokens: list[int]) -> None:
    rows = await service.names("--prefix", "see-")
    assert list(rows) == ["see-free", "see-pool", "see-printer", "see-readers"]
    printer = rows["see-printer"]
    (holder,) = printer["holders"]
    left_ms = holder.pop("left_ms")
    assert 0 < left_ms <= 600_000
    assert holder.pop("expires_at_ms") > time.time() * 1000
    assert holder == {
        "owner": "ada\x1b[31m",
        "token": token,
        "shared": False,
        "permits": 1,
        "count": 1,
        "data": "10.0.0.1 [b]",
        "over": False,
    }
    assert (printer["kind"], printer["limit"], printer["held"], printer["waiting"]) == ("lock", 1, True, 2)
    assert (printer["last_token"], printer["uses"]) == (token, ["lock"])
    pool = rows["see-pool"]
    assert (pool["kind"], pool["limit"]) == ("semaphore", 4)
    assert [(one["owner"], one["permits"]) for one in pool["holders"]] == [("p1", 1), ("p2", 2)]
    assert [(one["token"], one["shared"]) for one in rows["see-readers"]["holders"]] == [
        (token, True) for token in reader_tokens
    ]
    free = rows["see-free"]
    assert (free["held"], free["holders"], free["last_token"]) == (False, [], freed_token)
    assert list(await service.names("--held", "--prefix", "see-")) == ["see-pool", "see-printer", "see-readers"]
    everything = await service.names("--all", "--prefix", "see-")
    assert {name: row["uses"] for name, row in everything.items() if name not in rows} == {
        "see-node": ["node"],
        "see-group": ["group"],
        "see-barrier": ["barrier"],
    }
    table = await service.said("locks", "list", "--all", "--prefix", "see-")
    assert f"Locks of {service.name}, as committed at 20" in table
    ((_, kind, owner, shown_token, left, way, data, waiting, last),) = cells(table, "see-printer")
    assert (kind, owner, shown_token, way) == ("lock", "ada\\x1b[31m", str(token), "alone")
    assert (data, waiting, last) == ("10.0.0.1 [b]", "2", str(token))
    assert left.endswith(" s")
    assert [row[5] for row in cells(table, "see-pool")] == ["1 of 4", "2 of 4"]
    assert [row[1] for row in cells(table, "see-pool")] == ["semaphore of 4"] * 2
    assert [row[5] for row in cells(table, "see-readers")] == ["shared"] * 2
    assert cells(table, "see-free")[0][2] == "(free)"
    assert cells(table, "see-node")[0][1] == "node"


async def check_show(service: Service, token: int) -> None:
    shown = await service.json("locks", "show", "see-printer")
    assert shown["app"] == service.name
    assert [(one["owner"], one["data"], one["over"]) for one in shown["waiters"]] == [
        ("bob", "second", False),
        ("cid", "", False),
    ]
    assert all(0 <= one["waited_ms"] < 120_000 and 0 < one["left_ms"] <= 300_000 for one in shown["waiters"])
    assert (shown["node"], shown["members"], shown["watchers"]) == (None, [], 0)
    lines = (await service.said("locks", "show", "see-printer")).splitlines()
    assert lines[0].startswith("see-printer: lock, as committed at 20")
    assert "  lock      held, last token" in lines[2]
    assert f"holder  ada\\x1b[31m, token {token}, alone, left " in lines[3]
    assert lines[3].endswith('data "10.0.0.1 [b]"')
    assert "1. bob, alone, waits for " in lines[4]
    assert lines[4].endswith('data "second"')
    assert "2. cid, alone, waits for " in lines[5]
    node = await service.json("locks", "show", "see-node")
    assert (node["node"]["data"], node["node"]["version"], node["last_token"]) == ("a node", 1, 0)
    group = await service.json("locks", "show", "see-group")
    assert [(one["member"], one["data"]) for one in group["members"]] == [("worker-1", "here")]
    barrier = (await service.json("locks", "show", "see-barrier"))["barrier"]
    assert (barrier["parties"], barrier["opened"]) == (2, 0)
    assert [one["party"] for one in barrier["waiting"]] == ["early"]
    for name, part in (("see-node", 'data    "a node"'), ("see-group", "worker-1"), ("see-barrier", "1 of 2 wait")):
        assert part in await service.said("locks", "show", name)


async def test_show_of_a_name_that_nobody_used(service: Service) -> None:
    neighbours = (f"neighbour-{number}" for number in itertools.count())
    home = partition_for(b"nowhere", PARTITIONS)
    neighbour = next(name for name in neighbours if partition_for(name.encode(), PARTITIONS) == home)
    await service.client.put(neighbour, "in the same partition")
    refused(await service.faust("locks", "show", "nowhere"), 1, "'nowhere'", service.name, "locks list --all")


# --- locks break ---------------------------------------------------------------------------------------------------


async def test_break_without_a_terminal_needs_yes(service: Service) -> None:
    async with service.client.lock("unasked", ttl=60) as lease:
        refused(await service.faust("locks", "break", "unasked"), 2, "--yes")
        assert (await service.client.look("unasked")).holders[0].token == lease.token


async def test_break_takes_it_from_its_holder_and_serves_who_waits(service: Service) -> None:
    held = await service.client.acquire("break-it", ttl=3)
    async with beside(service.client.acquire("break-it", ttl=60, timeout=120, owner="next")) as waiting:
        await service.until_waiting("break-it", 1)
        said = await service.said("locks", "break", "break-it", "--yes")
        after = await asyncio.wait_for(waiting, 30)
    assert after.token > held.token
    assert f"(token {held.token})" in said.splitlines()[0]
    assert "its holders notice at their next renewal; only tokens stop them earlier" in said
    assert "1 waited" in said
    await asyncio.wait_for(held.lost.wait(), 30)
    told = await service.json("locks", "break", "break-it", "--yes")
    assert [(one["owner"], one["token"]) for one in told["broken"]] == [("next", after.token)]
    assert "nobody holds break-it" in await service.said("locks", "break", "break-it", "--yes")
    await after.release()


async def test_break_of_a_lock_that_nobody_ever_held(service: Service) -> None:
    refused(await service.faust("locks", "break", "nowhere", "--yes"), 1, "'nowhere'", "nobody ever held it")
    assert "nowhere" not in await service.names("--all")


class Terminal:
    """A command with a terminal to ask on."""

    def __init__(self, service: Service, *arguments: str) -> None:
        self._end, other = pty.openpty()
        self.process = subprocess.Popen(
            service.command(*arguments),
            cwd=ROOT,
            env=service.environment(),
            stdin=other,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(other)

    async def asked(self) -> str:
        """What it said up to its question."""

        def read() -> str:
            said = ""
            assert self.process.stderr is not None
            while not said.endswith("[y/N]:"):
                char = self.process.stderr.read(1)
                assert char, said
                said += char
            return said

        return await asyncio.wait_for(asyncio.to_thread(read), TIMEOUT_S)

    async def answer(self, text: str) -> tuple[int, str, str]:
        """Type an answer, and give the exit code and what else it said."""
        os.write(self._end, f"{text}\n".encode())
        stdout, stderr = await asyncio.to_thread(self.process.communicate, timeout=TIMEOUT_S)
        # The question's last character goes to stdout: `input` needs it to know where the line begins.
        return self.process.returncode, stdout.strip(), stderr

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        os.close(self._end)


@pytest.mark.nightly
async def test_break_asks_on_a_terminal(service: Service) -> None:
    held = await service.client.acquire("ask-first", ttl=120, owner="ada", data="room 4")
    with contextlib.closing(Terminal(service, "locks", "break", "ask-first")) as terminal:
        assert f'ada, token {held.token}, data "room 4"' in await terminal.asked()
        code, stdout, stderr = await terminal.answer("n")
    assert (code, stdout) == (1, "")
    assert "wasn't broken" in stderr
    assert (await service.client.look("ask-first")).holders[0].token == held.token
    with contextlib.closing(Terminal(service, "locks", "break", "ask-first")) as terminal:
        await terminal.asked()
        code, stdout, _ = await terminal.answer("y")
    assert code == 0
    assert f"broken: ask-first, which was held by ada (token {held.token})" in stdout
    assert (await service.client.look("ask-first")).holders == ()


@pytest.mark.nightly
async def test_break_spares_who_got_it_while_it_asked(service: Service) -> None:
    held = await service.client.acquire("moves-on", ttl=120, owner="ada")
    with contextlib.closing(Terminal(service, "locks", "break", "moves-on")) as terminal:
        await terminal.asked()
        await held.release()
        async with service.client.lock("moves-on", ttl=120, owner="bob") as lease:
            code, stdout, stderr = await terminal.answer("y")
            assert lease.is_held
            assert (await service.client.look("moves-on")).holders[0].owner == "bob"
    assert (code, stdout) == (1, "")
    assert f"bob (token {lease.token})" in stderr
    assert "wasn't broken" in stderr


# --- locks set -----------------------------------------------------------------------------------------------------


async def test_a_node_is_set_shown_and_deleted(service: Service) -> None:
    assert await service.said("locks", "set", "conf-a", "one", "--version", "0") == "conf-a is at version 1\n"
    conflict = await service.faust("locks", "set", "conf-a", "two", "--version", "0")
    refused(conflict, 1, "version 0 was expected", "the node has version 1")
    assert await service.json("locks", "set", "conf-a", "two", "--version", "1") == {"name": "conf-a", "version": 2}
    refused(await service.faust("locks", "set", "conf-a", "three", "--version", "1"), 1, "has version 2")
    refused(await service.faust("locks", "set", "conf-a", "--delete", "--version", "1"), 1, "has version 2")
    node = (await service.json("locks", "show", "conf-a"))["node"]
    assert (node["data"], node["version"], node["session"], node["over"]) == ("two", 2, None, False)
    async with service.client.session(ttl=600) as session:
        await session.put("conf-b", "alive\n")
        node = (await service.json("locks", "show", "conf-b"))["node"]
        assert (node["data"], node["version"], node["session"]) == ("alive\n", 1, session.id)
        assert 'data    "alive\\n"' in await service.said("locks", "show", "conf-b")
        listed = await service.names("--all", "--prefix", "conf-")
        assert {name: row["uses"] for name, row in listed.items()} == {"conf-a": ["node"], "conf-b": ["node"]}
    assert await service.said("locks", "set", "conf-a", "--delete", "--version", "2") == (
        "conf-a is deleted, at version 3\n"
    )
    refused(await service.faust("locks", "set", "conf-a", "--delete"), 1, "no node 'conf-a'", "locks list --all")
    assert "deleted, version 3" in await service.said("locks", "show", "conf-a")


@pytest.mark.nightly
async def test_set_from_stdin_keeps_all_but_one_newline(service: Service) -> None:
    text = "first\n\n  zwölf\t\n"
    await service.said("locks", "set", "piped", "-", stdin=text.encode())
    assert await service.client.get("piped") == (text[:-1], 1)
    await service.said("locks", "set", "piped", "--", "-5")
    assert await service.client.get("piped") == ("-5", 2)
    await service.said("locks", "set", "piped", "-", stdin=b"x" * MAX_DATA + b"\n")
    for bad, part in ((b"\xff\xfe", "byte 0"), (b"x" * (MAX_DATA + 1), str(MAX_DATA))):
        refused(await service.faust("locks", "set", "piped", "-", stdin=bad), 2, part)
    assert await service.client.get("piped") == ("x" * MAX_DATA, 3)
    await service.said("locks", "set", "piped", "-")
    assert await service.client.get("piped") == ("", 4)


# --- without a worker ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_without_a_worker_what_is_committed_is_shown_and_what_asks_ends_in_time(service: Service) -> None:
    client = service.client
    short = await client.acquire("idle-short", ttl=1, owner="gone")
    await client.acquire("idle-long", ttl=3000, owner="stays")
    await client.put("idle-node", "kept")
    async with client.session(ttl=1) as session:
        await session.put("idle-ephemeral", "goes")
        service.worker.kill()
        try:
            await asyncio.wait_for(short.lost.wait(), 30)
            await asyncio.wait_for(session.lost.wait(), 30)
            await check_without_worker(service)
        finally:
            service.worker.start()
            await service.until_up()
    assert (await client.look("idle-short")).holders == ()
    await client.break_lock("idle-long")


async def check_without_worker(service: Service) -> None:
    async def listed() -> dict[str, dict[str, Any]]:
        # Not by `names`: with a lease that is over, the command also remarks on it.
        done = await service.faust("--json", "locks", "list", "--prefix", "idle-")
        assert done.returncode == 0, done
        return {row["name"]: row for row in json.loads(done.stdout)["names"]}

    async def is_over() -> bool:
        return (await listed())["idle-short"]["holders"][0]["over"]

    await eventually(is_over)
    rows = await listed()
    assert [(name, row["held"]) for name, row in rows.items()] == [("idle-long", True), ("idle-short", False)]
    assert rows["idle-short"]["holders"][0]["left_ms"] == 0
    assert list(await service.names("--held", "--prefix", "idle-")) == ["idle-long"]
    table = await service.faust("locks", "list", "--prefix", "idle-")
    assert cells(table.stdout, "idle-short")[0][4] == "over"
    assert table.stderr.startswith("over: by the clock")
    assert "left over" in await service.said("locks", "show", "idle-short")
    assert (await service.json("locks", "show", "idle-node"))["node"]["data"] == "kept"
    assert (await service.json("locks", "show", "idle-ephemeral"))["node"] is None
    for command in (
        ["locks", "break", "idle-long", "--yes"],
        ["locks", "set", "idle-node", "new"],
    ):
        refused(await service.faust(*command, "--timeout", "2"), 1, "no answer within 2 s", "worker")
    assert (await listed())["idle-long"]["held"]
