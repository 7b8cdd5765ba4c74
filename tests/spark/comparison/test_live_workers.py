"""`validate --live` against real workers: what they answer over HTTP is what their changelogs say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dev.kafka import free_port
from spark_replay import Workers, kafka, validate_live
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUTS = 3
KEYS = 60


@pytest.fixture(scope="module")
def running(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    name, folder = unique("live"), tmp_path_factory.mktemp("live")
    ports = [free_port(), free_port()]
    workers = [
        WorkerProcess("tests.kafka.apps.query_app", brokers, folder / str(port), APP_NAME=name, WEB_PORT=str(port))
        for port in ports
    ]

    async def begin() -> None:
        await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-accounts", partitions=INPUTS)
        for worker in workers:
            worker.start(web=True)
        await send(
            brokers,
            f"{name}-in",
            [(f"key {number % KEYS}".encode(), f"anywhere {number}".encode()) for number in range(4 * KEYS)],
            partitions=INPUTS,
        )
        await eventually(lambda: sum(worker.log().count(" owns ") for worker in workers) >= 2 * INPUTS)

    try:
        asyncio.run(begin())
        yield name, [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.nightly
@pytest.mark.parametrize(("store", "placement", "keys"), [("counts", "key", KEYS), ("anywhere", "task", 4 * KEYS)])
def test_workers_answer_what_their_changelogs_say(
    spark: SparkSession, brokers: str, running: tuple[str, list[str]], store: str, placement: str, keys: int
):
    name, urls = running
    source, workers = kafka(spark, brokers, f"{name}--{store}-changelog"), Workers(urls)

    def all_is_handled() -> bool:
        report = validate_live(source, workers, store=store, placement=placement)
        assert report.mismatches == 0, report
        return report.counts["equal"] == keys == report.keys

    try:
        asyncio.run(eventually(all_is_handled))
    finally:
        workers.close()
