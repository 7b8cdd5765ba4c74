"""A rebuild and a validation as a job for `spark-submit`: prints what was found, and whether Python was started."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import kafka, spark_session, validate_exports, write_rebuild


def main(brokers: str, topic: str, folder: str) -> None:
    spark = spark_session()
    started = Path(folder, "python-was-started")
    log = kafka(spark, brokers, topic)
    done = write_rebuild(log, to=Path(folder, "rebuilt"), as_of_ms=int(Path(folder, "as_of_ms").read_text()))
    found = validate_exports(log, against=Path(folder, "exports"))
    executors = spark._jsc.sc().statusTracker().getExecutorInfos()
    result = {
        "master": spark.sparkContext.master,
        # the driver is one of them
        "executors": len(executors) - 1,
        "keys": done.keys,
        "records": done.records,
        "totals": found.totals,
        "python_by_replay": started.exists(),
    }
    # the executors' Python only says that it was called: what does call it shows that it can be seen
    with contextlib.suppress(PySparkException, Py4JJavaError):
        spark.range(1).select(F.udf(lambda number: number, "bigint")("id")).collect()
    result["python_by_udf"] = started.exists()
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
