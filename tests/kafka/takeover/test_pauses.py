"""A pause with real workers: seen by all, kept through a kill and a takeover, ended without a loss or a double."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors._core.partitioner import partition_for
from dev.kafka import free_port
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique
from tests.kafka.runtime.test_exactly_once import MODULE, PARTITIONS, all_echoed, echoed, expected_echo, records

NOBODY_LISTENS = "127.0.0.1:1"
PAGE = {"Accept": "application/json"}
JSON = {"Content-Type": "application/json"}


class Group:
    """Workers of the counter, and its command line."""

    def __init__(self, brokers: str, folder: Path, workers: list[WorkerProcess]) -> None:
        self.brokers, self.folder, self.workers = brokers, folder, workers
        self.name = unique("pause")
        self.ports: list[int] = []

    def start(self) -> WorkerProcess:
        number = len(self.ports)
        self.ports.append(free_port())
        worker = WorkerProcess(
            MODULE,
            self.brokers,
            self.folder / f"w{number}",
            APP_NAME=self.name,
            WEB_PORT=str(self.ports[number]),
        )
        self.workers.append(worker.start(web=True))
        return worker

    def faust(self, *arguments: str, brokers: str | None = None) -> subprocess.CompletedProcess[str]:
        environment: Mapping[str, str] = {"APP_NAME": self.name, "KAFKA_URL": f"kafka://{brokers or self.brokers}"}
        arguments = ("-A", MODULE, "-D", str(self.folder / "cli"), *arguments)
        return forked.faust(*arguments, environment=environment)

    def said(self, *arguments: str) -> Any:
        done = self.faust("--json", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def states(self) -> dict[int, tuple[str, str, int]]:
        """By partition, the owner's address, the state and the lag."""
        rows = self.said("actors")
        return {
            row["partition"]: (row["owner"]["address"] if row["owner"] else "", row["state"], row["lag"])
            for row in rows
        }

    def are(self, state: str, owners: int) -> bool:
        """Whether all partitions are in a state, with so many owners."""
        found = self.states().values()
        return {one[1] for one in found} == {state} and len({one[0] for one in found}) == owners

    async def http(self, method: str, path: str, data: Any = None, **headers: str) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.ports[-1]}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=data, headers=PAGE | headers, allow_redirects=False) as reply,
        ):
            return reply.status, (
                await reply.json(content_type=None) if "json" in reply.content_type else await reply.text()
            )


@pytest.mark.nightly
async def test_a_pause_outlives_a_kill_and_a_takeover_and_nothing_is_lost(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    group = Group(brokers, tmp_path, workers)
    name = group.name
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS)
    never_ran = group.faust("pause", "count")
    assert never_ran.returncode == 1
    assert "isn't on the broker: start a worker" in never_ran.stderr
    first, second = group.start(), group.start()
    sent = records(600)
    await send(brokers, f"{name}-in", sent[:300], partitions=PARTITIONS)
    await all_echoed(brokers, name, sent[:300], first, second)
    await eventually(lambda: group.are("running", 2), what=group.states)

    assert group.said("pause", "count") == {
        "actor": "count",
        "partition": None,
        "partitions": PARTITIONS,
        "is_paused": True,
    }
    await eventually(lambda: group.are("paused", 2), what=group.states)
    await send(brokers, f"{name}-in", sent[300:], partitions=PARTITIONS)
    assert sum(lag for _, _, lag in group.states().values()) == 300
    await eventually(lambda: "is paused on" in first.log() and "is paused on" in second.log())

    first.kill()
    await eventually(lambda: group.are("paused", 1), what=group.states)
    third = group.start()
    await eventually(lambda: group.are("paused", 2), what=group.states)
    assert await echoed(brokers, name) == expected_echo(sent[:300])
    status, health = await group.http("GET", "/health")
    assert (status, health["status"], health["missing"]) == (200, "ok", [])
    assert [one["actor"] for one in health["paused"]] == ["count"]
    _, metrics = await group.http("GET", "/metrics")
    assert f'faust_actors_task_paused{{actor="count",app="{name}",partition=' in metrics

    assert "partition 1: resumed" in group.faust("resume", "count:1").stdout
    of_one = [record for record in sent if partition_for(record[0], PARTITIONS) == 1]
    others = [record for record in sent[:300] if partition_for(record[0], PARTITIONS) == 0]

    async def are_of_one() -> bool:
        return sum(map(len, (await echoed(brokers, name)).values())) >= len(of_one) + len(others)

    await eventually(are_of_one, what=group.states)
    assert await echoed(brokers, name) == expected_echo(of_one + others)
    assert {number: state for number, (_, state, _) in group.states().items()} == {0: "paused", 1: "running"}

    status, said = await group.http("POST", "/dashboard/resume", {"actor": "count"}, Origin="http://evil.example")
    assert status == 403
    status, said = await group.http("POST", "/operations/resume", b'{"where": "count:7"}', **JSON)
    assert (status, said["detail"]) == (400, f"actor count has no partition 7: its input {name}-in has 2, from 0 to 1")
    status, said = await group.http("POST", "/operations/resume", b'{"where": "count"}', **JSON)
    content = {"actor": "count", "partition": None, "partitions": 2, "is_paused": False}
    assert (status, said["content"]) == (200, content)
    await all_echoed(brokers, name, sent, second, third)
    await eventually(lambda: group.are("running", 2), what=group.states)
    records_written = await read_all(brokers, f"{name}-actors-owners")
    assert {record.key for record in records_written if record.key.startswith(b"pause:")} == {
        b"pause:count",
        b"pause:count/1",
    }
    assert second.terminate() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pause", "cuont"), 1, "has no actor 'cuont'. Its actors: count"),
        (("resume", "nothing-like-it"), 1, "has no actor 'nothing-like-it'. Its actors: count"),
        (("pause", "count:x"), 2, "'x' isn't a partition's number. Write ACTOR or ACTOR:PARTITION"),
        (("pause", "count:-1"), 2, "'-1' isn't a partition's number"),
        (("pause", "count:"), 2, "'' isn't a partition's number"),
        (("pause",), 2, "Missing argument 'ACTOR[:PARTITION]'"),
    ],
    ids=str,
)
def test_wrong_arguments(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = Group(brokers, tmp_path, workers).faust(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in " ".join(done.stderr.split())


def test_a_broker_that_is_away(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    done = Group(brokers, tmp_path, workers).faust("pause", "count", brokers=NOBODY_LISTENS)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Check that the broker runs" in done.stderr
