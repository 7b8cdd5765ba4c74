"""Settings of topics, asked of brokers that may not know a new topic yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from actors._kafka.admin import topics
from actors._kafka.admin.topics import Topics
from actors._kafka.connection import Connection
from actors.errors import BrokerUnavailableError


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
