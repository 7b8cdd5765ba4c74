"""One JVM for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.equivalence.judge import Judge


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Kafka Streams, for all tests."""
    with Judge.start() as started:
        yield started
