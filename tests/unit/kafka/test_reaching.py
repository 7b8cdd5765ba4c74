"""Why a broker can't be reached: what is wrong with a certificate or a token is said in one error."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka.abc import AbstractTokenProvider
from yarl import URL

from actors import ConfigurationError
from actors._faust.brokers import reached
from actors._kafka import tokens
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors.errors import BrokerRefusedError
from tests.certificates import Authority

ENDED = datetime(2020, 1, 1, tzinfo=UTC)
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@contextlib.contextmanager
def listening(context: ssl.SSLContext) -> Iterator[str]:
    """A port that speaks TLS, as a broker does before it knows who connects.

    In a thread: asyncio's own servers close a connection without an alert.
    """

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                with contextlib.suppress(OSError), connection:
                    with contextlib.suppress(OSError), context.wrap_socket(connection.dup(), server_side=True) as tls:
                        tls.recv(1)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1024):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def broker(certificate: tuple[Path, Path], *, clients: Authority | None = None) -> ssl.SSLContext:
    """A broker's side of TLS; with `clients` it wants a certificate that this authority signed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients and str(clients.file))
    context.load_cert_chain(*certificate)
    context.verify_mode = ssl.CERT_NONE if clients is None else ssl.CERT_REQUIRED
    return context


async def refusal(address: str, security: Mapping[str, Any]) -> str:
    """Connect as a worker's start does, and give the error."""
    with pytest.raises(BrokerRefusedError) as refused:
        await ControlPlane.open(Connection((address,), security=security, request_timeout_ms=5_000), "group")
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"hosts": ["kafka.example"]}, "not valid for '127.0.0.1'"), ({"ends": ENDED}, "certificate has expired")],
)
async def test_what_is_wrong_with_a_brokers_certificate_is_said(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    authority = Authority(tmp_path)
    with listening(broker(authority.certificate("broker", **options))) as address:
        said = await refusal(address, {"security_protocol": "SSL", "ssl_context": authority.trust()})
    assert said.startswith(f"the certificate of the broker at {address} isn't trusted: ")
    assert says in said


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
@pytest.mark.parametrize(
    ("client", "says"),
    [(None, "HANDSHAKE_FAILURE|CERTIFICATE_REQUIRED"), ("stranger", "UNKNOWN_CA"), ("ended", "CERTIFICATE_EXPIRED")],
)
async def test_a_client_certificate_that_a_broker_does_not_take_is_named(
    tmp_path: Path, client: str | None, says: str, version: ssl.TLSVersion
) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    given = {"stranger": stranger.certificate("client"), "ended": authority.certificate("ended", ends=ENDED)}
    context = authority.trust(given.get(client or ""))
    context.maximum_version = version
    with listening(broker(authority.certificate("broker"), clients=authority)) as address:
        said = await refusal(address, {"security_protocol": "SSL", "ssl_context": context})
    assert said.startswith(f"the broker at {address} doesn't take this client's certificate, or wants one: ")
    assert re.search(says, said)


class Provider(AbstractTokenProvider):
    """Raises, hangs, or gives a token."""

    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self.error, self.hangs = error, hangs

    async def token(self) -> str:
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()
        return "token"

    def extensions(self) -> dict[str, str]:
        return {"tenant": "shop"}


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        (Provider(KeyError("access_token")), "KeyError: 'access_token'"),
        (Provider(hangs=True), "no token within 0.05 s"),
    ],
)
async def test_a_token_that_cannot_be_had_is_an_outage_like_any_other(
    provider: Provider, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKEN_S", 0.05)
    security = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }
    connection = Connection(("127.0.0.1:1",), security=security)
    guarded = connection.arguments("test")["sasl_oauth_token_provider"]
    with pytest.raises(tokens.NoTokenError, match=re.escape(says)):
        await guarded.token()
    assert guarded.extensions() == {"tenant": "shop"}


def test_credentials_that_no_client_can_use_are_refused_with_what_to_do() -> None:
    urls = [URL("kafka://127.0.0.1:1")]
    no_provider: Any = lambda: "token"  # noqa: E731
    with pytest.raises(ConfigurationError, match="oauth_cb= has to be an aiokafka"):
        reached(urls, faust.OAuthCredentials(oauth_cb=no_provider), None)
    kerberos = faust.GSSAPICredentials(kerberos_service_name="kafka", kerberos_domain_name="example")
    with pytest.raises(ConfigurationError, match="pip install gssapi"):
        reached(urls, kerberos, None)
    security = reached(urls, faust.OAuthCredentials(oauth_cb=Provider()), ssl.create_default_context()).security
    assert security["security_protocol"] == "SASL_SSL"
