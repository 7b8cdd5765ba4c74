"""The fixtures for users' tests, as a user's own test suite has them: in plain tests and in asyncio ones."""

from __future__ import annotations

import tomllib
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


OPTIONS = ("-p", "no:cacheprovider", "-p", "no:schemathesis", "-o", "asyncio_default_fixture_loop_scope=function")
PLUGIN = "pytest_faust_actors"


@pytest.mark.parametrize("way", ["plugin", pytest.param("conftest", marks=pytest.mark.nightly)])
def test_a_driver_in_plain_and_in_asyncio_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if way == "conftest":
        pytester.makeconftest('pytest_plugins = ["actors.testing.fixtures"]')
    pytester.makepyfile(SUITE)
    loaded = ("-p", PLUGIN) if way == "plugin" else ()
    pytester.runpytest_subprocess(*OPTIONS, *loaded).assert_outcomes(passed=4)


def test_pytest_finds_the_plugin_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert project["tool"]["setuptools"]["py-modules"] == ["faust_actors_java", PLUGIN]


@pytest.mark.nightly
def test_a_run_that_uses_no_fixture_imports_nothing_of_the_framework(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(
        """
        import sys

        def test_light():
            assert "pytest_faust_actors" in sys.modules
            assert not {"actors", "faust", "aiokafka", "rocksdict"} & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess(*OPTIONS, "-p", PLUGIN).assert_outcomes(passed=1)
    listed = pytester.runpytest_subprocess(*OPTIONS, "-p", PLUGIN, "--fixtures")
    listed.stdout.fnmatch_lines(["actor_driver*", "*Return a function that makes drivers*"])
