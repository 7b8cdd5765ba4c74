"""OpenTelemetry's metrics are those of `/metrics`, seen through the SDK's reader in memory."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, Sum
from prometheus_client.core import CounterMetricFamily, Metric

from actors.web import telemetry as module
from actors.web.metrics import PREFIX, families
from actors.web.telemetry import Readings, Telemetry
from tests.unit.web.operations.test_metrics_shown import names, samples, status

Points = dict[tuple[str, tuple[str, ...]], float]


class Shop:
    """An app whose worker's status is given."""

    def __init__(self) -> None:
        self.status = status()
        self.threads: list[int] = []

    def worker_status(self) -> Any:
        """Return it, and note the thread."""
        self.threads.append(threading.get_ident())
        return self.status


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    return InMemoryMetricReader()


@pytest.fixture
def readings(reader: InMemoryMetricReader) -> Iterator[Readings]:
    provider = MeterProvider(metric_readers=[reader])
    yield Readings(provider.get_meter("shop"), families)
    provider.shutdown()


def read(reader: InMemoryMetricReader) -> list[Any]:
    """Collect, and give the metrics."""
    found = reader.get_metrics_data()
    return [] if found is None else [one for of in found.resource_metrics[0].scope_metrics for one in of.metrics]


def points(metrics: list[Any]) -> Points:
    """Give values by the name and the labels that Prometheus has, all but app and worker."""
    return {
        (shown(one), tuple(value for name, value in point.attributes.items() if name not in ("app", "worker"))): (
            point.value
        )
        for one in metrics
        for point in one.data.data_points
    }


def shown(metric: Any) -> str:
    """Give the name as a receiver for Prometheus shows it."""
    return metric.name.removeprefix(PREFIX) + (
        "_total" if isinstance(metric.data, Sum) and metric.data.is_monotonic else ""
    )


async def test_a_reader_is_told_what_a_scrape_shows(reader: InMemoryMetricReader, readings: Readings) -> None:
    shop: Any = Shop()
    readings.add(shop)
    metrics = read(reader)
    expected = {
        (name, labels[1:] if name == "worker_info" else labels): value
        for (name, labels), value in samples(shop.status).items()
    }
    assert points(metrics) == expected
    assert {shown(one) for one in metrics} <= {name.removeprefix(PREFIX) for name in names()}
    attributes = [point.attributes for one in metrics for point in one.data.data_points]
    assert {(one["app"], one["worker"]) for one in attributes} == {("shop", shop.status.worker)}
    assert all(one.description for one in metrics)


async def test_a_collection_takes_one_status_on_the_workers_thread(
    reader: InMemoryMetricReader, readings: Readings
) -> None:
    shop: Any = Shop()
    readings.add(shop)
    shop.threads.clear()
    assert await asyncio.to_thread(read, reader)
    assert await asyncio.to_thread(read, reader)
    assert shop.threads == [threading.get_ident()] * 2


async def test_two_workers_of_a_process_are_told_apart_and_one_that_ended_is_not_told(
    reader: InMemoryMetricReader, readings: Readings, caplog: pytest.LogCaptureFixture
) -> None:
    one: Any = Shop()
    other: Any = Shop()
    other.status = replace(other.status, worker="till-2")
    readings.add(one)
    readings.add(other)
    workers = {point.attributes["worker"] for metric in read(reader) for point in metric.data.data_points}
    assert workers == {"till-1", "till-2"}
    readings.remove(one)
    readings.remove(one)
    workers = {point.attributes["worker"] for metric in read(reader) for point in metric.data.data_points}
    assert workers == {"till-2"}
    assert not caplog.records


async def test_a_loop_that_does_not_answer_leaves_a_gap(
    reader: InMemoryMetricReader, readings: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    readings.add(Shop())  # type: ignore[arg-type]
    found: list[list[Any]] = []
    collecting = threading.Thread(target=lambda: found.append(read(reader)))
    collecting.start()
    collecting.join()  # The loop is held.
    assert found == [[]]
    assert await asyncio.to_thread(read, reader)


def test_a_loop_that_was_closed_leaves_a_gap(reader: InMemoryMetricReader, readings: Readings) -> None:
    async def start() -> None:
        readings.add(Shop())  # type: ignore[arg-type]

    starting = threading.Thread(target=lambda: asyncio.run(start()))
    starting.start()
    starting.join()
    assert read(reader) == []


async def test_what_the_process_does_not_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    shop: Any = Shop()
    unused = Telemetry()
    unused.add(shop, families)
    unused.remove(shop)
    assert not shop.threads
    assert "opentelemetry.metrics" not in sys.modules


async def test_counters_are_sums_that_only_grow(reader: InMemoryMetricReader, readings: Readings) -> None:
    def grown(_: Any) -> Iterator[Metric]:
        family = CounterMetricFamily("records", "Records.", labels=("actor",))
        family.add_metric(("ship",), 7)
        yield family

    counted = Readings(readings._meter, grown)
    counted.add(Shop())  # type: ignore[arg-type]
    (metric,) = read(reader)
    assert metric.data.is_monotonic
    assert metric.data.aggregation_temporality is AggregationTemporality.CUMULATIVE
