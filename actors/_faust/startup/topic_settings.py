"""Settings of existing topics that endanger what a worker promises: each with what follows from it, and the command.

An error is a setting with which the worker can't do its work, a warning one with which it may lose something later.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors._core.logs import escaping
from actors._faust.inputs import REPARTITION_CONFIG
from actors._faust.startup.needs import TopicNeed
from actors._kafka.admin.broker_time import BROKER_TIME
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors._kafka.admin.topics import ANY_TIME, Topics
from actors._kafka.permissions import Operation
from actors.declare.options import milliseconds
from actors.errors import ConfigurationError
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup

logger = escaping(logging.getLogger(__name__))

LEAST_RECORD_BYTES = 64 * 1024
"""The room for a slice of 48 KiB with its headers and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a topic's settings.

    Attributes:
        topic: the topic's name.
        what: the setting, as it is.
        why: what follows from it.
        change: what `--add-config` of `kafka-configs.sh` repairs it with; "" where another tool is needed.
        is_error: whether the worker can't run with it.
    """

    topic: str
    what: str
    why: str
    change: str = ""
    is_error: bool = False


def findings(
    setup: Setup,
    needs: Iterable[TopicNeed],
    found: Mapping[str, TopicInfo],
    configs: Mapping[str, Mapping[str, str]],
    *,
    broker_count: int,
) -> list[Finding]:
    """Look at the topics that there are."""
    largest = {name: int(config["max.message.bytes"]) for name, config in configs.items()}
    tables = {table.topic_name for definition in setup.app.actors.values() for table in definition.tables}
    seen: list[Finding] = []
    for need in needs:
        if need.name in found and need.name in configs:
            config = configs[need.name]
            seen += _replication(need, found[need.name].replicas, config, broker_count)
            seen += _records(need, config, largest.get(need.like, 0))
            if need.keeps:
                seen += _compaction(setup, need.name, config)
            if need.name in tables:
                seen += _table(need.name, config)
            if need.config is REPARTITION_CONFIG:
                seen += _repartition(need.name, config)
    return seen


def _replication(need: TopicNeed, replicas: int, config: Mapping[str, str], broker_count: int) -> Iterator[Finding]:
    topic = need.name
    in_sync = int(config.get("min.insync.replicas", 1))
    if in_sync > replicas > 0:
        yield Finding(
            topic=topic,
            what=f"min.insync.replicas={in_sync} and {replicas} replicas",
            why="no write is ever acknowledged",
            change=f"min.insync.replicas={max(1, replicas - 1)}",
            # Others may write an input without waiting for all replicas.
            is_error=Operation.WRITE in need.operations,
        )
    if replicas == 1 and broker_count > 1:
        yield Finding(topic=topic, what="one replica", why="what its broker loses is lost")
    if in_sync == 1 and replicas > 1:
        yield Finding(
            topic=topic,
            what="min.insync.replicas=1",
            why="a commit that only one broker has is lost with that broker",
            change="min.insync.replicas=2",
        )
    if config.get("unclean.leader.election.enable") == "true" and replicas > 1:
        yield Finding(
            topic=topic,
            what="unclean.leader.election.enable=true",
            why="a replica that lacks committed records may become the leader, and they are lost",
            change="unclean.leader.election.enable=false",
        )


def _records(need: TopicNeed, config: Mapping[str, str], input_bytes: int) -> Iterator[Finding]:
    if need.has_timers and config.get(BROKER_TIME) == "LogAppendTime":
        yield Finding(
            topic=need.name,
            what=f"{BROKER_TIME}=LogAppendTime",
            why="timers with stream_time=True would use the time at which records were appended, not their own",
            change=f"{BROKER_TIME}=CreateTime",
        )
    largest = int(config["max.message.bytes"])
    wanted = max(LEAST_RECORD_BYTES, input_bytes)
    if need.keeps and largest < wanted:
        yield Finding(
            topic=need.name,
            what=f"max.message.bytes={largest}",
            why=f"what the app may write can be larger, up to {wanted} bytes: it would stop the partition",
            change=f"max.message.bytes={wanted}",
        )


def _compaction(setup: Setup, topic: str, config: Mapping[str, str]) -> Iterator[Finding]:
    wanted_ms, lag_ms = milliseconds(setup.app.actor_options.changelog_max_compaction_lag), "max.compaction.lag.ms"
    if int(config.get(lag_ms, wanted_ms)) > wanted_ms:
        yield Finding(
            topic=topic,
            what=f"{lag_ms}={config[lag_ms]}",
            why=f"overwritten and deleted values stay readable longer than changelog_max_compaction_lag={wanted_ms} ms",
            change=f"{lag_ms}={wanted_ms}",
        )


def _table(topic: str, config: Mapping[str, str]) -> Iterator[Finding]:
    if "compact" not in config["cleanup.policy"]:
        yield Finding(
            topic=topic,
            what=f"cleanup.policy={config['cleanup.policy']}",
            why="an app that begins to read it as a table lacks the rows whose records the broker has deleted by then",
            change="cleanup.policy=compact",
        )


def _repartition(topic: str, config: Mapping[str, str]) -> Iterator[Finding]:
    if "compact" in config["cleanup.policy"]:
        yield Finding(
            topic=topic,
            what=f"cleanup.policy={config['cleanup.policy']}",
            why="records that aren't handled yet would be lost to later ones of their key",
            change="cleanup.policy=delete",
            is_error=True,
        )
    if config.get(BROKER_TIME) == "LogAppendTime":
        yield Finding(
            topic=topic,
            what=f"{BROKER_TIME}=LogAppendTime",
            why="records lose their timestamps on the way to their actor",
            change=f"{BROKER_TIME}=CreateTime",
        )
    for limit in ("retention.ms", "retention.bytes"):
        if config.get(limit, "-1") != "-1":
            yield Finding(
                topic=topic,
                what=f"{limit}={config[limit]}",
                why="records that aren't handled by then are lost, and workers delete those that are",
                change=f"{limit}=-1",
            )
    for limit, wanted in ANY_TIME.items():
        if config.get(limit, wanted) != wanted:
            yield Finding(
                topic=topic,
                what=f"{limit}={config[limit]}",
                why="a record whose time is further from the broker's clock would stop the partition that forwards it",
                change=f"{limit}={wanted}",
            )


def command(bootstrap: str, change: str, topics: Sequence[str]) -> str:
    """Return the command that repairs a setting of some topics."""
    if not change:
        return (
            f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap} --execute --reassignment-json-file FILE "
            "gives it more replicas"
        )
    alter = f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --topic"
    if len(topics) == 1:
        return f"{alter} {topics[0]} --add-config {change}"
    return f"for t in {' '.join(topics)}; do {alter} $t --add-config {change}; done"


def told(bootstrap: str, seen: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return a text for each kind of finding, with the topics that have it, and the command that repairs it."""
    kinds: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in seen:
        kinds[one.what, one.why, one.change].append(one.topic)
    return [
        (f"topic{'s' * (len(topics) > 1)} {', '.join(topics)}: {what}: {why}", command(bootstrap, change, topics))
        for (what, why, change), topics in kinds.items()
    ]


async def check_topic_settings(setup: Setup, topics: Topics, needs: Sequence[TopicNeed], *, broker_count: int) -> None:
    """Warn of settings of the app's topics that endanger something.

    Raises:
        ConfigurationError: the worker can't run with some of them.
        BrokerUnavailableError: no broker answers.
    """
    found = await topics.existing(need.name for need in needs)
    seen = findings(setup, needs, found, await topics.configs(found), broker_count=broker_count)
    bootstrap = setup.connection.bootstrap[0]
    errors = [one for one in seen if one.is_error]
    for line, repair in told(bootstrap, (one for one in seen if not one.is_error)):
        logger.warning("%s. %s", line, repair)
    if errors:
        raise ConfigurationError("; ".join(f"{line}. {repair}" for line, repair in told(bootstrap, errors)))


async def compare(setup: Setup, needs: Sequence[TopicNeed]) -> tuple[list[Finding], list[Finding]]:
    """Return the topics that are missing or have another shape, and the findings about their settings.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        asked = Topics(setup.connection, control)
        found = await asked.existing(need.name for need in needs)
        configs = await asked.configs(found)
        seen = findings(setup, needs, found, configs, broker_count=control.broker_count)
    wrong = [_wrong(need, "it is missing", "; ".join(need.roles)) for need in needs if need.name not in found]
    for need in needs:
        if need.name in found:
            wrong += misshapen(need, found, configs[need.name].get("cleanup.policy", ""))
    return wrong, seen


def misshapen(need: TopicNeed, found: Mapping[str, TopicInfo], policy: str) -> list[Finding]:
    """Return an existing topic's faults: in its number of partitions and its cleanup policy."""
    wrong = []
    count, like = found[need.name].partitions, found.get(need.like)
    wanted = need.partitions if like is None else like.partitions
    if need.keeps and wanted is not None and count != wanted:
        wrong.append(
            _wrong(
                need, f"{counted(count, 'partition')}, and not {wanted}", "keys would be looked for in the wrong one"
            )
        )
    if need.config.get("cleanup.policy", policy) != policy:
        wrong.append(_wrong(need, f"cleanup.policy={policy}", "state would be deleted; it has to be compact"))
    return wrong


def _wrong(need: TopicNeed, what: str, why: str) -> Finding:
    return Finding(topic=need.name, what=what, why=why, is_error=True)
