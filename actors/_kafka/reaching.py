"""Why a broker can't be reached, in words that name the setting: the client only logs what was wrong."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from actors._kafka.connection import Connection, broker_errors
from actors.errors import BrokerRefusedError

PROBE_MS = 5_000


@contextlib.asynccontextmanager
async def reaching(connection: Connection) -> AsyncIterator[None]:
    """Turn the errors of a first connection into one that says why.

    Raises:
        BrokerRefusedError: the password isn't taken, or the broker's certificate isn't trusted.
        BrokerUnavailableError: no broker of the list answers.
    """
    with broker_errors(f"no broker answers at {', '.join(connection.bootstrap)}"):
        try:
            yield
        except KafkaError as error:
            reason = await _refusal(connection)
            if reason is None:
                raise
            raise BrokerRefusedError(reason) from error


async def _refusal(connection: Connection) -> str | None:
    """Connect once more, and give what the broker has against us or we against it; None if it isn't that."""
    if not connection.security or connection.security.get("security_protocol") == "PLAINTEXT":
        return None
    for address in connection.bootstrap:
        host, _, port = address.rpartition(":")
        reason = None
        try:
            probe = await create_conn(
                host.strip("[]"),
                int(port),
                client_id=connection.client_id,
                request_timeout_ms=PROBE_MS,
                **connection.security,
            )
            probe.close()
        except ssl.SSLCertVerificationError as error:
            reason = (
                f"the certificate of the broker at {address} isn't trusted: {error.verify_message}. See ssl_context, "
                "or that of broker_credentials"
            )
        except ssl.SSLError as error:
            reason = f"the broker at {address} doesn't speak TLS as we do: {error.reason}. Is it the port for TLS?"
        except (AuthenticationFailedError, SaslAuthenticationFailed):
            user = connection.security.get("sasl_plain_username")
            reason = f"the broker at {address} doesn't take user {user!r} with this password: see broker_credentials"
        except UnsupportedSaslMechanismError:
            mechanism = connection.security.get("sasl_mechanism")
            reason = f"the broker at {address} doesn't take the SASL mechanism {mechanism}: see broker_credentials"
        except (KafkaError, OSError, TimeoutError, ValueError):
            continue
        if reason is not None:
            return reason
    return None
