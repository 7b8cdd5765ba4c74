"""A worker under `opentelemetry-instrument` sends its metrics by OTLP, as the usual variables say."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, unique


class Receiver:
    """A receiver of OTLP by HTTP; keeps each metric's newest points."""

    def __init__(self) -> None:
        self.points: dict[str, list[Any]] = {}
        self.services: set[str] = set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        """Take what a worker exports."""
        export = ExportMetricsServiceRequest.FromString(await request.read())
        for of in export.resource_metrics:
            self.services |= {one.value.string_value for one in of.resource.attributes if one.key == "service.name"}
            for scope in of.scope_metrics:
                for metric in scope.metrics:
                    self.points[metric.name] = list(getattr(metric, metric.WhichOneof("data")).data_points)
        return web.Response(content_type="application/x-protobuf")

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the points with these labels; None if there are none."""
        found = [
            getattr(point, point.WhichOneof("value"))
            for point in self.points.get(name, ())
            if labels.items() <= {one.key: one.value.string_value for one in point.attributes}.items()
        ]
        return sum(found) if found else None


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found, app = Receiver(), web.Application()
    app.router.add_post("/v1/metrics", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


async def test_a_worker_exports_its_metrics_by_the_usual_variables(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], receiver: Receiver
) -> None:
    name = unique("told")
    await make_topics(brokers, *(f"{name}-{topic}" for topic in ("in", "out")), partitions=1)
    async with producing(brokers) as producer:
        for key in (b"a", b"b", b"c"):
            await producer.send_and_wait(f"{name}-in", b"hello", key)
    worker = WorkerProcess("tests.kafka.apps.counter_app", brokers, tmp_path / "data", APP_NAME=name)
    instrument = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    worker.start(
        within=[instrument],
        OTEL_SERVICE_NAME=name,
        OTEL_TRACES_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_METRICS_EXPORTER="otlp",
        OTEL_METRIC_EXPORT_INTERVAL="250",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
    )
    workers.append(worker)

    def is_told() -> bool:
        assert worker.is_running(), worker.log()[-3000:]
        return receiver.value("faust_actors_records", app=name, actor="count", partition="0") == 3

    await eventually(is_told, what=worker.log)
    assert receiver.services == {name}
    assert receiver.value("faust_actors_task_state", app=name, actor="count", state="running") is not None
    assert receiver.value("faust_actors_commit_duration_seconds_bucket", app=name, actor="count", le="+Inf") >= 1
    assert receiver.value("faust_actors_consumer_lag_records", app=name, topic=f"{name}-in") == 0
    assert "Traceback" not in worker.log()
