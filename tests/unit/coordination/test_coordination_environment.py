"""What the ready-made coordination app takes from the environment to get to its brokers."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from actors import App, ConfigurationError
from actors._faust.setup import connection
from actors.coordination.environment import broker_settings
from tests.certificates import Authority

USER = {"KAFKA_USER": "alice", "KAFKA_PASSWORD": "alice-secret"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.certificate("client")
    return found


def security(environment: dict[str, str]) -> dict[str, Any]:
    """What our clients connect with."""
    return dict(connection(App("environment", **broker_settings(environment))).security)


GIVEN = [
    # environment, protocol, mechanism
    ({}, "PLAINTEXT", None),
    ({"KAFKA_USER": "", "KAFKA_CA": ""}, "PLAINTEXT", None),
    ({"KAFKA_TLS": "true"}, "SSL", None),
    ({"KAFKA_CA": "CA"}, "SSL", None),
    ({"KAFKA_CERTIFICATE": "CERTIFICATE", "KAFKA_KEY": "KEY", "KAFKA_CA": "CA"}, "SSL", None),
    (USER, "SASL_SSL", "PLAIN"),
    ({**USER, "KAFKA_CA": "CA"}, "SASL_SSL", "PLAIN"),
    ({**USER, "KAFKA_MECHANISM": "SCRAM-SHA-512"}, "SASL_SSL", "SCRAM-SHA-512"),
    ({"KAFKA_USER": "alice", "KAFKA_PASSWORD_FILE": "PASSWORD"}, "SASL_SSL", "PLAIN"),
    # Only if somebody says so.
    ({**USER, "KAFKA_TLS": "false"}, "SASL_PLAINTEXT", "PLAIN"),
]


@pytest.mark.parametrize(("given", "protocol", "mechanism"), GIVEN)
def test_what_is_given_is_what_the_clients_use(
    authority: Authority, tmp_path: Path, given: dict[str, str], protocol: str, mechanism: str | None
) -> None:
    found = security(placed(given, authority, tmp_path))
    assert found["security_protocol"] == protocol
    assert found.get("sasl_mechanism") == mechanism
    if mechanism is not None:
        assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("alice", "alice-secret")
    if protocol.endswith("SSL"):
        assert found["ssl_context"].verify_mode == ssl.CERT_REQUIRED
        assert found["ssl_context"].check_hostname
        assert (len(found["ssl_context"].get_ca_certs()) == 1) == ("KAFKA_CA" in given)


def placed(given: dict[str, str], authority: Authority, folder: Path) -> dict[str, str]:
    """Put files in the places of their names."""
    (folder / "password").write_text("alice-secret\n")
    (folder / "empty").write_text("\n")
    files = {
        "CA": authority.file,
        "CERTIFICATE": authority.folder / "client.pem",
        "KEY": authority.folder / "client.key",
        "PASSWORD": folder / "password",
        "EMPTY": folder / "empty",
    }
    return {name: str(files.get(value, value)) for name, value in given.items()}


REFUSED = [
    ({"KAFKA_USER": "alice"}, "KAFKA_PASSWORD"),
    ({"KAFKA_PASSWORD": "alice-secret"}, "KAFKA_USER"),
    ({"KAFKA_PASSWORD_FILE": "PASSWORD"}, "KAFKA_USER"),
    ({"KAFKA_MECHANISM": "PLAIN"}, "KAFKA_USER"),
    ({**USER, "KAFKA_PASSWORD_FILE": "PASSWORD"}, "twice"),
    ({"KAFKA_USER": "alice", "KAFKA_PASSWORD_FILE": "EMPTY"}, "empty"),
    ({"KAFKA_USER": "alice", "KAFKA_PASSWORD_FILE": "/nowhere/at/all"}, "/nowhere/at/all"),
    ({**USER, "KAFKA_MECHANISM": "GSSAPI"}, "KAFKA_MECHANISM='GSSAPI'"),
    ({**USER, "KAFKA_TLS": "perhaps"}, "KAFKA_TLS='perhaps'"),
    ({"KAFKA_CA": "CA", "KAFKA_TLS": "false"}, "KAFKA_CA is for TLS"),
    ({"KAFKA_CA": "/nowhere/at/all"}, "KAFKA_CA='/nowhere/at/all'"),
    ({"KAFKA_CA": "KEY"}, "KAFKA_CA="),
    ({"KAFKA_KEY": "KEY"}, "KAFKA_CERTIFICATE"),
    ({"KAFKA_CERTIFICATE": "CERTIFICATE", "KAFKA_KEY": "CA"}, "KAFKA_KEY="),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_cant_work_is_named_and_no_password_is_shown(
    authority: Authority, tmp_path: Path, given: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        broker_settings(placed(given, authority, tmp_path))
    assert "alice-secret" not in str(refused.value)
