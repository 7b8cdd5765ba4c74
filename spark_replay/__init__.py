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
    from spark_replay.comparison.diff import compare, validate_states
    from spark_replay.comparison.invariants import Asked, Finding, find_violations
    from spark_replay.comparison.live import Workers, validate_live
    from spark_replay.comparison.report import Example, Report
    from spark_replay.comparison.validate import compare_exports, explain_exports, validate_exports
    from spark_replay.fold.placement import home_partition, murmur2
    from spark_replay.fold.points import AsOf
    from spark_replay.fold.rebuild import Rebuilt, read_rebuild, rebuild_state, unknown_keys, write_rebuild
    from spark_replay.recompute.plan import Recompute, plan_recompute
    from spark_replay.recompute.recompute import recompute_actor, recompute_keys
    from spark_replay.recompute.report import Recomputed
    from spark_replay.report.profile import Profile, profile_log
    from spark_replay.session import spark_session
    from spark_replay.snapshot.publish import publish_state
    from spark_replay.snapshot.snapshot import WrittenSnapshot, write_snapshot
    from spark_replay.sources.archives.archive import archive
    from spark_replay.sources.base import Source
    from spark_replay.sources.changelog import read_changelog
    from spark_replay.sources.kafka import kafka

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
    "Profile",
    "ReadError",
    "Rebuilt",
    "Recompute",
    "RecomputeError",
    "Recomputed",
    "ReplayError",
    "Report",
    "Source",
    "TargetError",
    "ToolMissingError",
    "UnknownTopicError",
    "Wanted",
    "Workers",
    "WrittenSnapshot",
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
    "profile_log",
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
    "write_snapshot",
]

# imported when asked for: without pyspark the command still starts, and says what is missing
_HOMES = {
    "Archived": "archiving",
    "AsOf": "fold.points",
    "Asked": "comparison.invariants",
    "Finding": "comparison.invariants",
    "Wanted": "archiving",
    "archive_topics": "archiving",
    "read_rebuild": "fold.rebuild",
    "unknown_keys": "fold.rebuild",
    "Example": "comparison.report",
    "Rebuilt": "fold.rebuild",
    "Recompute": "recompute.plan",
    "Recomputed": "recompute.report",
    "Report": "comparison.report",
    "WrittenSnapshot": "snapshot.snapshot",
    "Source": "sources.base",
    "archive": "sources.archives.archive",
    "compare": "comparison.diff",
    "compare_exports": "comparison.validate",
    "explain_exports": "comparison.validate",
    "find_violations": "comparison.invariants",
    "home_partition": "fold.placement",
    "kafka": "sources.kafka",
    "murmur2": "fold.placement",
    "plan_recompute": "recompute.plan",
    "publish_state": "snapshot.publish",
    "Profile": "report.profile",
    "profile_log": "report.profile",
    "read_changelog": "sources.changelog",
    "rebuild_state": "fold.rebuild",
    "recompute_actor": "recompute.recompute",
    "recompute_keys": "recompute.recompute",
    "spark_session": "session",
    "validate_exports": "comparison.validate",
    "Workers": "comparison.live",
    "validate_live": "comparison.live",
    "validate_states": "comparison.diff",
    "write_rebuild": "fold.rebuild",
    "write_snapshot": "snapshot.snapshot",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
