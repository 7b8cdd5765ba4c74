"""What the tests with real workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.helpers import WorkerProcess


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Workers that are ended with the test."""
    started: list[WorkerProcess] = []
    yield started
    for worker in started:
        worker.kill()
