"""A short fight for locks on real processes (`make locks` is longer), and one that the checks must find fault with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.locks.faults import QUICK
from tests.locks.harness import run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.nightly
async def test_no_two_hold_a_lock_while_owners_and_clients_fail(brokers: str, tmp_path: Path) -> None:
    outcome = await run(brokers, tmp_path, QUICK, seed=1)
    assert outcome.complaints == [], outcome


@pytest.mark.nightly
async def test_a_service_that_grants_a_lock_twice_is_found_out(brokers: str, tmp_path: Path) -> None:
    outcome = await run(brokers, tmp_path, (), seed=1, module="tests.locks.damaged_app", calm_s=5.0)
    assert outcome.wrong["double_holdings"] > 0, outcome
    assert outcome.wrong["holders_refused"] > 0, outcome
