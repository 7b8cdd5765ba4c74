"""Rebuild an app's state from its compacted changelog with Spark, and validate the workers' stores by key.

On the command line `python -m spark_replay --help`; in a notebook:

    from pathlib import Path
    import spark_replay

    spark = spark_replay.spark_session()
    log = spark_replay.kafka(spark, "127.0.0.1:9092", "dispatcher--run-command-state-changelog")
    spark_replay.read_changelog(log).show()
    state = spark_replay.rebuild_state(log)
    keys = spark_replay.compare_exports(log, against=Path("exports"))
    keys.where("kind != 'equal'").show()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_replay.session import require_pyspark

if TYPE_CHECKING:
    from spark_replay.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    # imported when asked for: without pyspark the command still starts, and says what is missing
    require_pyspark()
    return getattr(import_module("spark_replay.api"), name)
