"""What a real worker shows to Prometheus and to an orchestrator, before and after it was killed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from actors._core.partitioner import partition_for
from dev.kafka import free_port
from spark_replay.cli.watch import METRICS
from spark_replay.cli.watch import PREFIX as WATCH
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, send, unique

RECORDS = 3_000
KEYS = 100
OPS = ROOT / "docs" / "ops"
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


@dataclass
class Watched:
    """A worker that is looked at."""

    brokers: str
    name: str
    worker: WorkerProcess
    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        """Give status and body; 0 while the worker doesn't answer."""
        try:
            async with self.session.get(self.url + path, **options) as reply:
                is_json = reply.content_type == "application/json"
                return reply.status, await (reply.json() if is_json else reply.text())
        except aiohttp.ClientError:
            return 0, None

    async def scrape(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Give (labels, value) of all samples by name."""
        status, text = await self.get("/metrics")
        assert status == 200
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in parse_text(text):
            for sample in family.samples:
                assert not sample.name.startswith("faust_actors") or sample.labels["app"] == self.name
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    async def total(self, name: str, **labels: str) -> float:
        """Give the sum of the samples that have these labels."""
        samples = (await self.scrape()).get(f"faust_actors_{name}", [])
        return sum(value for given, value in samples if labels.items() <= given.items())

    async def is_ready(self) -> bool:
        """Tell whether the worker says so."""
        return (await self.get("/health/ready"))[0] == 200

    async def has(self, name: str, expected: float, **labels: str) -> None:
        """Wait until a metric's sum is that."""

        async def is_so() -> bool:
            return await self.total(name, **labels) == expected

        await eventually(is_so, what=lambda: f"{name} {labels} isn't {expected}; {self.worker.log()[-3000:]}")


@pytest.fixture(scope="module")
async def watched(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    name, port = unique("metrics"), free_port()
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    folder = tmp_path_factory.mktemp("metrics") / "data"
    worker = WorkerProcess("tests.kafka.apps.metrics_app", brokers, folder, APP_NAME=name, WEB_PORT=str(port))
    worker.start(web=True)
    try:
        async with aiohttp.ClientSession() as session:
            found = Watched(brokers, name, worker, f"http://127.0.0.1:{port}", session)
            await eventually(found.is_ready, what=lambda: worker.log()[-3000:])
            records = [(b"%d" % (number % KEYS), b"%d" % number) for number in range(RECORDS)]
            await send(brokers, f"{name}-in", records)
            await found.has("records_total", RECORDS)
            yield found
    finally:
        worker.kill()


async def test_the_numbers_are_those_of_the_work(watched: Watched):
    await watched.has("consumer_lag_records", 0)
    assert await watched.total("records_total", actor="count") == RECORDS
    assert await watched.total("outputs_total") == RECORDS
    assert await watched.total("committed_offset") == RECORDS
    commits = await watched.total("commit_duration_seconds_count")
    assert 2 <= commits < RECORDS
    assert await watched.total("commit_duration_seconds_bucket", le="+Inf") == commits
    assert 0 < await watched.total("commit_duration_seconds_sum") < 60
    assert await watched.total("task_state", state="running") == 2
    assert await watched.total("task_state") == 2
    assert await watched.total("takeovers_total") == 2
    assert await watched.total("overlay_bytes") == 0
    assert await watched.total("partitions", actor="count") == 2
    assert await watched.total("assigned_partitions", actor="count") == 2
    # RocksDB's estimate counts what was overwritten of late.
    assert KEYS <= await watched.total("store_keys", store="counts") <= RECORDS
    assert await watched.total("rocksdb_memtables_size_bytes", store="counts") > 0
    assert await watched.total("rocksdb_block_cache_capacity_bytes") == 8 << 20
    assert await watched.total("worker_start_time_seconds") > 1e9


async def test_dashboard_and_alerts_use_what_there_is(watched: Watched):
    _, text = await watched.get("/metrics")
    known = set()
    for family in parse_text(text):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        known |= {family.name + suffix for suffix in suffixes}
    known |= {WATCH + name for name in METRICS}
    rules = [rule for group in yaml.safe_load((OPS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        if "record" in rule:
            continue
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
    dashboard = json.loads((OPS / "grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"] for panel in panels)
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]
    expressions += [rule["expr"] for rule in rules]
    assert len(expressions) > 40
    for expression in expressions:
        names = set(re.findall(r"faust_actors_\w+", expression))
        assert names or "faust_actors:workers" in expression, expression
        assert names <= known, f"{names - known} in {expression}"


async def test_both_formats_can_be_read(watched: Watched):
    status, text = await watched.get("/metrics", headers=OPENMETRICS)
    assert status == 200
    names = {family.name for family in parse_openmetrics(text)}
    assert {"faust_actors_records", "faust_actors_commit_duration_seconds", "python_info"} <= names
    for family in parse_openmetrics(text):
        assert family.documentation, family.name
        assert not family.name.endswith("_total"), family.name


async def test_questions_are_counted_by_their_answers(watched: Watched):
    assert (await watched.get("/actors/counts/1"))[0] == 200
    assert (await watched.get("/actors/counts/nobody"))[0] == 404
    assert (await watched.get("/actors/nothing/1"))[0] == 404
    await watched.has("queries_total", 1, code="200")
    await watched.has("queries_total", 2, code="404")
    assert await watched.total("query_duration_seconds_count") == 3
    assert await watched.total("queries_in_flight") == 0


async def test_what_is_put_aside_is_shown(watched: Watched):
    assert await watched.total("parked_effects") == 0
    records = [(b"1", b"bad"), (b"1", b"behind it"), (b"2", b"fine"), (b"3", b"ship"), (b"3", b"ship"), (b"4", b"ship")]
    await send(watched.brokers, f"{watched.name}-in", records)
    await watched.has("records_total", RECORDS + len(records))
    await watched.has("parked_messages", 2)
    # One a key.
    await watched.has("parked_effects", 2)


async def test_a_transactions_marker_is_nothing_that_waits(watched: Watched):
    before = await watched.total("records_total")
    async with producing(watched.brokers, transactional_id=unique("metrics")) as producer, producer.transaction():
        for key in {partition_for(key, 2): key for key in (b"%d" % number for number in range(5, 20))}.values():
            await producer.send(f"{watched.name}-in", b"x", key)
    await watched.has("records_total", before + 2)
    await watched.has("consumer_lag_records", 0)


async def test_health_says_what_is_missing(watched: Watched):
    assert await watched.get("/health/live") == (200, {"status": "ok", "missing": []})
    assert await watched.get("/health/ready") == (200, {"status": "ok", "missing": []})


async def test_a_worker_that_was_killed_shows_its_restore(watched: Watched):
    """Comes last: the worker begins anew, with nothing on its disk."""
    before = await watched.total("task_epoch")
    watched.worker.kill()
    assert await watched.get("/health/live") == (0, None)
    shutil.rmtree(watched.worker.folder)
    watched.worker.start(web=True)
    await eventually(watched.is_ready, what=lambda: watched.worker.log()[-3000:])
    assert await watched.total("restored_records_total") >= KEYS
    assert await watched.total("restore_duration_seconds_count") == 6
    assert 0 < await watched.total("restore_duration_seconds_sum") < 60
    assert await watched.total("restore_remaining_records") == 0
    assert await watched.total("records_total") == 0
    assert await watched.total("parked_messages") == 2
    await watched.has("parked_effects", 2)
    assert await watched.total("task_epoch") == before + 2
    await watched.has("consumer_lag_records", 0)
    assert watched.worker.terminate() == 0
