"""Which permissions the brokers grant this user: checked before anything is used, and without side effects.

Permissions for topics come with their metadata. For groups and transactional ids the client's protocol versions have no
such answer: here a request is sent whose permission the brokers check first, and which they then refuse as invalid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from aiokafka.errors import GroupAuthorizationFailedError, TransactionalIdAuthorizationFailed, for_code
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.transaction import EndTxnRequest

from actors._kafka.admin.control import ControlPlane
from actors._kafka.permissions import Operation, Permission, Resource

NOBODYS_PRODUCER_ID, NOBODYS_EPOCH = -2, 0
"""No producer has this id: the coordinator checks permissions first, and then refuses it in any state."""


def allows(granted: Mapping[str, tuple[int, bool]], topic: str, operation: Operation) -> bool:
    """Return whether `ControlPlane.granted` has an operation; a topic that it doesn't list has all."""
    bits, _ = granted.get(topic, (-1, True))
    return bool(bits >> operation & 1)


async def missing_permissions(
    control: ControlPlane, wanted: Iterable[Permission], *, group: str, transactional_ids: Sequence[str]
) -> tuple[list[Permission], dict[str, tuple[int, bool]]]:
    """Return the wanted permissions that the brokers don't grant, and `ControlPlane.granted` of the topics.

    `transactional_ids` are examples of the wanted prefixes. Brokers without access lists grant everything.

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
