"""The fixtures for users' tests, as a user's own test suite has them: in plain tests and in asyncio ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[3]

SUITE = """
import asyncio
import pytest
from actors.testing import ActorTestDriver
from examples.rate_limiter import Bucket, Take, app

def test_plain(actor_driver):
    assert actor_driver(app).ask(Bucket, "ada", Take(at_s=1.0)).is_allowed

@pytest.mark.asyncio
async def test_on_a_loop(actor_driver):
    driver = actor_driver(app, partitions=2)
    await asyncio.sleep(0)
    assert not driver.ask(Bucket, "ada", Take(6, at_s=1.0)).is_allowed
    assert asyncio.get_running_loop().is_running()

drivers = []

def test_closed(actor_driver):
    drivers.append(actor_driver(app))

def test_was_closed():
    assert drivers[0]._loop.is_closed()
"""


def test_a_driver_in_plain_and_in_asyncio_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["actors.testing.fixtures"]')
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    result.assert_outcomes(passed=4)
