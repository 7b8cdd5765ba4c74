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


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a Kafka broker that runs until the session ends, `127.0.0.1:port`.

    It needs the extra `broker`, and the first time the network or the jars of another machine.
    """
    from actors.local_kafka.cluster import Cluster
    from actors.local_kafka.errors import LocalKafkaError

    try:
        cluster = Cluster.up(tmp_path_factory.mktemp("kafka"))
    except LocalKafkaError as error:
        pytest.fail(str(error), pytrace=False)
    with cluster:
        yield cluster.bootstrap
