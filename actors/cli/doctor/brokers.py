"""Checks of the brokers: versions, permissions, topics, clocks, and who is in the group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from actors._faust.startup.needs import missing_needs, principal_of, spared_text, topic_needs
from actors._faust.startup.open_files import why_few_files
from actors._faust.startup.topic_settings import MISSING, command, compare, told
from actors._kafka.admin.broker_time import BROKER_TIME, BROKER_TIME_CONFIG, broker_time_ms
from actors._kafka.admin.control import UPGRADE, ControlPlane
from actors._kafka.admin.groups import member_count
from actors._kafka.admin.topics import Topics, why_unfit
from actors._kafka.consume.standby_owners import KafkaCopies
from actors._kafka.permissions import acl_commands
from actors._kafka.transaction_requests import ApiVersionsRequest, finalized_features
from actors.cli.doctor.report import Level, Result
from actors.declare.options import milliseconds
from actors.runtime.clock import AHEAD_MS, machine_ms
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors._faust.setup import Setup

FEATURE, VERSION_2 = "transaction.version", 2
_END_TXN, _END_TXN_OF_VERSION_2 = 26, 5


class Brokers:
    """The brokers of an app, for its checks. `topics` changes nothing."""

    def __init__(self, setup: Setup, control: ControlPlane) -> None:
        self.setup = setup
        self.control = control
        self.topics = Topics(setup.connection, control)
        self.needs = topic_needs(setup)


async def versions(at: Brokers) -> AsyncIterator[Result]:
    """Check that the brokers have the requests that workers send, and the second version of transactions."""
    if why := await at.control.why_too_old():
        yield Result("brokers", Level.ERROR, why, UPGRADE)
        return
    answer = await at.control.ask_any(ApiVersionsRequest("faust-actors", "1", {}))
    level = finalized_features(answer).get(FEATURE, 0)
    if level >= VERSION_2:
        return
    why = "each transaction takes more requests, and a request of an earlier one may come late into the next (KIP-890)"
    # An answer to this version of the request leaves out the features that the broker could have.
    highest = {key: version for key, _, version, _ in answer.api_keys}
    if highest.get(_END_TXN, 0) >= _END_TXN_OF_VERSION_2:
        yield Result(
            "brokers",
            Level.WARNING,
            f"the cluster could have {FEATURE} {VERSION_2} and has {level}: {why}",
            f"kafka-features.sh --bootstrap-server {at.setup.connection.bootstrap[0]} upgrade --feature "
            f"{FEATURE}={VERSION_2}",
        )
    else:
        yield Result("brokers", Level.NOTE, f"without {FEATURE} {VERSION_2} {why}", "Kafka 4.0 and later have it")


async def permissions(at: Brokers) -> AsyncIterator[Result]:
    """Check what the workers' user may do, and which topics are missing that no worker makes."""
    setup, bootstrap = at.setup, at.setup.connection.bootstrap[0]
    lacks = await missing_needs(setup, at.control, at.topics, at.needs)
    user = principal_of(setup)
    if lacks.permissions:
        yield Result(
            "permissions",
            Level.ERROR,
            f"the workers' user ({user}) lacks {', '.join(map(str, lacks.permissions))}",
            "; ".join(acl_commands(lacks.permissions, bootstrap=bootstrap, principal=user)),
        )
    if lacks.spared:
        yield Result(
            "permissions",
            Level.WARNING,
            spared_text(lacks.spared),
            "; ".join(acl_commands(lacks.spared, bootstrap=bootstrap, principal=user)),
        )
    may_create = setup.app.actor_options.create_topics
    for need in lacks.topics:
        if need.is_made and may_create:
            continue
        why = "; ".join(need.roles)
        level = Level.WARNING if need.is_output else Level.ERROR
        remedy = f"`faust -A APP topics create --partitions 8` makes it, with all others (it is for: {why})"
        yield Result("topics", level, f"topic {need.name} isn't on the broker", remedy)


async def topics(at: Brokers) -> AsyncIterator[Result]:
    """Check the number of partitions and the settings of the topics that there are."""
    found = [finding for finding in await compare(at.setup, at.needs) if finding.what != MISSING]
    for is_error, level in ((True, Level.ERROR), (False, Level.WARNING)):
        kind = [finding for finding in found if finding.is_error is is_error]
        for line, repair in told(at.setup.connection.bootstrap[0], kind):
            yield Result("topics", level, line, repair)
    kept = at.setup.kept_ms()
    for name, config in (await at.topics.configs(await at.topics.existing(kept))).items():
        if (trouble := why_unfit(name, config, kept[name])) is not None:
            what, change = trouble
            yield Result("retention", Level.ERROR, what, command(at.setup.connection.bootstrap[0], change, [name]))


async def clock(at: Brokers) -> AsyncIterator[Result]:
    """Compare this machine's clock with the brokers', by a record without meaning in the leader registry."""
    topic, margin_ms = at.setup.owners_topic, milliseconds(at.setup.app.actor_options.clock_skew_margin)
    if topic not in await at.topics.existing([topic]):
        yield Result("clock", Level.NOTE, f"it isn't compared: topic {topic} is made by the first worker that starts")
        return
    asked_ms = machine_ms()
    broker_ms = await broker_time_ms(at.setup.connection, topic)
    now_ms = machine_ms()
    if broker_ms is None:
        change = "=".join((BROKER_TIME, BROKER_TIME_CONFIG[BROKER_TIME]))
        yield Result(
            "clock",
            Level.WARNING,
            f"it can't be compared with the brokers': topic {topic} has another {BROKER_TIME}",
            f"kafka-configs.sh --bootstrap-server {at.setup.connection.bootstrap[0]} --alter --topic {topic} "
            f"--add-config {change}",
        )
        return
    # The broker's time was taken in between.
    off_ms = max(asked_ms - broker_ms, 0) or min(now_ms - broker_ms, 0)
    if abs(off_ms) > AHEAD_MS:
        side, is_far = "ahead of" if off_ms > 0 else "behind", abs(off_ms) > margin_ms
        follows = (
            f", more than clock_skew_margin={margin_ms / 1000:g} s: a worker here goes by the earlier of both, so that "
            "timers and expiry may be late"
        )
        yield Result(
            "clock",
            Level.ERROR if is_far else Level.WARNING,
            f"this machine's clock is {abs(off_ms) / 1000:.1f} s {side} the broker's"
            f"{follows if is_far else '; timers go by it'}",
            "Set the clocks right (NTP)",
        )


async def group(at: Brokers) -> AsyncIterator[Result]:
    """Say which workers there are, and which members of the group aren't workers of this app."""
    members = await member_count(at.setup.connection, at.setup.group)
    yield Result("group", Level.NOTE, f"group {at.setup.group} has {counted(members, 'member')}")
    for trouble in (await KafkaCopies(at.control, at.setup.group).members()).troubles if members else ():
        remedy = "Stop that program, or give it a group of its own"
        yield Result("group", Level.WARNING, trouble, remedy)


async def files(at: Brokers) -> AsyncIterator[Result]:
    """Check that the limit of open files suffices for all partitions of the app."""
    definitions = list(at.setup.app.actors.values())
    found = await at.topics.existing(one.topic_name for one in definitions)
    actors = [(found[one.topic_name].partitions, len(one.stores)) for one in definitions if one.topic_name in found]
    if (few := why_few_files(actors, at.control.broker_count)) is not None:
        yield Result("files", Level.WARNING, *few)
