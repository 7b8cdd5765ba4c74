"""Topics and permissions as data and as commands of Kafka's tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from actors._faust.startup.needs import TopicNeed, counts
from actors._kafka.permissions import Permission, acl_commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Topics and grants to print.

    Attributes:
        needs: the topics.
        permissions: what `principal`, as `User:NAME`, has to be allowed.
        bootstrap: the brokers' addresses.
        partitions: of topics whose number is free.
        replication: how many replicas; None leaves that to the brokers.
    """

    needs: Sequence[TopicNeed]
    permissions: Sequence[Permission]
    bootstrap: str
    principal: str
    partitions: int
    replication: int | None

    def count(self, need: TopicNeed) -> int:
        """Return the number of partitions that a topic should have."""
        return counts(self.needs, self.partitions)[need.name]


def as_json(plan: Plan) -> dict[str, Any]:
    """Return all of it as data; `partitions` None is free, `partitions_of` names the topic whose number it follows."""
    return {
        "topics": [
            {
                "topic": need.name,
                "roles": list(need.roles),
                "partitions": need.partitions,
                "partitions_of": need.like or None,
                "config": dict(need.config),
                "operations": [operation.word for operation in sorted(need.operations)],
                "made_by_workers": need.is_made,
            }
            for need in plan.needs
        ],
        "permissions": [
            {
                "resource": one.resource,
                "name": one.name,
                "pattern": "prefixed" if one.is_prefix else "literal",
                "operation": one.operation.word,
            }
            for one in plan.permissions
        ],
    }


def as_kafka_topics(plan: Plan) -> str:
    """Return the commands that make the topics."""
    return "\n".join(
        f"kafka-topics.sh --bootstrap-server {plan.bootstrap} --create --if-not-exists --topic {quote(need.name)} "
        f"--partitions {plan.count(need)}"
        + (f" --replication-factor {plan.replication}" if plan.replication else "")
        + "".join(f" --config {quote(f'{key}={value}')}" for key, value in need.config.items())
        for need in plan.needs
    )


def as_kafka_acls(plan: Plan) -> str:
    """Return the commands that grant the permissions."""
    return "\n".join(acl_commands(plan.permissions, bootstrap=plan.bootstrap, principal=plan.principal))


FORMATS: Mapping[str, Callable[[Plan], str]] = {
    "kafka-topics": as_kafka_topics,
    "kafka-acls": as_kafka_acls,
}
