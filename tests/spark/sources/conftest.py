"""An S3 of its own for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kafka.helpers import unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.sources.object_storage import Storage


@pytest.fixture(scope="module")
def storage(spark: SparkSession) -> Iterator[Storage]:
    from tests.spark.sources.object_storage import serving

    with serving() as storage:
        for name, value in storage.settings.items():
            spark.conf.set(name, value)
        yield storage
        for name in storage.settings:
            spark.conf.unset(name)


@pytest.fixture
def bucket(storage: Storage) -> str:
    name = unique("bucket")
    storage.client.create_bucket(Bucket=name)
    return name
