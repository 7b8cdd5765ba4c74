"""All attacks at once for some seconds (`make hostile` runs them for a minute, and looks at the throughput too)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.harness import run


@pytest.mark.nightly
async def test_a_worker_under_all_attacks_at_once_loses_nothing_and_answers(brokers: str, tmp_path: Path) -> None:
    outcome = await run(brokers, tmp_path, seconds=7.0, chunk=20_000)
    assert outcome.clean, outcome
