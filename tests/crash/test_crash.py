"""A short crash run: six faults on three brokers and three workers (`make crash` runs them all, longer)."""

from __future__ import annotations

from pathlib import Path

from dev.kafka import Cluster
from tests.crash.faults import QUICK
from tests.crash.harness import run
from tests.crash.validate import validate_stores


async def test_nothing_is_lost_or_doubled_under_faults(tmp_path: Path) -> None:
    with Cluster.up(tmp_path / "kafka", brokers=3) as cluster:
        outcome = await run(cluster, tmp_path, QUICK, inputs=40_000, rate=500.0, seed=1)
        assert outcome.clean, outcome
        assert validate_stores(cluster.bootstrap, tmp_path) == 0
