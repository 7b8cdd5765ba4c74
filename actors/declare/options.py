"""The settings that Faust doesn't have. Where Faust has one, it is used under Faust's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from actors._core.task.takeover import LostChangelog

FAUST_DEFAULTS: dict[str, Any] = {
    "processing_guarantee": "exactly_once",
    "broker_commit_interval": 0.1,
    "broker_session_timeout": 10.0,
    "broker_heartbeat_interval": 1.0,
    "Topic": "actors.declare.topic:ActorTopic",
    "web_bind": "127.0.0.1",
}
"""Where Faust's own defaults don't fit: it would commit every 2.8 s, miss a killed worker for a minute, and show its
pages to every machine that reaches it."""


POSITIVE = {"is_positive": True}
SECRET = {"is_secret": True}
HAS_VARIABLE = {"has_variable": True}
"""Metadata of settings: 0 is refused, which other numbers and spans may be; the value is shown nowhere; the name is a
variable of the environment too, as that of a secret is. A setting with `choices` has no other values."""


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """Keyword arguments of `App` beside Faust's settings.

    Attributes:
        allow_reprocessing: go on although the committed offset is below the state's (an operator set it back):
            inputs are handled again on top of the state.
        allow_lost_input: go on at the first record that is left when retention deleted unprocessed input.
        missing_offset: "earliest" or "latest": where partitions go on whose committed offset is gone (it expired, or
            was deleted), although the registry says that they had one, or whose input topic was deleted and created
            again; without it such a partition is stopped. Leave it in for one start. Also `MISSING_OFFSET` in the
            environment.
        moved_offset: what to do where another program or an operator set the group's offset of a partition that this
            app had committed: "stop" the partition, or "accept" the offset, also one below the state's. Leave "accept"
            in for one start. Also `MOVED_OFFSET` in the environment.
        changelogs: by store, a changelog topic to use in place of `{app id}--{store}-changelog`. Its name begins with
            the app's id and two dashes. The actor's own stores (`{actor}-timers`, a class actor's states) can be named
            as well.
        lost_changelog: what to do when a changelog lacks records that this worker's store has, as after an unclean
            leader election or when the topic was deleted: "stop" the partition, "restore" them from the store,
            "restore_older" even if the store lacks inputs that are committed, or "rebuild" the store without them.
            All but "stop" are for one start; also `LOST_CHANGELOG` in the environment.
        changelog_delete_retention: how long tombstones stay; a worker that was away longer rebuilds its state.
        changelog_min_compaction_lag, changelog_max_compaction_lag, changelog_segment: the changelogs'
            `min.compaction.lag.ms`, `max.compaction.lag.ms` and `segment.ms`.
        changelog_min_insync_replicas: the changelogs' `min.insync.replicas`; None leaves the broker's.
        create_topics: whether a worker makes the topics of its own that are missing, such as changelogs. With False the
            start names all that are, for the operators of the cluster: `faust -A APP topics` prints them.
        clock_skew_margin: how far clocks of workers and brokers may differ. A worker's clock that is further from the
            brokers' isn't followed, and isn't ready (docs/explanation/guarantees.md#clocks).
        max_time_ahead: how far timestamps of messages may be ahead of a worker's clock, to actors with window stores,
            timers by stream time, or tables with a history. One that is further ahead would close all windows, and is
            an error by the actor's `on_error`.
        commit_max_bytes: a commit is made before this much is held per task.
        commit_deadline: a commit that takes longer counts as unknown, and the task takes over again.
        queue_records: more is fetched for a task when fewer than these wait.
        revoke_timeout: how long a rebalance waits for handlers and commits.
        checkpoint_refresh: how often an idle task notes that its state is current.
        idle_after: how long an input partition is at its end before event time goes on without it, as far as other
            inputs of the app had come before.
        acceptable_recovery_lag: a worker whose copy of a partition's state lacks more changelog records than this gets
            the partition only when nobody has a better one; it warms its copy up first.
        max_warmup_replicas: how many copies a worker warms up at a time.
        queries: whether a worker with a web server answers queries for state under `/actors`.
        queries_unprotected: answer them also where the web server can be reached from other machines, to every client.
            Nobody may administer for that reason.
        query_tokens, write_tokens, admin_tokens: bearer tokens that allow to read, to send messages to actors too, and
            to administer too: texts of at least 16 characters, or a `Path` to a file with one a line. All are taken;
            workers use the first among each other. Without `write_tokens` no message is taken by HTTP. A file that
            changes is read again, as are those of `web_certificate` and the settings behind it. Also `QUERY_TOKENS`
            (with commas), or `QUERY_TOKENS_FILE`, in the environment, and so on.
        worker_secret: a secret that only the app's workers and commands know, by which they know each other: a text of
            at least 32 characters, or a `Path` to a file with one a line, of which the first is used and all are taken.
            Derived from the tokens when left out. Also `WORKER_SECRET` or `WORKER_SECRET_FILE` in the environment.
        worker_hosts: hosts that the app's workers may be on, as `10.0.*` or `*.bank.internal`: whatever address a
            member of the group announces, no other host is asked; any when left out.
        web_certificate, web_key: files with this worker's certificate and key, for HTTPS.
        web_client_ca: a file with the certificates of those who sign clients' certificates: each of these may read.
        web_ca: likewise for the servers of other workers; `web_client_ca` when left out.
        admin_certificates: subjects of clients' certificates that may administer, as `CN=ops,O=Example`, `CN=ops`
            whatever follows, or `DNS:ops.example`.
        open_pages: paths of the app's own pages, or of Faust's, that are for everybody, as they were declared:
            `/hello/{name}/`. Where tokens or clients' certificates are asked for, they are for all others too.
        extensions: what runs in workers beside the engine: names of installed extensions, `*` for all of them, and
            `module:Class` of your own; see `WorkerExtension`.
        dashboard: whether such a worker has the pages under `/dashboard` too.
        log_format: how a worker's log is written: "text" for people, or "json", one object a line.
        tracing: make an OpenTelemetry span of each message, and pass its context on; takes the extra `tracing`, and a
            tracer provider that the process sets up.
        propagate_headers: the names of headers that each message passes on to what it leads to: what it sends, tells,
            asks, schedules, the results of its effects, and the close of a window that it changed last.
        state_snapshot: where snapshots are, a folder or a URI as `s3://bucket/prefix`: stores that this worker's disk
            has nothing of begin from there and read only the changelog's tail. Also `STATE_SNAPSHOT` in the
            environment. URIs and `state_snapshot_every` take the extra `s3`.
        state_snapshot_every: how often a worker writes a snapshot of each of its partitions there; 0 for never. Also
            `STATE_SNAPSHOT_EVERY` in the environment.
        format: how values become bytes of topics with a `value_type=`, other than bytes and text, that say neither
            `format=` nor `value_serializer=`; one of `actors.formats`, or your own.
        schema_registry: the address of a schema registry with Confluent's API, as `https://user:password@host:8081`, or
            an `actors.formats.Registry`. Also `SCHEMA_REGISTRY` in the environment, or `SCHEMA_REGISTRY_FILE`.
        register_schemas: whether a schema that the registry lacks is registered when it is first written with. With
            False what writes with it waits until it is there. `faust dev` sets it. Also `REGISTER_SCHEMAS` in the
            environment.
        rocksdb_cache_bytes, rocksdb_write_buffer_bytes: block cache and memtables, shared by all stores of the worker.

    Examples:
        >>> from actors import App
        >>> App("shop", broker="kafka://127.0.0.1:9092", query_tokns="secret")
        Traceback (most recent call last):
        actors.errors.ConfigurationError: ...
    """

    allow_reprocessing: bool = False
    allow_lost_input: bool = False
    missing_offset: str | None = field(default=None, metadata={**HAS_VARIABLE, "choices": (None, "earliest", "latest")})
    moved_offset: str = field(default="stop", metadata={**HAS_VARIABLE, "choices": ("stop", "accept")})
    changelogs: Mapping[str, str] = field(default_factory=dict)
    lost_changelog: str = field(
        default="stop", metadata={**HAS_VARIABLE, "choices": tuple(choice.value for choice in LostChangelog)}
    )
    changelog_delete_retention: timedelta = timedelta(days=1)
    changelog_min_compaction_lag: timedelta = timedelta(0)
    changelog_max_compaction_lag: timedelta = timedelta(days=7)
    changelog_segment: timedelta = timedelta(hours=6)
    changelog_min_insync_replicas: int | None = field(default=None, metadata=POSITIVE)
    create_topics: bool = True
    clock_skew_margin: timedelta = field(default=timedelta(minutes=5), metadata=POSITIVE)
    max_time_ahead: timedelta = timedelta(days=1)
    commit_max_bytes: int = field(default=16 * 1024 * 1024, metadata=POSITIVE)
    commit_deadline: timedelta = field(default=timedelta(seconds=20), metadata=POSITIVE)
    queue_records: int = field(default=1_000, metadata=POSITIVE)
    revoke_timeout: timedelta = timedelta(seconds=3)
    checkpoint_refresh: timedelta = field(default=timedelta(seconds=60), metadata=POSITIVE)
    idle_after: timedelta = timedelta(seconds=1)
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = field(default=8, metadata=POSITIVE)
    queries: bool = True
    queries_unprotected: bool = False
    query_tokens: Sequence[str] | Path | None = field(default=None, repr=False, metadata=SECRET)
    write_tokens: Sequence[str] | Path | None = field(default=None, repr=False, metadata=SECRET)
    admin_tokens: Sequence[str] | Path | None = field(default=None, repr=False, metadata=SECRET)
    worker_secret: str | Path | Sequence[str] | None = field(default=None, repr=False, metadata=SECRET)
    worker_hosts: Sequence[str] = ()
    web_certificate: Path | str | None = None
    web_key: Path | str | None = None
    web_client_ca: Path | str | None = None
    web_ca: Path | str | None = None
    admin_certificates: Sequence[str] = ()
    open_pages: Sequence[str] = ()
    extensions: Sequence[str] = ("*",)
    dashboard: bool = True
    log_format: str = field(default="text", metadata={"choices": ("text", "json")})
    tracing: bool = False
    propagate_headers: Sequence[str] = ()
    state_snapshot: Path | str | None = field(default=None, metadata=HAS_VARIABLE)
    state_snapshot_every: timedelta = field(default=timedelta(0), metadata=HAS_VARIABLE)
    format: Any = None
    schema_registry: Any = field(default=None, repr=False, metadata=SECRET)
    register_schemas: bool = field(default=False, metadata=HAS_VARIABLE)
    rocksdb_cache_bytes: int = 64 * 1024 * 1024
    rocksdb_write_buffer_bytes: int = field(default=64 * 1024 * 1024, metadata=POSITIVE)


SECRETS = tuple(one.name for one in fields(ActorOptions) if one.metadata.get("is_secret"))


def milliseconds(span: timedelta) -> int:
    """Return a time span in whole milliseconds."""
    return span // timedelta(milliseconds=1)
