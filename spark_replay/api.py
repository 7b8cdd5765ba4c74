"""The names of the Python API, each from its module."""

from __future__ import annotations

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
