"""Three brokers: a short crash run, and a start beside a broker that hangs.

`make crash` runs all faults, longer, at a higher rate, and lets Spark validate the stores at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.local_kafka.settings import HOST
from dev.kafka import Cluster, alive_brokers
from tests.crash.faults import QUICK
from tests.crash.harness import run
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, unique

PARTITIONS = 6
START_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers."""
    with Cluster.up(tmp_path_factory.mktemp("kafka"), brokers=3) as cluster:
        yield cluster


@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_under_faults(cluster: Cluster, tmp_path: Path) -> None:
    outcome = await run(cluster, tmp_path, QUICK, inputs=5_000, rate=100.0, seed=1, pause_s=0.25)
    # How soon each fault is over is for `make crash`: other tests run beside this one.
    assert outcome.flaws == {}, outcome


async def owns_all(worker: WorkerProcess) -> None:
    def does() -> bool:
        assert worker.is_running(), worker.log()
        return worker.log().count("actor once owns") == PARTITIONS

    await eventually(does, deadline_s=START_S, what=worker.log)


@pytest.mark.nightly
async def test_workers_start_beside_a_broker_that_hangs(cluster: Cluster, tmp_path: Path) -> None:
    hanging, other, *_ = cluster.broker_ids
    workers = []
    for when in ("soon", "late"):
        name = unique(when)
        await make_topics(cluster.bootstrap, f"{name}-in", f"{name}-out", partitions=PARTITIONS, replicas=3)
        workers.append(WorkerProcess("tests.kafka.apps.once_app", cluster.bootstrap, tmp_path / when, APP_NAME=name))
    soon, late = workers

    def is_given_up() -> bool:
        port = int(cluster.address(other).rpartition(":")[2])
        return hanging not in {endpoint.id for endpoint in alive_brokers(HOST, port)}

    cluster.pause(hanging)
    try:
        soon.start()
        await eventually(is_given_up)
        late.start()
        await asyncio.gather(*(owns_all(worker) for worker in workers))
        named = f"broker {cluster.address(hanging)} can't be reached"
        assert any(named in worker.log() for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
        cluster.resume(hanging)
        cluster.start(hanging)
