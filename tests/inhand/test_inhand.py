"""A short run with everything in hand: workers that stop, join and leave (`make inhand` has all faults)."""

from __future__ import annotations

from pathlib import Path

from tests.inhand.faults import QUICK
from tests.inhand.harness import run


async def test_nothing_in_hand_is_lost_when_workers_stop_and_join(brokers: str, tmp_path: Path) -> None:
    outcome = await run(brokers, tmp_path, QUICK, inputs=600, seed=1)
    assert outcome.is_clean, "\n".join(outcome.table())
