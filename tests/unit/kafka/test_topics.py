"""Settings of topics, asked of brokers that may not know a new topic yet."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InvalidConfigurationError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from actors._kafka.admin import topics
from actors._kafka.admin.topics import ANY_TIME, WINDOWED, ChangelogSettings, Topics, check_policy
from actors._kafka.connection import Connection
from actors.errors import BrokerUnavailableError, ConfigurationError


class AnsweredTopics(Topics):
    """Its requests get these answers, the last one again and again."""

    def __init__(self, *answers: list[tuple]) -> None:
        super().__init__(Connection.to("127.0.0.1:9092", client_id="test"), control=None)  # type: ignore[arg-type]
        self.answers = list(answers)

    async def _administer(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        return [SimpleNamespace(resources=self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])]


def settings(name: str) -> tuple:
    return 0, "", 2, name, [("cleanup.policy", "compact")]


def unknown(name: str) -> tuple:
    return UnknownTopicOrPartitionError.errno, "", 2, name, []


async def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again() -> None:
    asked = AnsweredTopics([settings("old"), unknown("new")], [unknown("new")], [settings("old"), settings("new")])
    found = await asked.configs(["old", "new"])
    assert found == {"old": {"cleanup.policy": "compact"}, "new": {"cleanup.policy": "compact"}}
    assert len(asked.answers) == 1


async def test_a_topic_that_no_broker_shows_is_an_error_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "VISIBLE_S", 0.0)
    with pytest.raises(BrokerUnavailableError, match="settings of topic new: UnknownTopicOrPartitionError: no reason"):
        await AnsweredTopics([unknown("new")]).configs(["new"])


async def test_other_errors_are_not_waited_for() -> None:
    refused = (TopicAuthorizationFailedError.errno, "not for you", 2, "secret", [])
    with pytest.raises(BrokerUnavailableError, match="topic secret: TopicAuthorizationFailedError: not for you"):
        await AnsweredTopics([unknown("new"), refused]).configs(["new", "secret"])


async def test_a_broker_that_lacks_the_limits_of_times_makes_the_topic_without_them() -> None:
    asked: list[dict[str, str]] = []

    class OldBroker(Topics):
        async def _administer(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
            return await call(self)

        async def create_topics(self, topics: list[Any]) -> Any:
            asked.extend(topic.topic_configs for topic in topics)
            unknown = InvalidConfigurationError.errno if "message.timestamp.after.max.ms" in asked[-1] else 0
            return SimpleNamespace(topic_errors=[(topic.name, unknown, "unknown name") for topic in topics])

    broker = OldBroker(Connection.to("127.0.0.1:9092", client_id="test"), control=None)  # type: ignore[arg-type]
    config = {"retention.ms": "-1"}
    await broker._create({"made": 3}, 1, {**config, **ANY_TIME})
    assert asked == [{**config, **ANY_TIME}, config]


async def test_a_topic_with_a_setting_that_no_broker_takes_is_an_error() -> None:
    class Strict(Topics):
        async def _administer(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
            return SimpleNamespace(topic_errors=[("made", InvalidConfigurationError.errno, "no")])

    broker = Strict(Connection.to("127.0.0.1:9092", client_id="test"), control=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="topic made can't be made: InvalidConfigurationError: no"):
        await broker._create({"made": 3}, 1, {**ANY_TIME})


KEPT_MS = 7_200_000
SHORTER = {"cleanup.policy": WINDOWED, "retention.ms": str(KEPT_MS - 1)}


@pytest.mark.parametrize("given", [str(KEPT_MS), str(KEPT_MS + 1), "-1", None])
def test_a_changelog_of_windows_may_keep_records_as_long_as_the_windows_or_longer(given: str | None) -> None:
    # Brokers write the policy in any order.
    policy = ",".join(reversed(WINDOWED.split(",")))
    check_policy("sales", {"cleanup.policy": policy} | ({} if given is None else {"retention.ms": given}), KEPT_MS)


def test_a_changelog_that_deletes_records_of_windows_that_are_kept_is_refused() -> None:
    mended = rf"topic sales has retention.ms={KEPT_MS - 1}.*--topic sales --add-config retention.ms={KEPT_MS}$"
    with pytest.raises(ConfigurationError, match=mended):
        check_policy("sales", SHORTER, KEPT_MS)
    # One without windows deletes nothing by age.
    check_policy("counts", {"cleanup.policy": "compact", "retention.ms": "1"}, None)
    with pytest.raises(ConfigurationError, match=r"cleanup.policy=compact: it has windows.*=\[compact,delete\]$"):
        check_policy("sales", {"cleanup.policy": "compact", "retention.ms": "-1"}, KEPT_MS)


async def test_a_worker_does_not_start_on_a_changelog_that_keeps_windows_too_shortly() -> None:
    class Found(AnsweredTopics):
        async def existing(self, names: Any) -> Any:
            return {name: SimpleNamespace(name=name, partitions=2) for name in names}

    settings = ChangelogSettings(
        replication_factor=1,
        min_insync_replicas=None,
        delete_retention_ms=1,
        min_compaction_lag_ms=1,
        max_compaction_lag_ms=1,
        segment_ms=1,
        compression=None,
    )
    for kept_ms, is_fit in ((KEPT_MS - 1, True), (KEPT_MS, False)):
        asked = Found([(0, "", 2, "sales", list(SHORTER.items()))])
        with contextlib.nullcontext() if is_fit else pytest.raises(ConfigurationError, match=r"retention.ms="):
            await asked.ensure_compacted({"sales": 2}, settings, kept_ms={"sales": kept_ms})
