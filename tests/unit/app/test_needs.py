"""What an app needs of its cluster: topics, settings and permissions, as it says and as the pages say."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from faust.cli.faust import cli

from actors import App
from actors._faust.setup import Setup
from actors._faust.startup.needs import TopicNeed, counts, permissions, topic_needs
from actors._faust.startup.topic_settings import Finding, command, findings, told
from actors._kafka.admin.control import TopicInfo
from actors._kafka.permissions import Operation, Permission, acl_commands
from actors.cli.deploy.topics import FORMATS, kafka_topics, topics_as_json
from tests.documents import ROOT
from tests.kafka.apps.needs_app import FEATURES, make

BOOTSTRAP = "127.0.0.1:9092"
GOOD = {
    "cleanup.policy": "compact",
    "max.message.bytes": "1048588",
    "max.compaction.lag.ms": "604800000",
    "min.insync.replicas": "2",
    "message.timestamp.type": "CreateTime",
    "unclean.leader.election.enable": "false",
}
NAMES = {
    "app": "shop",
    "input": "shop-in",
    "output": "shop-out",
    "store": "counts",
    "model": "shop-models",
    "viewed": "shop-seen",
    "actor": "work",
    "asked": "shop-asked",
    "answering": "answer",
    "keyed": "shop-keyed",
    "rekeying": "forward",
    "cron": "report",
}
ALWAYS = ("an actor", "other declared topics, which handlers send to")
ROWS = {
    "store": ("a store, or the state of a class actor",),
    "publish": ("a store, or the state of a class actor", "`publish=`"),
    "view": ("a view",),
    "timers": ("`timers=True`",),
    "effects": ("`effects=`",),
    "dedupe": ("`dedupe_by=`",),
    "park": ('`on_error="park"`', '`on_error="park"`, `dead_letters=True`'),
    "ask": ("an actor that answers",),
    "by": ("`by=`",),
    "cron": ("`@app.cron`",),
    "limit": ("`effects=`", "`limit=`, `rate=`"),
}


def setup_of(features: Collection[str], **options: Any) -> Setup:
    """Give the settings of an app with these features."""
    features = {*features, *(["store"] if "publish" in features else [])}
    return Setup(make("shop", features, broker=f"kafka://{BOOTSTRAP}", **options))


def needed(features: Collection[str], **options: Any) -> tuple[Setup, dict[str, TopicNeed]]:
    """Give what such an app needs, by topic."""
    setup = setup_of(features, **options)
    return setup, {need.name: need for need in topic_needs(setup)}


# --- permissions -----------------------------------------------------------------------------------------------------


def the_table() -> Mapping[str, list[tuple[str, str]]]:
    """Give the rows of docs/how-to/security.md: by feature, resources with operations."""
    page = (ROOT / "docs" / "how-to" / "security.md").read_text()
    table = page[page.index("### Permissions") : page.index("## Files")]
    rows = re.findall(r"^\| (.+?) \| (\w.*?`.*?`) \| ([A-Za-z, ]+) \|$", table, re.MULTILINE)
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for feature, resource, operations in rows:
        kind = resource.split()[0].removesuffix("s")
        found[feature] += [(f"{kind} `{name}`", operations) for name in re.findall("`(.+?)`", resource)]
    return found


def told_of(resource: str, operations: str) -> list[Permission]:
    """Give the permissions of a row, with the names of the app in place."""
    kind, name = re.fullmatch(r"(\w+)[^`]*`(.+)`", resource).groups()  # type: ignore[union-attr]
    kinds = {"topic": "topic", "group": "group", "transactional": "transactional-id"}
    words = {operation.word: operation for operation in Operation}
    return [Permission(kinds[kind], name.format(**NAMES), words[word]) for word in operations.split(", ")]


@pytest.mark.parametrize("features", [[], *([feature] for feature in ROWS), list(ROWS)], ids=str)
def test_an_app_needs_what_the_table_has_for_its_features(features: list[str]) -> None:
    table = the_table()
    wanted = {row for feature in features for row in ROWS[feature]} | {*ALWAYS}
    told = {one for row in wanted for resource, operations in table[row] for one in told_of(resource, operations)}
    setup, needs = needed(features)
    assert set(permissions(setup, needs.values())) == told


def test_the_table_has_no_other_features() -> None:
    assert {*the_table()} == {*ALWAYS, *(row for rows in ROWS.values() for row in rows)}


def test_commands_name_each_resource_once_with_its_operations() -> None:
    wanted = [
        Permission("topic", "b", Operation.WRITE),
        Permission("topic", "a", Operation.READ),
        Permission("topic", "b", Operation.READ),
        Permission("topic", "c", Operation.READ),
        Permission("transactional-id", "shop:", Operation.WRITE),
    ]
    head = f"kafka-acls.sh --bootstrap-server {BOOTSTRAP} --add --allow-principal User:bank"
    assert acl_commands(wanted, bootstrap=BOOTSTRAP, principal="User:bank") == [
        f"{head} --operation Read --topic a --topic c",
        f"{head} --operation Read --operation Write --topic b",
        f"{head} --operation Write --transactional-id shop: --resource-pattern-type prefixed",
    ]


def test_names_from_certificates_and_programs_are_one_word_of_a_shell() -> None:
    user = "User:CN=bank one,O=$(reboot)"
    (line,) = acl_commands([Permission("topic", "a;b", Operation.READ)], bootstrap="b:1", principal=user)
    assert shlex.split(line)[-5:] == [user, "--operation", "Read", "--topic", "a;b"]
    need = TopicNeed(name="a b", roles=("x",), operations=frozenset())
    line = kafka_topics([need], bootstrap="b:1", free=4, replication=None)
    assert shlex.split(line)[5:7] == ["--topic", "a b"]


# --- topics ----------------------------------------------------------------------------------------------------------


def test_all_topics_are_there_with_their_partitions() -> None:
    _, needs = needed(FEATURES)
    sizes = counts(needs.values(), 4)
    assert {name: size for name, size in sizes.items() if size != 4} == {
        "shop-actors-owners": 1,
        "shop-dead-letters": 1,
        "shop-replies": 8,
        "shop--report-cron": 1,
        "shop--report-timers-changelog": 1,
        "shop-permits": 8,
        "shop--permits-changelog": 8,
        "shop--permits-timers-changelog": 8,
        "shop--permits-answers-changelog": 8,
    }
    assert {name for name, need in needs.items() if not need.is_made} == {
        "shop-in",
        "shop-out",
        "shop-asked",
        "shop-seen",
        "shop-keyed",
    }
    assert len(needs) == 22


def test_settings_are_those_with_which_a_worker_makes_them() -> None:
    setup, needs = needed(["store", "ask"], changelog_min_insync_replicas=2)
    made = setup.changelog_settings.topic_config()
    assert needs["shop--counts-changelog"].config == made
    assert made["min.insync.replicas"] == "2"
    assert needs["shop-actors-owners"].config == {**made, "message.timestamp.type": "LogAppendTime"}
    assert needs["shop-replies"].config["cleanup.policy"] == "delete"


# --- what is printed -------------------------------------------------------------------------------------------------


def test_kafkas_tools_make_each_topic() -> None:
    _, needs = needed(FEATURES)
    lines = kafka_topics(list(needs.values()), bootstrap=BOOTSTRAP, free=4, replication=3).splitlines()
    assert len(lines) == 22
    head = f"kafka-topics.sh --bootstrap-server {BOOTSTRAP} --create --if-not-exists --topic"
    assert f"{head} shop-in --partitions 4 --replication-factor 3" in lines
    assert any(
        line.startswith(f"{head} shop--counts-changelog --partitions 4 --replication-factor 3 --config cleanup.pol")
        for line in lines
    )
    given = kafka_topics(list(needs.values()), bootstrap=BOOTSTRAP, free=4, replication=None)
    assert "--replication-factor" not in given


def test_json_says_which_number_follows_which() -> None:
    setup, needs = needed(FEATURES)
    found = topics_as_json(list(needs.values()), permissions(setup, needs.values()))
    by_name = {one["topic"]: one for one in found["topics"]}
    assert (by_name["shop-in"]["partitions"], by_name["shop-in"]["partitions_of"]) == (None, None)
    assert by_name["shop--counts-changelog"]["partitions_of"] == "shop-in"
    assert by_name["shop-actors-owners"]["partitions"] == 1
    assert {one["pattern"] for one in found["permissions"]} == {"literal", "prefixed"}
    json.dumps(found)


@pytest.mark.parametrize("shape", FORMATS)
def test_the_command_asks_no_broker(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    # A command silences the client for the rest of its process; the fixture puts the level back.
    caplog.set_level(logging.NOTSET, logger="aiokafka")
    run = CliRunner().invoke(cli, ["-A", "tests.unit.cli.needs_app", "topics", "--format", shape])
    assert run.exit_code == 0, run.output
    assert "needs--counts-changelog" in run.output


# --- settings of existing topics -------------------------------------------------------------------------------------


def seen(topic: str, change: Mapping[str, str], *, replicas: int = 3, brokers: int = 3) -> list[Finding]:
    """Give the findings where one topic has other settings."""
    setup, needs = needed(["store", "timers", "by"])
    found = {name: TopicInfo(name, uuid4(), 4, replicas if name == topic else 3) for name in needs}
    policy = {"cleanup.policy": "delete"}
    good = {name: {**GOOD, **(policy if name.endswith("-repartition") else {})} for name in needs}
    configs = {name: {**config, **(change if name == topic else {})} for name, config in good.items()}
    if brokers == 1:
        found = {name: TopicInfo(name, uuid4(), 4, 1) for name in needs}
        configs = {name: {**config, "min.insync.replicas": "1"} for name, config in configs.items()}
    return findings(setup, needs.values(), found, configs, broker_count=brokers)


def test_good_settings_are_not_told() -> None:
    assert seen("shop-in", {}) == []
    assert seen("shop-in", {}, brokers=1) == [], "one broker can't do better"


@pytest.mark.parametrize(
    ("topic", "change", "replicas", "what", "repair"),
    [
        ("shop--counts-changelog", {"min.insync.replicas": "1"}, 1, "one replica", ""),
        ("shop-in", {"min.insync.replicas": "1"}, 3, "min.insync.replicas=1", "min.insync.replicas=2"),
        (
            "shop-out",
            {"unclean.leader.election.enable": "true"},
            3,
            "unclean.leader.election.enable=true",
            "unclean.leader.election.enable=false",
        ),
        (
            "shop-in",
            {"message.timestamp.type": "LogAppendTime"},
            3,
            "message.timestamp.type=LogAppendTime",
            "message.timestamp.type=CreateTime",
        ),
        (
            "shop--counts-changelog",
            {"max.message.bytes": "500000"},
            3,
            "max.message.bytes=500000",
            "max.message.bytes=1048588",
        ),
        (
            "shop--counts-changelog",
            {"max.compaction.lag.ms": "9223372036854775807"},
            3,
            "max.compaction.lag.ms=9223372036854775807",
            "max.compaction.lag.ms=604800000",
        ),
    ],
)
def test_a_setting_that_endangers_something_is_told_with_its_repair(
    topic: str, change: dict[str, str], replicas: int, what: str, repair: str
) -> None:
    (one,) = seen(topic, change, replicas=replicas)
    assert (one.topic, one.what, one.change, one.is_error) == (topic, what, repair, False)
    ((line, mended),) = told(BOOTSTRAP, [one])
    assert (line.startswith(f"topic {topic}: {what}: "), mended) == (True, command(BOOTSTRAP, repair, [topic]))
    assert f"--add-config {repair}" in mended if repair else "kafka-reassign-partitions.sh" in mended


def test_more_replicas_in_sync_than_there_are_is_an_error() -> None:
    (one,) = seen("shop--counts-changelog", {"min.insync.replicas": "3"}, replicas=2)
    assert (one.is_error, one.change) == (True, "min.insync.replicas=1")
    (one, *_) = seen("shop-in", {"min.insync.replicas": "2"}, replicas=1)
    assert (one.is_error, one.change) == (False, "min.insync.replicas=1"), "a worker only reads it"


REKEYED = "shop--forward-shop-keyed-repartition"


@pytest.mark.parametrize(
    ("name", "value", "good", "is_error"),
    [
        ("cleanup.policy", "compact,delete", "delete", True),
        ("retention.ms", "604800000", "-1", False),
        ("retention.bytes", "1", "-1", False),
        ("message.timestamp.type", "LogAppendTime", "CreateTime", False),
        ("message.timestamp.after.max.ms", "3600000", "9223372036854775807", False),
        ("message.timestamp.before.max.ms", "3600000", "9223372036854775807", False),
    ],
)
def test_a_repartition_topic_keeps_what_is_not_handled(name: str, value: str, good: str, is_error: bool) -> None:
    (one,) = seen(REKEYED, {name: value})
    assert (one.what, one.change, one.is_error) == (f"{name}={value}", f"{name}={good}", is_error)


def test_neither_a_worker_nor_faust_makes_topics_where_that_is_forbidden() -> None:
    assert not App("shop", broker="kafka://127.0.0.1:1", create_topics=False).conf.topic_allow_declare
    assert App("shop", broker="kafka://127.0.0.1:1").conf.topic_allow_declare


def test_the_same_of_several_topics_is_one_line() -> None:
    several = [*seen("shop-in", {"min.insync.replicas": "1"}), *seen("shop-out", {"min.insync.replicas": "1"})]
    ((line, mended),) = told(BOOTSTRAP, several)
    assert line.startswith("topics shop-in, shop-out: min.insync.replicas=1: ")
    assert "for t in shop-in shop-out; do kafka-configs.sh" in mended


def test_times_of_appends_matter_to_actors_with_timers_only() -> None:
    setup, needs = needed(["store"])
    found = {name: TopicInfo(name, uuid4(), 4, 3) for name in needs}
    configs = {name: {**GOOD, "message.timestamp.type": "LogAppendTime"} for name in needs}
    assert findings(setup, needs.values(), found, configs, broker_count=3) == []


def test_a_sink_reads_its_topic_in_a_group_of_its_own() -> None:
    app = App("shop", broker="kafka://127.0.0.1:9092")
    app.sink(app.topic("orders", key_type=str, value_type=int), name="rows")(print)
    setup = Setup(app)
    (need,) = topic_needs(setup)
    assert (need.name, need.roles) == ("orders", ("read by sinks",))
    assert need.operations == {Operation.READ, Operation.DESCRIBE_CONFIGS}
    assert Permission("group", "shop--sink-rows", Operation.READ) in permissions(setup, [need])
