"""One Spark session for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_PARAMS = SimpleNamespace(params={})
_HERE = Path(__file__).parent
# pyspark leaves the sockets of its gateway and of `collect` to the garbage collector
_PYSPARK_WARNING = r"ignore:unclosed <socket\.socket:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.filterwarnings(_PYSPARK_WARNING))


def _needs_s3a(item: pytest.Item) -> bool:
    # its jars have 560 MB: they are fetched for the nightly tests
    return "object_storage" in item.path.stem and item.get_closest_marker("nightly") is not None


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from spark_replay import spark_session
    from spark_replay.jars import ensure_more_jars

    items = request.session.items
    is_avro = any(item.path.stem in ("test_columns", "test_examples") for item in items)
    avro = {"spark.jars": ",".join(map(str, ensure_more_jars("avro")))} if is_avro else {}
    session = spark_session(
        master="local[2]",
        settings=avro
        | {
            "spark.sql.shuffle.partitions": "2",
            # a few rows a job: neither a plan for each stage nor compiled code is worth its time. Tests of the command
            # line and of clusters run with Spark's own settings
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.ui.enabled": "false",
            # nobody looks at the plan of a finished query, nor at the line of Python that made a column: to note both
            # costs as much as the smaller jobs
            "spark.sql.ui.explainMode": "simple",
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            "spark.driver.memory": "1g",
            # short jobs: the JVM's quick compiler alone halves them. Its 48 MB for code are too few for all tests, so
            # that code is thrown away and compiled again
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(tmp_path_factory.mktemp("lake")),
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m",
        },
        s3a=any(_needs_s3a(item) for item in items),
        tables=sorted(
            {getattr(item, "callspec", _NO_PARAMS).params.get("table") for item in items} & {"delta", "iceberg"}
        ),
        log=tmp_path_factory.mktemp("spark") / "spark.log",
    )
    yield session
    session.stop()
