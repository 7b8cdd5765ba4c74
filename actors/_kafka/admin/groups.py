"""The members of a consumer group."""

from __future__ import annotations

from aiokafka.errors import NoError, for_code

from actors._kafka.client import Admin
from actors._kafka.connection import Connection, broker_errors


async def member_count(connection: Connection, group: str) -> int:
    """Return how many members a group has; 0 for one that doesn't exist.

    Raises:
        BrokerUnavailableError: the group's coordinator doesn't answer.
    """
    admin = Admin(connection, "groups")
    try:
        with broker_errors(f"reading the members of group {group}", connection):
            await admin.start()
            (described,) = await admin.describe_consumer_groups([group])
            code, _, _, _, _, members, *_ = described.groups[0]
            if for_code(code) is not NoError:
                raise for_code(code)(group)
    finally:
        await admin.close()
    return len(members)
