"""What is said of a permission that is missing, and how often."""

from __future__ import annotations

import logging

import pytest
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from actors import App, Context
from actors._core.logs import Reminders
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.permissions import READ, WRITE, lacking
from actors.errors import BrokerUnavailableError, OutcomeUnknownError, RestoreError
from actors.runtime.message.failures import REMIND_S, is_repeated
from actors.testing import ActorTestDriver

ALICE = Connection(("127.0.0.1:9092",), security={"security_protocol": "SASL_SSL", "sasl_plain_username": "alice"})


@pytest.mark.parametrize(
    ("error", "name", "says", "options"),
    [
        (TopicAuthorizationFailedError("out"), "", "Write on topic out", "--operation Write --topic out"),
        (TopicAuthorizationFailedError({"b", "a"}), "", "Write on topic a, b", "--topic a --topic b"),
        (TopicAuthorizationFailedError(), "in", "Write on topic in", "--topic in"),
        (GroupAuthorizationFailedError("g"), "", "Read on group g", "--operation Read --group g"),
        (
            TransactionalIdAuthorizationFailed("shop:count:7"),
            "",
            "Write on transactional ids that begin with shop:",
            "--transactional-id shop: --resource-pattern-type prefixed",
        ),
        (ClusterAuthorizationFailedError(), "", "IdempotentWrite on cluster", "--operation IdempotentWrite --cluster"),
    ],
)
def test_operation_resource_and_principal_are_named_with_the_command(
    error: KafkaError, name: str, says: str, options: str
) -> None:
    text = lacking(error, ALICE.principal, WRITE, name=name)
    assert text.startswith(f"User:alice isn't allowed {says}. Grant it: kafka-acls.sh ")
    assert "--add --allow-principal User:alice " in text
    assert text.endswith(options)


def test_users_that_only_the_brokers_know_are_not_guessed() -> None:
    by_certificate = Connection((), security={"security_protocol": "SSL"}).principal
    assert by_certificate == ""
    assert lacking(GroupAuthorizationFailedError("g"), by_certificate).startswith("the principal of this program isn't")
    assert Connection(()).principal == "User:ANONYMOUS"
    assert lacking(KafkaError(), "User:alice") == lacking(None, "User:alice") == ""


def test_a_read_that_is_not_allowed_says_so() -> None:
    with (
        pytest.raises(BrokerUnavailableError, match="following: User:alice isn't allowed Read on topic in") as raised,
        broker_errors("following", ALICE, READ),
    ):
        raise TopicAuthorizationFailedError("in")
    assert raised.value.missing


def test_a_missing_permission_is_said_once_a_minute_for_all_tasks() -> None:
    reminders = Reminders(REMIND_S)
    one = OutcomeUnknownError("commit of a at 7: bob isn't allowed", missing="bob isn't allowed")
    other = OutcomeUnknownError("commit of b at 9: bob isn't allowed", missing="bob isn't allowed")
    assert not is_repeated(one, reminders, 0.0)
    assert is_repeated(other, reminders, 1.0)
    assert not is_repeated(other, reminders, REMIND_S)
    assert not is_repeated(OutcomeUnknownError("timeout"), reminders, REMIND_S)
    assert not is_repeated(OutcomeUnknownError("timeout"), reminders, REMIND_S)
    assert not is_repeated(RestoreError("not to be read"), reminders, REMIND_S)
    assert is_repeated(RestoreError("not to be read"), reminders, REMIND_S + 1)
    is_repeated(one, reminders, 10 * REMIND_S)
    assert len(reminders._said_s) == 1, "what wasn't said for long is forgotten"


def test_a_partition_that_goes_on_says_so_though_another_one_met_the_same(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("in", key_type=str, value_type=str))
    async def work(ctx: Context, value: str) -> None: ...

    def said(what: str) -> int:
        return sum(what in message for message in caplog.messages)

    with ActorTestDriver(app, partitions=2) as driver, caplog.at_level(logging.INFO):
        driver.settle()
        tasks = driver._worker.tasks  # type: ignore[union-attr]
        before = said("actor work owns")
        for owned in (2, 2):
            for task in tasks:
                task.reinitialize("the input can't be read")
            driver.advance(5)
            assert said("actor work owns") - before == owned
        for number in range(2):
            assert said(f"in[{number}]: the input can't be read; taking over again") == 1
