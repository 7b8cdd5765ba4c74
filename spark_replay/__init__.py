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
    from spark_replay.comparison.history import explain_key
    from spark_replay.comparison.invariants import Asked, Finding, find_violations
    from spark_replay.comparison.live import Workers
    from spark_replay.comparison.report import Example, Report
    from spark_replay.comparison.validate import (
        compare_exports,
        explain_exports,
        validate_exports,
        validate_log,
    )
    from spark_replay.comparison.watching import validate_live
    from spark_replay.fold.columns import value_columns
    from spark_replay.fold.placement import home_partition, murmur2
    from spark_replay.fold.points import AsOf
    from spark_replay.fold.rebuild import rebuild_state, unknown_keys, write_rebuild
    from spark_replay.fold.rebuilt import Rebuilt, read_rebuild
    from spark_replay.fold.tables import read_table
    from spark_replay.recompute.plan import Recompute, plan_recompute
    from spark_replay.recompute.recompute import recompute_actor, recompute_keys
    from spark_replay.recompute.report import Recomputed
    from spark_replay.session import spark_session
    from spark_replay.snapshot.publish import Published, publish_state
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
    "Published",
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
    "explain_key",
    "find_violations",
    "home_partition",
    "kafka",
    "murmur2",
    "plan_recompute",
    "publish_state",
    "read_changelog",
    "read_rebuild",
    "read_table",
    "rebuild_state",
    "recompute_actor",
    "recompute_keys",
    "spark_session",
    "unknown_keys",
    "validate_exports",
    "validate_live",
    "validate_log",
    "validate_states",
    "value_columns",
    "write_rebuild",
    "write_snapshot",
]

# imported when asked for: without pyspark the command still starts, and says what is missing
_NAMES = {
    "archiving": "Archived Wanted archive_topics",
    "comparison.diff": "compare validate_states",
    "comparison.history": "explain_key",
    "comparison.invariants": "Asked Finding find_violations",
    "comparison.live": "Workers",
    "comparison.report": "Example Report",
    "comparison.validate": "compare_exports explain_exports validate_exports validate_log",
    "comparison.watching": "validate_live",
    "fold.columns": "value_columns",
    "fold.placement": "home_partition murmur2",
    "fold.points": "AsOf",
    "fold.rebuild": "rebuild_state unknown_keys write_rebuild",
    "fold.rebuilt": "Rebuilt read_rebuild",
    "fold.tables": "read_table",
    "recompute.plan": "Recompute plan_recompute",
    "recompute.recompute": "recompute_actor recompute_keys",
    "recompute.report": "Recomputed",
    "session": "spark_session",
    "snapshot.publish": "Published publish_state",
    "snapshot.snapshot": "WrittenSnapshot write_snapshot",
    "sources.archives.archive": "archive",
    "sources.base": "Source",
    "sources.changelog": "read_changelog",
    "sources.kafka": "kafka",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
