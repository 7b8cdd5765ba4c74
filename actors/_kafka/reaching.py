"""Finds out why the first connection failed, and names the setting: the client only logs the reason."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from actors._kafka.connection import Connection, broker_errors
from actors._kafka.outage import why_away
from actors._kafka.tokens import NoTokenError
from actors.errors import BrokerRefusedError, BrokerUnavailableError

PROBE_MS = 5_000


@contextlib.asynccontextmanager
async def reaching(connection: Connection) -> AsyncIterator[None]:
    """Turn the errors of a first connection into one that names the reason.

    Raises:
        BrokerRefusedError: the password isn't taken, or the broker's certificate isn't trusted.
        BrokerUnavailableError: no broker of the list answers.
    """
    what = f"no broker answers at {', '.join(connection.bootstrap)}"
    with broker_errors(what):
        try:
            yield
        except KafkaError as error:
            refusal = await _refusal(connection)
            if refusal is not None:
                raise BrokerRefusedError(refusal) from error
            if not isinstance(error, KafkaConnectionError):
                raise
            why = why_away(error)
            raise BrokerUnavailableError(f"{what}: {why}" if why else what) from error


async def _refusal(connection: Connection) -> str | None:
    """Connect once more, and return why the broker or this client refuses; None if neither does.

    Raises:
        BrokerUnavailableError: there is no token to connect with.
    """
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
                **connection.login,
            )
            probe.close()
        except ssl.SSLCertVerificationError as error:
            reason = (
                f"the certificate of the broker at {address} isn't trusted: {error.verify_message}. See ssl_context, "
                "or that of broker_credentials"
            )
        except NoTokenError as error:
            # The provider may return one later, so this isn't a refusal.
            why = f"the oauth_cb of broker_credentials gave no token for the broker at {address}: {error}"
            raise BrokerUnavailableError(why) from error
        except (AuthenticationFailedError, SaslAuthenticationFailed):
            user = connection.security.get("sasl_plain_username")
            what = "this token" if user is None else f"user {user!r} with this password"
            reason = f"the broker at {address} doesn't take {what}: see broker_credentials"
        except UnsupportedSaslMechanismError:
            mechanism = connection.security.get("sasl_mechanism")
            reason = f"the broker at {address} doesn't take the SASL mechanism {mechanism}: see broker_credentials"
        except (KafkaError, OSError, TimeoutError, ValueError) as error:
            reason = _of_tls(address, error)
        if reason is not None:
            return reason
    return None


def _of_tls(address: str, error: Exception) -> str | None:
    """Return why TLS failed, None if TLS isn't the reason."""
    # With TLS 1.3 the broker checks our certificate after our side of the handshake: only the first request fails.
    refused = error if isinstance(error, ssl.SSLError) else error.__cause__
    if not isinstance(refused, ssl.SSLError):
        return None
    said = refused.reason or str(refused)
    if "ALERT" not in said:
        return f"the broker at {address} doesn't speak TLS with this client: {said}. Is it the port for TLS?"
    return (
        f"the broker at {address} doesn't take this client's certificate, or wants one: {said}. See ssl_context, or "
        "that of broker_credentials: load_cert_chain(…) gives it a certificate"
    )
