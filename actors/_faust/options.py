"""The settings that Faust doesn't have. Where Faust has one, it is used under Faust's name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

FAUST_DEFAULTS: dict[str, Any] = {
    "processing_guarantee": "exactly_once",
    "broker_commit_interval": 0.1,
    "broker_session_timeout": 10.0,
    "broker_heartbeat_interval": 1.0,
    "Topic": "actors._faust.topic:ActorTopic",
    "web_bind": "127.0.0.1",
}
"""Where Faust's own defaults don't fit: it would commit every 2.8 s, miss a killed worker for a minute, and show its
pages to every machine that reaches it."""


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """Keyword arguments of `App` beside Faust's settings.

    Attributes:
        allow_reprocessing: go on although the committed offset is below the state's (an operator set it back):
            inputs are handled again on top of the state.
        allow_lost_input: go on at the first record that is left when retention deleted unprocessed input.
        changelog_delete_retention: how long tombstones stay; a worker that was away longer builds its state anew.
        changelog_min_compaction_lag, changelog_max_compaction_lag, changelog_segment: the changelogs'
            `min.compaction.lag.ms`, `max.compaction.lag.ms` and `segment.ms`.
        changelog_min_insync_replicas: the changelogs' `min.insync.replicas`; None leaves the broker's.
        clock_skew_margin: how far clocks of workers and brokers may differ.
        commit_max_bytes: a commit is made before this much is held per task.
        commit_deadline: a commit that takes longer counts as unknown, and the task takes over again.
        queue_records: more is fetched for a task when fewer than these wait.
        revoke_timeout: how long a rebalance waits for handlers and commits.
        checkpoint_refresh: how often an idle task notes that its state is current.
        acceptable_recovery_lag: a worker whose copy of a partition's state lacks more changelog records than this gets
            the partition only when nobody has a better one; it warms its copy up first.
        max_warmup_replicas: how many copies a worker warms up at a time.
        queries: whether a worker with a web server answers queries for state under `/actors`.
        queries_unprotected: answer them also where the web server can be reached from other machines, to whoever asks.
        state_seed: a folder of `spark_replay seed`: stores that this worker's disk has nothing of begin from there and
            read only the changelog's tail. Also `STATE_SEED` in the environment.
        rocksdb_cache_bytes, rocksdb_write_buffer_bytes: block cache and memtables, shared by all stores of the worker.
    """

    allow_reprocessing: bool = False
    allow_lost_input: bool = False
    changelog_delete_retention: timedelta = timedelta(days=1)
    changelog_min_compaction_lag: timedelta = timedelta(0)
    changelog_max_compaction_lag: timedelta = timedelta(days=7)
    changelog_segment: timedelta = timedelta(hours=6)
    changelog_min_insync_replicas: int | None = None
    clock_skew_margin: timedelta = timedelta(minutes=5)
    commit_max_bytes: int = 16 * 1024 * 1024
    commit_deadline: timedelta = timedelta(seconds=20)
    queue_records: int = 1_000
    revoke_timeout: timedelta = timedelta(seconds=3)
    checkpoint_refresh: timedelta = timedelta(seconds=60)
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 8
    queries: bool = True
    queries_unprotected: bool = False
    state_seed: Path | str | None = None
    rocksdb_cache_bytes: int = 64 * 1024 * 1024
    rocksdb_write_buffer_bytes: int = 64 * 1024 * 1024


def split_options(given: dict[str, Any]) -> tuple[ActorOptions, dict[str, Any]]:
    """Take ours out of the keyword arguments of `App`, and give what is left for Faust with our defaults."""
    ours = {field.name for field in fields(ActorOptions)}
    options = ActorOptions(**{name: value for name, value in given.items() if name in ours})
    rest = {name: value for name, value in given.items() if name not in ours}
    return options, {**FAUST_DEFAULTS, **rest}


def milliseconds(span: timedelta) -> int:
    """Give a time span in whole milliseconds."""
    return span // timedelta(milliseconds=1)
