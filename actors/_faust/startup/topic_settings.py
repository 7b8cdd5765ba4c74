"""Settings of existing topics that endanger what a worker promises: each with what follows from it, and the command.

An error is a setting with which the worker can't do its work, a warning one with which it may lose something later.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

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

IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
LAG, LARGEST, POLICY = "max.compaction.lag.ms", "max.message.bytes", "cleanup.policy"
MISSING = "it is missing"
CHOICES = "The documentation's page \"Errors at a worker's start\" has the choices"
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
        remedy: what to do where that is no command.
        is_error: whether the worker can't run with it.
    """

    topic: str
    what: str
    why: str
    change: str = ""
    remedy: str = ""
    is_error: bool = False


class Rule(NamedTuple):
    """A row of the table of what settings have to be, for one topic.

    Attributes:
        is_broken: whether the topic breaks the rule.
        setting: the setting's name; "" where no setting repairs it.
        wanted: the value that repairs it.
        why: what follows from it.
        is_error: whether the worker can't run with it.
        more: what is said behind the setting and its value.
    """

    is_broken: bool
    setting: str
    wanted: object
    why: str
    is_error: bool = False
    more: str = ""


def rules(
    need: TopicNeed, config: Mapping[str, str], *, replicas: int, brokers: int, bytes_: int, lag_ms: int, is_table: bool
) -> Iterator[Rule]:
    """Return the rules for a topic that is there.

    Args:
        need: what the app needs it for.
        config: its settings.
        replicas: how many it has; 0 if that is unknown.
        brokers: how many brokers there are.
        bytes_: the size of the largest record that the app may write there.
        lag_ms: `changelog_max_compaction_lag`.
        is_table: whether a table reads it.
    """
    in_sync, policy = int(config.get(IN_SYNC, 1)), config.get(POLICY, "")
    stamps = config.get(BROKER_TIME) == "LogAppendTime"
    # Others may write an input without waiting for all replicas.
    stops, more = Operation.WRITE in need.operations, f" and {replicas} replicas"
    yield Rule(in_sync > replicas > 0, IN_SYNC, max(1, replicas - 1), "no write is ever acknowledged", stops, more)
    yield Rule(replicas == 1 < brokers, "", "", "what its broker loses is lost", more="one replica")
    why = "a commit that only one broker has is lost with that broker"
    yield Rule(in_sync == 1 < replicas, IN_SYNC, 2, why)
    why = "a replica that lacks committed records may become the leader, and they are lost"
    yield Rule(config.get(UNCLEAN) == "true" and replicas > 1, UNCLEAN, "false", why)
    why = "timers with stream_time=True would use the time at which records were appended, not their own"
    yield Rule(need.has_timers and stamps, BROKER_TIME, "CreateTime", why)
    if need.keeps:
        why = f"what the app may write can be larger, up to {bytes_} bytes: it would stop the partition"
        yield Rule(int(config[LARGEST]) < bytes_, LARGEST, bytes_, why)
        why = f"overwritten and deleted values stay readable longer than changelog_max_compaction_lag={lag_ms} ms"
        yield Rule(int(config.get(LAG, lag_ms)) > lag_ms, LAG, lag_ms, why)
    why = "an app that begins to read it as a table lacks the rows whose records the broker has deleted by then"
    yield Rule(is_table and "compact" not in policy, POLICY, "compact", why)
    if need.config is not REPARTITION_CONFIG:
        return
    why = "records that aren't handled yet would be lost to later ones of their key"
    yield Rule("compact" in policy, POLICY, "delete", why, is_error=True)
    yield Rule(stamps, BROKER_TIME, "CreateTime", "records lose their timestamps on the way to their actor")
    why = "records that aren't handled by then are lost, and workers delete those that are"
    for limit in ("retention.ms", "retention.bytes"):
        yield Rule(config.get(limit, "-1") != "-1", limit, -1, why)
    why = "a record whose time is further from the broker's clock would stop the partition that forwards it"
    for limit, wanted in ANY_TIME.items():
        yield Rule(config.get(limit, wanted) != wanted, limit, wanted, why)


def findings(
    setup: Setup,
    needs: Iterable[TopicNeed],
    found: Mapping[str, TopicInfo],
    configs: Mapping[str, Mapping[str, str]],
    *,
    broker_count: int,
) -> list[Finding]:
    """Look at the topics that there are."""
    largest = {name: int(config[LARGEST]) for name, config in configs.items()}
    # What a database's changes come by is made of the topic that has the rows.
    tables = {
        table.topic.made_of or table.topic_name
        for definition in setup.app.actors.values()
        for table in definition.tables
    }
    return [
        Finding(
            topic=need.name,
            what=f"{rule.setting and f'{rule.setting}={configs[need.name].get(rule.setting, 1)}'}{rule.more}",
            why=rule.why,
            change=rule.setting and f"{rule.setting}={rule.wanted}",
            is_error=rule.is_error,
        )
        for need in needs
        if need.name in found and need.name in configs
        for rule in rules(
            need,
            configs[need.name],
            replicas=found[need.name].replicas,
            brokers=broker_count,
            bytes_=max(LEAST_RECORD_BYTES, largest.get(need.like, 0)),
            lag_ms=milliseconds(setup.app.actor_options.changelog_max_compaction_lag),
            is_table=need.name in tables,
        )
        if rule.is_broken
    ]


def repair(bootstrap: str, finding: Finding) -> str:
    return finding.remedy or command(bootstrap, finding.change, [finding.topic])


def command(bootstrap: str, change: str, topics: Sequence[str]) -> str:
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
    kinds: dict[Finding, list[str]] = defaultdict(list)
    for one in seen:
        kinds[replace(one, topic="")].append(one.topic)
    return [
        (
            f"topic{'s' * (len(topics) > 1)} {', '.join(topics)}: {kind.what}: {kind.why}",
            kind.remedy or command(bootstrap, kind.change, topics),
        )
        for kind, topics in kinds.items()
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


async def compare(setup: Setup, needs: Sequence[TopicNeed]) -> list[Finding]:
    """Return the findings about topics: first those that are missing or have another shape, then their settings.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        asked = Topics(setup.connection, control)
        found = await asked.existing(need.name for need in needs)
        configs = await asked.configs(found)
        seen = findings(setup, needs, found, configs, broker_count=control.broker_count)
    wrong = []
    for need in needs:
        if need.name in found:
            wrong += misshapen(need, found, configs[need.name])
        else:
            why, remedy = "; ".join(need.roles), "`faust -A APP topics create` makes it"
            wrong.append(Finding(topic=need.name, what=MISSING, why=why, remedy=remedy, is_error=True))
    return [*wrong, *seen]


def misshapen(need: TopicNeed, found: Mapping[str, TopicInfo], config: Mapping[str, str]) -> list[Finding]:
    """Return an existing topic's faults: in its number of partitions and its cleanup policy."""
    count, like, policy = found[need.name].partitions, found.get(need.like), config.get(POLICY, "")
    partitions = need.partitions if like is None else like.partitions
    faults = []
    if need.keeps and partitions is not None and count != partitions:
        what = f"{counted(count, 'partition')}, and not {partitions}"
        faults.append((what, "keys would be looked for in the wrong one"))
    if sorted(need.config.get(POLICY, policy).split(",")) != sorted(policy.split(",")):
        faults.append((f"{POLICY}={policy}", f"state would be deleted; it has to be {need.config[POLICY]}"))
    return [Finding(topic=need.name, what=what, why=why, remedy=CHOICES, is_error=True) for what, why in faults]
