"""Access lists of a cluster with an authorizer, changed while clients are at work."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Iterable

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from actors._kafka.permissions import Permission

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_LITERAL, _PREFIXED = 3, 4
_DENY, _ALLOW = 2, 3


class Resource(enum.IntEnum):
    """What a permission is about, as Kafka's protocol numbers it."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(enum.IntEnum):
    """What a permission allows, as Kafka's protocol numbers it."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10


Denial = tuple[Operation, Resource, str]


class AccessLists:
    """The access lists for one user."""

    def __init__(self, brokers: str, user: str) -> None:
        self._brokers = brokers
        self._principal = f"User:{user}"

    async def allow(self, permissions: Iterable[Permission]) -> None:
        """Allow what an app says that it needs."""
        async with self._admin() as admin:
            for one in permissions:
                resource = Resource[one.resource.upper().replace("-", "_")]
                pattern = _PREFIXED if one.is_prefix else _LITERAL
                operation = Operation(one.operation)
                await self._send(admin, CreateAclsRequest, operation, resource, one.name, pattern, _ALLOW)

    async def allow_prefix(self, prefix: str) -> None:
        """Allow everything on topics, groups and transactional ids that begin with a prefix."""
        resources = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
        async with self._admin() as admin:
            for resource in resources:
                await self._send(admin, CreateAclsRequest, Operation.ALL, resource, prefix, _PREFIXED, _ALLOW)

    @contextlib.asynccontextmanager
    async def denied(self, *denials: Denial) -> AsyncIterator[None]:
        """Deny some operations for the time of the block."""
        async with self._admin() as admin:
            for denial in denials:
                await self._send(admin, CreateAclsRequest, *denial, _LITERAL, _DENY)
            try:
                yield
            finally:
                for denial in denials:
                    await self._send(admin, DeleteAclsRequest, *denial, _LITERAL, _DENY)

    async def _send(
        self,
        admin: AIOKafkaAdminClient,
        request: type[CreateAclsRequest] | type[DeleteAclsRequest],
        operation: Operation,
        resource: Resource,
        name: str,
        pattern: int,
        permission: int,
    ) -> None:
        made = request(resource, name, pattern, self._principal, "*", operation, permission)
        response = await admin._client.send(admin._client.get_random_node(), made)
        answers = getattr(response, "creation_responses", None) or response.filter_responses
        assert all(code == 0 for code, *_ in answers), response

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._brokers)
        await admin.start()
        try:
            yield admin
        finally:
            await asyncio.shield(admin.close())
