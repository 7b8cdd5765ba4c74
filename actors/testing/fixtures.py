"""Fixtures for pytest: `pytest_plugins = ["actors.testing.fixtures"]` in a `conftest.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from actors._faust.app import App
from actors.testing.driver import ActorTestDriver


@pytest.fixture
def actor_driver() -> Iterator[Callable[..., ActorTestDriver]]:
    """Return a function that makes drivers, `actor_driver(app, partitions=2)`; they are closed after the test.

    For plain tests and for those that pytest-asyncio runs on a loop: a driver has a loop of its own.
    """
    with ExitStack() as stack:

        def make(app: App, **options: Any) -> ActorTestDriver:
            return stack.enter_context(ActorTestDriver(app, **options))

        yield make
