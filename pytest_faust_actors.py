"""Fixtures for pytest, which finds them by itself where `faust-actors` is installed.

A module of its own, because pytest imports it in every run: the framework is imported when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from actors.testing import ActorTestDriver


@pytest.fixture
def actor_driver() -> Iterator[Callable[..., ActorTestDriver]]:
    """Return a function that makes drivers, `actor_driver(app, partitions=2)`; they are closed after the test.

    For plain tests and for those that pytest-asyncio runs on a loop: a driver has a loop of its own.
    """
    from contextlib import ExitStack

    from actors.testing import ActorTestDriver

    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(ActorTestDriver(app, **options))
