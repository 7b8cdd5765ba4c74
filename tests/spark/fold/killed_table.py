"""A rebuild into a table that SIGKILL ends behind its first merge."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

from spark_replay import spark_session, write_rebuild
from spark_replay.sources.tables import Table
from tests.spark.fold.test_extending import plain_log
from tests.spark.helpers import NOW_MS


def main(where: str) -> None:
    """Write to a table."""
    merge = Table.merge

    def last(*args: Any, **options: Any) -> None:
        merge(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    Table.merge = last  # type: ignore[method-assign]
    spark = spark_session(master="local[2]", settings={"spark.sql.shuffle.partitions": "2"}, tables=["delta"])
    source = plain_log(spark, random.Random(5))
    write_rebuild(source, to=where, as_of_ms=NOW_MS)


if __name__ == "__main__":
    main(sys.argv[1])
