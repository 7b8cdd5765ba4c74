"""Kafka's access lists: permissions, the commands that grant them, and which one an error is about."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

UNAUTHORIZED = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
"""Errors for requests that the user's access lists don't allow."""
PRINCIPAL = "User:NAME"


class Operation(enum.IntEnum):
    """The operations of Kafka's access lists, by their codes."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    IDEMPOTENT_WRITE = 12

    @property
    def word(self) -> str:
        """Its name in Kafka's tools and documents."""
        return "".join(part.title() for part in self.name.split("_"))


READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


class Resource(enum.Enum):
    """The resource of an operation; the value is the option of `kafka-acls.sh`."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """An operation on a resource; a transactional id is a prefix."""

    resource: str
    name: str
    operation: Operation

    def __str__(self) -> str:
        what = self.resource.replace("-", " ")
        return f"{self.operation.word} on {what}{'s that begin with' * self.is_prefix} {self.name}".rstrip()

    @property
    def is_prefix(self) -> bool:
        """Return whether the permission applies to all names that begin with `name`."""
        return self.resource == Resource.TRANSACTIONAL_ID.value


def on_topic(name: str, *operations: Operation) -> list[Permission]:
    return [Permission(Resource.TOPIC.value, name, operation) for operation in operations]


def acl_commands(permissions: Iterable[Permission], *, bootstrap: str, principal: str) -> list[str]:
    """Return commands that grant permissions; resources that need the same operations share one."""
    operations: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in sorted(set(permissions)):
        operations[one.resource, one.name].append(one.operation)
    names: dict[tuple[str, tuple[Operation, ...]], list[str]] = defaultdict(list)
    for (resource, name), allowed in operations.items():
        names[resource, tuple(allowed)].append(name)
    return [
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {quote(principal)}"
        + "".join(f" --operation {operation.word}" for operation in allowed)
        + "".join(f" --{resource} {quote(name)}" if name else f" --{resource}" for name in found)
        + (" --resource-pattern-type prefixed" if resource == Resource.TRANSACTIONAL_ID.value else "")
        for (resource, allowed), found in names.items()
    ]


def principal(security: Mapping[str, Any]) -> str:
    """Return the user's name in access lists, "" if only the brokers know it. `security` is as in `Connection`."""
    if user := security.get("sasl_plain_username"):
        return f"User:{user}"
    return "User:ANONYMOUS" if security.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else ""


def lacking(error: BaseException | None, who: str, operation: Operation = DESCRIBE, *, name: str = "") -> str:
    """Return the permission that is missing according to an error of the client, "" if the error isn't about one.

    `operation` is what a topic was needed for; the other resources have one each. `name` is the resource's, if the
    error doesn't have it.
    """
    if not isinstance(error, UNAUTHORIZED):
        return ""
    given = error.args[0] if error.args else name
    names = sorted(map(str, given)) if isinstance(given, set | list | tuple) else [str(given)]
    resource = Resource.TOPIC
    if isinstance(error, GroupAuthorizationFailedError):
        operation, resource = READ, Resource.GROUP
    elif isinstance(error, TransactionalIdAuthorizationFailed):
        # One permission for the prefix serves all tasks of an app.
        operation, resource, names = WRITE, Resource.TRANSACTIONAL_ID, [f"{names[0].rsplit(':', 2)[0]}:"]
    elif isinstance(error, ClusterAuthorizationFailedError):
        operation, resource, names = Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, [""]
    commands = acl_commands(
        (Permission(resource.value, one, operation) for one in names), bootstrap="BROKER", principal=who or "PRINCIPAL"
    )
    missing = Permission(resource.value, ", ".join(names), operation)
    return f"{who or 'the principal of this program'} isn't allowed {missing}. Grant it: {'; '.join(commands)}"
