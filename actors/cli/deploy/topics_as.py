"""Topics and permissions as commands of Kafka's tools and as resources of Terraform and Strimzi."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from shlex import quote
from typing import Any

from actors._faust.startup.needs import TopicNeed, counts
from actors._kafka.permissions import Permission, acl_commands

TERRAFORM_REPLICAS = 3
"""Its resource has to have a number."""
_TERRAFORM_TYPES = {"topic": "Topic", "group": "Group", "transactional-id": "TransactionalID"}
_STRIMZI_TYPES = {"topic": "topic", "group": "group", "transactional-id": "transactionalId"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be printed.

    Attributes:
        needs: the topics.
        permissions: what `principal`, as `User:NAME`, has to be allowed.
        bootstrap: the brokers' addresses.
        partitions: of topics whose number is free.
        replication: how many replicas; None leaves that to the brokers.
        cluster: the name of Strimzi's cluster.
    """

    needs: Sequence[TopicNeed]
    permissions: Sequence[Permission]
    bootstrap: str
    principal: str
    partitions: int
    replication: int | None
    cluster: str

    def count(self, need: TopicNeed) -> int:
        """Return how many partitions a topic is to have."""
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


def as_terraform(plan: Plan) -> str:
    """Return resources of the Terraform provider Mongey/kafka."""
    return "\n\n".join([*_terraform_topics(plan), *_terraform_acls(plan)])


def _terraform_topics(plan: Plan) -> Iterator[str]:
    for need in plan.needs:
        config = [f"    {_hcl(key)} = {_hcl(value)}" for key, value in need.config.items()]
        yield "\n".join(
            [
                f'resource "kafka_topic" "{_identifier(need.name)}" {{',
                f"  name               = {_hcl(need.name)}",
                f"  partitions         = {plan.count(need)}",
                f"  replication_factor = {plan.replication or TERRAFORM_REPLICAS}",
                *(["  config = {", *config, "  }"] if config else []),
                "}",
            ]
        )


def _terraform_acls(plan: Plan) -> Iterator[str]:
    for one in plan.permissions:
        name = _identifier(f"{one.resource}-{one.name}-{one.operation.word}")
        yield "\n".join(
            [
                f'resource "kafka_acl" "{name}" {{',
                f"  resource_name                = {_hcl(one.name)}",
                f"  resource_type                = {_hcl(_TERRAFORM_TYPES[one.resource])}",
                f'  resource_pattern_type_filter = "{"Prefixed" if one.is_prefix else "Literal"}"',
                f"  acl_principal                = {_hcl(plan.principal)}",
                '  acl_host                     = "*"',
                f'  acl_operation                = "{one.operation.word}"',
                '  acl_permission_type          = "Allow"',
                "}",
            ]
        )


def as_strimzi(plan: Plan) -> str:
    """Return the topics as `KafkaTopic`, and the permissions as those of a `KafkaUser`."""
    return "\n---\n".join([*map(_lines, _strimzi_topics(plan)), _lines(_strimzi_user(plan))])


def _strimzi_topics(plan: Plan) -> Iterator[Mapping[str, Any]]:
    for need in plan.needs:
        spec: dict[str, Any] = {"topicName": need.name, "partitions": plan.count(need)}
        if plan.replication:
            spec["replicas"] = plan.replication
        if need.config:
            spec["config"] = dict(need.config)
        yield _strimzi("KafkaTopic", need.name, plan, spec)


def _strimzi_user(plan: Plan) -> Mapping[str, Any]:
    by_resource = groupby(plan.permissions, key=lambda one: (one.resource, one.name, one.is_prefix))
    acls = [
        {
            "resource": {
                "type": _STRIMZI_TYPES[resource],
                "name": name,
                "patternType": "prefix" if is_prefix else "literal",
            },
            "operations": [one.operation.word for one in found],
        }
        for (resource, name, is_prefix), found in by_resource
    ]
    user = plan.principal.removeprefix("User:")
    return _strimzi("KafkaUser", user, plan, {"authorization": {"type": "simple", "acls": acls}})


def _strimzi(kind: str, name: str, plan: Plan, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = {"name": _dns_name(name), "labels": {"strimzi.io/cluster": plan.cluster}}
    return {"apiVersion": "kafka.strimzi.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}


def _lines(content: Mapping[str, Any], indent: str = "") -> str:
    """Write YAML: maps and lists of maps in lines, and what is in them as JSON, which is YAML too."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines += [f"{indent}{json.dumps(key)}:", _lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{json.dumps(key)}:", *(f"{indent}  - {json.dumps(one)}" for one in value)]
        else:
            lines.append(f"{indent}{json.dumps(key)}: {json.dumps(value)}")
    return "\n".join(lines)


def _hcl(text: str) -> str:
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")


def _identifier(name: str) -> str:
    """Return a name for Terraform, another one for each topic."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    plain = f"_{plain}" if plain[0].isdigit() or plain[0] == "-" else plain
    return plain if plain == name else f"{plain}_{_mark(name)}"


def _dns_name(name: str) -> str:
    """Return a name for Kubernetes, another one for each topic."""
    plain = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip("-.")
    return plain if plain == name else f"{plain or 'x'}-{_mark(name)}"


def _mark(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:8]


FORMATS: Mapping[str, Callable[[Plan], str]] = {
    "kafka-topics": as_kafka_topics,
    "kafka-acls": as_kafka_acls,
    "terraform": as_terraform,
    "strimzi": as_strimzi,
}
