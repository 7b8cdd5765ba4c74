"""Which permissions the brokers grant this user: asked for before anything is used, and without a trace.

Topics' permissions come with their metadata. Those of groups and transactional ids don't (in the versions of the client
here): a request is sent that the brokers check first and then refuse for what it says.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.errors import GroupAuthorizationFailedError, TransactionalIdAuthorizationFailed, for_code
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.transaction import EndTxnRequest

from actors._kafka.control import ControlPlane

NOBODYS_PRODUCER_ID, NOBODYS_EPOCH = -2, 0
"""No producer has it: the coordinator refuses it after the check of permissions, whatever state the id is in."""
PRINCIPAL = "User:NAME"


class Operation(enum.IntEnum):
    """What Kafka's access lists allow, by their codes."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DESCRIBE_CONFIGS = 10

    @property
    def word(self) -> str:
        """The name that Kafka's tools and documents have for it."""
        return "".join(part.title() for part in self.name.split("_"))


class Resource(enum.Enum):
    """What they allow it for; the value is the option of `kafka-acls.sh`."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """An operation on a resource; a transactional id is a prefix."""

    resource: str
    name: str
    operation: Operation

    def __str__(self) -> str:
        what = self.resource.replace("-", " ")
        return f"{self.operation.word} on {what}{'s that begin with' * self.is_prefix} {self.name}"

    @property
    def is_prefix(self) -> bool:
        """Whether it is about all names that begin so."""
        return self.resource == Resource.TRANSACTIONAL_ID.value


def on_topic(name: str, *operations: Operation) -> list[Permission]:
    """Give permissions of one topic."""
    return [Permission(Resource.TOPIC.value, name, operation) for operation in operations]


def acl_commands(permissions: Iterable[Permission], *, bootstrap: str, principal: str) -> list[str]:
    """Give the commands that grant them, one for all resources that need the same operations."""
    operations: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in sorted(set(permissions)):
        operations[one.resource, one.name].append(one.operation)
    names: dict[tuple[str, tuple[Operation, ...]], list[str]] = defaultdict(list)
    for (resource, name), allowed in operations.items():
        names[resource, tuple(allowed)].append(name)
    return [
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal {principal}"
        + "".join(f" --operation {operation.word}" for operation in allowed)
        + "".join(f" --{resource} {name}" for name in found)
        + (" --resource-pattern-type prefixed" if resource == Resource.TRANSACTIONAL_ID.value else "")
        for (resource, allowed), found in names.items()
    ]


def allows(granted: Mapping[str, tuple[int, bool]], topic: str, operation: Operation) -> bool:
    """Tell whether an operation is among those of `ControlPlane.granted`; a topic that nobody asked about has all."""
    bits, _ = granted.get(topic, (-1, True))
    return bool(bits >> operation & 1)


async def missing_permissions(
    control: ControlPlane, wanted: Iterable[Permission], *, group: str, transactional_ids: Sequence[str]
) -> tuple[list[Permission], dict[str, tuple[int, bool]]]:
    """Give those of the wanted permissions that the brokers don't grant, and `ControlPlane.granted` of the topics.

    `transactional_ids` are some that begin with the prefixes that are wanted. Brokers without access lists grant all.

    Raises:
        BrokerUnavailableError: no broker answers.
    """
    by_kind: dict[str, list[Permission]] = defaultdict(list)
    for one in sorted(set(wanted)):
        by_kind[one.resource].append(one)
    on_topics = by_kind[Resource.TOPIC.value]
    granted = await control.granted({one.name for one in on_topics})
    missing = [one for one in on_topics if not allows(granted, one.name, one.operation)]
    if by_kind[Resource.GROUP.value]:
        code = (await control.ask_any(HeartbeatRequest(group, 0, ""))).error_code
        if for_code(code) is GroupAuthorizationFailedError:
            missing += by_kind[Resource.GROUP.value]
    if by_kind[Resource.TRANSACTIONAL_ID.value]:
        requests = [EndTxnRequest(one, NOBODYS_PRODUCER_ID, NOBODYS_EPOCH, False) for one in transactional_ids]
        codes = {(await control.ask_any(request)).error_code for request in requests}
        if TransactionalIdAuthorizationFailed in map(for_code, codes):
            missing += by_kind[Resource.TRANSACTIONAL_ID.value]
    return missing, granted
