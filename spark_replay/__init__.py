"""Rebuild an app's state from its compacted changelog with Spark, and validate the workers' stores by key.

On the command line `python -m spark_replay --help`; in a notebook:

    from pathlib import Path
    import spark_replay

    spark = spark_replay.spark_session()
    log = spark_replay.kafka(spark, "127.0.0.1:9092", "dispatcher-run-command-state-changelog")
    spark_replay.read_changelog(log).show()
    state = spark_replay.rebuild_state(log)
    keys = spark_replay.compare_exports(log, against=Path("exports"))
    keys.where("kind != 'equal'").show()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_replay.errors import (
    AppError,
    ArchiveError,
    BrokerError,
    ExportError,
    InputError,
    LiveError,
    LogTooShortError,
    PlacementError,
    PointError,
    ReadError,
    RecomputeError,
    ReplayError,
    TargetError,
    ToolMissingError,
    UnknownTopicError,
    WrongTopicError,
)

if TYPE_CHECKING:
    from spark_replay.archiving import Archived, Wanted, archive_topics
    from spark_replay.changelog import read_changelog
    from spark_replay.compare import compare
    from spark_replay.diff import validate_states
    from spark_replay.invariants import Asked, Finding, find_violations
    from spark_replay.live import Workers, validate_live
    from spark_replay.placement import home_partition, murmur2
    from spark_replay.points import AsOf
    from spark_replay.publish import publish_state
    from spark_replay.rebuild import Rebuilt, read_rebuild, rebuild_state, unknown_keys, write_rebuild
    from spark_replay.recompute import recompute_actor, recompute_keys
    from spark_replay.recompute_plan import Recompute, plan_recompute
    from spark_replay.recompute_report import Recomputed
    from spark_replay.report import Example, Report
    from spark_replay.seed import Seeded, write_seed
    from spark_replay.session import spark_session
    from spark_replay.sources import Source, archive, kafka
    from spark_replay.validate import compare_exports, explain_exports, validate_exports

__all__ = [
    "AppError",
    "ArchiveError",
    "Archived",
    "AsOf",
    "Asked",
    "BrokerError",
    "Example",
    "ExportError",
    "Finding",
    "InputError",
    "LiveError",
    "LogTooShortError",
    "PlacementError",
    "PointError",
    "ReadError",
    "Rebuilt",
    "Recompute",
    "RecomputeError",
    "Recomputed",
    "ReplayError",
    "Report",
    "Seeded",
    "Source",
    "TargetError",
    "ToolMissingError",
    "UnknownTopicError",
    "Wanted",
    "Workers",
    "WrongTopicError",
    "archive",
    "archive_topics",
    "compare",
    "compare_exports",
    "explain_exports",
    "find_violations",
    "home_partition",
    "kafka",
    "murmur2",
    "plan_recompute",
    "publish_state",
    "read_changelog",
    "read_rebuild",
    "rebuild_state",
    "recompute_actor",
    "recompute_keys",
    "spark_session",
    "unknown_keys",
    "validate_exports",
    "validate_live",
    "validate_states",
    "write_rebuild",
    "write_seed",
]

# imported when asked for: without pyspark the command still starts, and says what is missing
_HOMES = {
    "Archived": "archiving",
    "AsOf": "points",
    "Asked": "invariants",
    "Finding": "invariants",
    "Wanted": "archiving",
    "archive_topics": "archiving",
    "read_rebuild": "rebuild",
    "unknown_keys": "rebuild",
    "Example": "report",
    "Rebuilt": "rebuild",
    "Recompute": "recompute_plan",
    "Recomputed": "recompute_report",
    "Report": "report",
    "Seeded": "seed",
    "Source": "sources",
    "archive": "sources",
    "compare": "compare",
    "compare_exports": "validate",
    "explain_exports": "validate",
    "find_violations": "invariants",
    "home_partition": "placement",
    "kafka": "sources",
    "murmur2": "placement",
    "plan_recompute": "recompute_plan",
    "publish_state": "publish",
    "read_changelog": "changelog",
    "rebuild_state": "rebuild",
    "recompute_actor": "recompute",
    "recompute_keys": "recompute",
    "spark_session": "session",
    "validate_exports": "validate",
    "Workers": "live",
    "validate_live": "live",
    "validate_states": "diff",
    "write_rebuild": "rebuild",
    "write_seed": "seed",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
