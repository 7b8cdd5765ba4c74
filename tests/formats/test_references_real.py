"""Schemas that use others, at the real registry."""

from __future__ import annotations

import pytest

from tests.kafka.helpers import unique
from tests.unit.formats.test_references import read_each_others


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_each_reads_what_the_other_writes(registry: str, kind: str) -> None:
    read_each_others(registry, kind, unique("items"), unique("batches"))
