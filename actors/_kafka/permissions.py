"""What the cluster doesn't allow, in words that name operation, resource and principal."""

from __future__ import annotations

from collections.abc import Mapping
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
"""What a broker answers to a request that the user's access lists don't allow."""
WRITE, READ, DESCRIBE = "Write", "Read", "Describe"


def principal(security: Mapping[str, Any]) -> str:
    """Return the user's name in access lists, "" if only the brokers know it. `security` is as in `Connection`."""
    if user := security.get("sasl_plain_username"):
        return f"User:{user}"
    return "User:ANONYMOUS" if security.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else ""


def lacking(error: BaseException | None, who: str, operation: str = DESCRIBE, *, name: str = "") -> str:
    """Return which permission is missing according to an error of the client, "" if it isn't about one.

    Args:
        error: what the client raised.
        who: the principal, "" if it isn't known.
        operation: what a topic was needed for. The other resources have one operation each.
        name: the resource's, if the error doesn't have it.
    """
    if not isinstance(error, UNAUTHORIZED):
        return ""
    given = error.args[0] if error.args else name
    names = sorted(map(str, given)) if isinstance(given, set | list | tuple) else [str(given)]
    if isinstance(error, GroupAuthorizationFailedError):
        operation, resource = READ, "group"
    elif isinstance(error, TransactionalIdAuthorizationFailed):
        operation, resource = WRITE, "transactional-id"
    elif isinstance(error, TopicAuthorizationFailedError):
        resource = "topic"
    else:
        operation, resource, names = "IdempotentWrite", "cluster", [""]
    where = f"{resource} {', '.join(names)}".rstrip()
    options = " ".join(f"--{resource} {one}".rstrip() for one in names)
    return (
        f"{who or 'the principal of this program'} isn't allowed {operation} on {where}. Grant it: kafka-acls.sh "
        f"--bootstrap-server BROKER --add --allow-principal {who or 'PRINCIPAL'} --operation {operation} {options}"
    )
