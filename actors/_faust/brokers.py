"""How Faust's settings say where the brokers are, and how to get in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list

from actors._kafka.connection import Connection
from actors._kafka.tokens import is_provided
from actors.errors import ConfigurationError

SCHEMES = ("", "kafka", "aiokafka", "confluent")
ENCRYPTED = {"PLAINTEXT": "SSL", "SASL_PLAINTEXT": "SASL_SSL"}


def reached(urls: Sequence[Any], credentials: Any, ssl_context: Any, *, client_id: str = "faust-actors") -> Connection:
    """Return the connection settings of all clients.

    Faust leaves `ssl_context` aside where there are credentials too, and would send their password in the clear; here
    both count.

    Args:
        urls: Faust's `broker`.
        credentials: Faust's `broker_credentials`.
        ssl_context: Faust's setting of that name.
        client_id: what the brokers' logs call us.

    Raises:
        ConfigurationError: a URL isn't Kafka's, or has a password in it, which no client would use; or the credentials
            can't be used.
    """
    check_schemes(urls)
    if any(url.user is not None or url.password is not None for url in urls):
        raise ConfigurationError(
            "broker: a URL with user and password: they wouldn't be used. Set broker_credentials=faust.SASLCredentials("
            "username=…, password=…, ssl_context=…)"
        )
    security = dict(credentials_to_aiokafka_auth(credentials, ssl_context))
    if ssl_context is not None and security.get("ssl_context") is None:
        security["ssl_context"] = ssl_context
        security["security_protocol"] = ENCRYPTED.get(security["security_protocol"], security["security_protocol"])
    _check_mechanism(security)
    return Connection(bootstrap=tuple(server_list(urls, 9092)), security=security, client_id=client_id)


def check_schemes(urls: Sequence[Any]) -> None:
    """Refuse the URLs of something else than Kafka brokers.

    Raises:
        ConfigurationError: naming the first.
    """
    for url in urls:
        if url.scheme not in SCHEMES:
            raise ConfigurationError(
                f"broker: {url}: the scheme of a broker's URL is kafka: kafka://{url.host or 'HOST'}:{url.port or 9092}"
            )


def _check_mechanism(security: Mapping[str, Any]) -> None:
    mechanism = security.get("sasl_mechanism")
    if mechanism == "OAUTHBEARER" and not is_provided(security):
        raise ConfigurationError(
            "broker_credentials: oauth_cb= has to be an aiokafka.abc.AbstractTokenProvider, such as "
            "faust.OAuthCredentials(oauth_cb=MyProvider(), ssl_context=…)"
        )
    if mechanism == "GSSAPI" and find_spec("gssapi") is None:
        raise ConfigurationError("broker_credentials: GSSAPI needs Python's gssapi package: pip install gssapi")
