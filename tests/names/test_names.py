"""A short fault run over names: two programs, a few faults (`make nightly` runs 30 in random order)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.kafka import Cluster
from tests.names.faults import impostor, recreate_changelog, recreate_input, reset
from tests.names.harness import run


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_when_names_change_their_meaning(tmp_path: Path) -> None:
    with Cluster.up(tmp_path / "kafka") as cluster:
        pool = (recreate_input, impostor, reset, recreate_changelog)
        outcome = await run(cluster, tmp_path, seed=1, faults=len(pool), pool=pool)
    assert outcome.wrong == {}, outcome
