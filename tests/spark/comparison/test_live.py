"""Workers asked through their query API: a server that speaks the protocol, from stores that are real."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from actors.web.queries.digests import _chosen, _summed, digests_body, kept
from spark_replay import LiveError, Workers, kafka, validate_live
from spark_replay.cli import main
from spark_replay.comparison import live
from stores._core.digests import Digests, StoredRow
from stores._core.record import Position
from tests.documents import block
from tests.spark.damage import NEW, Worker, by, extend, named_log, two_owners, with_metadata
from tests.spark.helpers import NOW_MS, Log, Transaction, home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETED = (by(NEW, 51, "deleted", "x"), by(NEW, 52, "deleted", None))
OVER = by(NEW, 53, "over", "x", expires_at_ms=NOW_MS - 1)

BUCKETS = 8


class Server:
    """Answers `_digests` from a worker's stores, on a loop of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.busy = 0
        self.most = BUCKETS
        self.stopped: int | None = None
        self.answer: web.Response | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/actors/{store}/_digests", self._digests)
        self._runner = web.AppRunner(app)
        self._loop.run_until_complete(self._runner.setup())
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = self._runner.addresses[0]
        self.url = f"http://{self.url[0]}:{self.url[1]}"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _digests(self, request: web.Request) -> web.Response:
        assert request.match_info["store"] == "store"
        body = digests_body(await request.read())
        if self.busy:
            self.busy -= 1
            return web.json_response({"title": "moving"}, status=503, headers={"Retry-After": "0"})
        if self.answer is not None:
            return self.answer
        if self.stopped == body.partition:
            problem = {"title": "The state can't be read now", "detail": f"partition {self.stopped} is stopped"}
            return web.json_response(problem, status=503, headers={"Retry-After": "0"})
        store, rows, sums = self.worker.stores[body.partition], list[StoredRow](), [0] * (body.buckets or BUCKETS)
        if len(body.rows) > self.most:
            return web.json_response({"title": "The answer is too large"}, status=413)
        if body.rows:
            list(_chosen(rows, kept(store, store.scan()), body, took=lambda _: None))
        else:
            list(_summed(sums, kept(store, store.scan()), body.as_of_ms))
        position = store.position()
        assert position is not None
        return web.Response(body=msgspec.json.encode(Digests(position, [] if body.rows else sums, rows)))


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    log = named_log(brokers)
    extend(brokers, log, *two_owners(), *(Transaction((write,)) for write in (*DELETED, OVER)))
    return log


@pytest.fixture
def server(log: Log, tmp_path: Path) -> Iterator[Server]:
    worker = Worker.of(log, tmp_path / "data", log.ends)
    server = Server(worker)
    with worker.closing:
        yield server
        server.close()


@pytest.mark.nightly
def test_live_workers(spark: SparkSession, brokers: str, log: Log, server: Server):
    """A key that is written after the log was read is no mismatch; each damage has its cause."""
    source = kafka(spark, brokers, log.topic)
    workers = Workers(["http://127.0.0.1:1", server.url])
    server.busy = 2
    report = validate_live(source, workers, store="store")
    assert (report.mismatches, report.counts["equal"], report.keys) == (0, 40, 40)
    assert report.against == f"live workers in http://127.0.0.1:1, {server.url}"

    since = by(NEW, 60, "fine-1", "since")
    place = home(b"fine-1")
    before = log.ends[place]
    extend(brokers, log, Transaction((since,)))
    # the store is behind the log: its position says so
    assert validate_live(source, workers, store="store").mismatches == 0
    store = server.worker.stores[place]
    store.apply([(b"fine-1", with_metadata(since))], Position(100, log.ends[place], NOW_MS, NEW, ""))
    assert log.ends[place] > before
    assert validate_live(source, workers, store="store").mismatches == 0

    server.worker.plant(home(b"fine-2"), b"fine-2", None)
    server.worker.plant(home(b"fine-3"), b"fine-3", by(NEW, 3, "fine-3", "flipped"))
    server.worker.plant(home(b"deleted"), b"deleted", DELETED[0])
    server.worker.plant(home(b"extra"), b"extra", by(NEW, 9, "extra", "x"))
    report = validate_live(source, workers, store="store")
    named = {example.key: example.cause for examples in report.examples.values() for example in examples}
    assert named == {
        "fine-2": "committed_write_missing",
        "fine-3": "never_committed",
        "deleted": "deleted_key_back",
        "extra": "never_committed",
    }
    workers.close()


def test_workers_on_the_command_line(spark: SparkSession, brokers: str, log: Log, server: Server):
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--store", "store", "--live", server.url]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == len(log.records)
    server.answer = web.json_response({"title": "Unknown store", "detail": "there is no store"}, status=404)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "answered 404: Unknown store: there is no store" in done.output


@pytest.mark.nightly
def test_a_partition_that_is_stopped_leaves_the_others_compared(
    spark: SparkSession, brokers: str, log: Log, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "_BACKOFF_S", 0.0)
    server.stopped = home(b"fine-1")
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--store", "store", "--live", server.url]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    left = sum(
        1 for number in range(20) for name in ("fine", "anchor") if home(f"{name}-{number}".encode()) != server.stopped
    )
    assert json.loads(done.stdout)["equal"] == left > 0
    reason = (
        f"partition {server.stopped}: {server.url}/actors/store/_digests answered 503: The state can't be read now: "
    )
    assert f"not compared: {reason}partition {server.stopped} is stopped" in done.stderr
    assert f"1 of 3 partitions of {log.topic} couldn't be read and isn't compared: {server.stopped}" in done.stderr
    other = next(f"fine-{number}" for number in range(20) if home(f"fine-{number}".encode()) != server.stopped)
    server.worker.plant(home(other.encode()), other.encode(), None)
    assert CliRunner().invoke(main, command).exit_code == 1


def test_the_example_of_the_page(spark: SparkSession, brokers: str, log: Log, server: Server):
    changes = {"http://127.0.0.1:6066": server.url, '"spent"': '"store"'}
    names = block("docs/reference/api/spark_replay.md", "Examples", 3).run({}, changes=changes)
    report = names["ask"](kafka(spark, brokers, log.topic))
    assert (report.is_clean, report.counts["equal"]) == (True, 40)


def test_answers_that_are_none(server: Server):
    workers = Workers([server.url])
    with pytest.raises(LiveError, match=r"no worker answers: http://127.0.0.1:1: "):
        Workers(["http://127.0.0.1:1"]).digests("store", 0, as_of_ms=0)
    server.answer = web.json_response({"digests": []})
    with pytest.raises(LiveError, match="doesn't answer in the protocol"):
        workers.digests("store", 0, as_of_ms=0)
    with pytest.raises(LiveError, match="takes the URL of a worker"):
        Workers([""])
    workers.close()
