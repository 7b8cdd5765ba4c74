"""The broker settings of the ready-made app, from the environment."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faust

from actors.errors import ConfigurationError

BROKER = "kafka://127.0.0.1:9092"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TLS = {"true": True, "false": False}
TLS_FILES = ("KAFKA_CA", "KAFKA_CERTIFICATE", "KAFKA_KEY")


def broker_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return Faust's settings for the brokers. An empty variable counts as missing.

    Raises:
        ConfigurationError: naming a variable that can't be used.
    """
    given = {name: value for name, value in environment.items() if value}
    context = _context(given)
    return {
        "broker": given.get("KAFKA_URL") or given.get("KAFKA_BROKERS") or BROKER,
        "broker_credentials": _credentials(given, context),
        "ssl_context": context,
    }


def _credentials(given: Mapping[str, str], context: ssl.SSLContext | None) -> faust.SASLCredentials | None:
    mechanism, password = given.get("KAFKA_MECHANISM", MECHANISMS[0]), _password(given)
    if "KAFKA_USER" not in given:
        for name in ("KAFKA_PASSWORD", "KAFKA_PASSWORD_FILE", "KAFKA_MECHANISM"):
            if name in given:
                raise ConfigurationError(f"{name} is set without KAFKA_USER: set both, or neither")
        return None
    if password is None:
        raise ConfigurationError("KAFKA_USER is set without a password: set KAFKA_PASSWORD or KAFKA_PASSWORD_FILE")
    if mechanism not in MECHANISMS:
        raise ConfigurationError(f"KAFKA_MECHANISM={mechanism!r}: use one of {', '.join(MECHANISMS)}")
    return faust.SASLCredentials(
        username=given["KAFKA_USER"], password=password, mechanism=mechanism, ssl_context=context
    )


def _password(given: Mapping[str, str]) -> str | None:
    file = given.get("KAFKA_PASSWORD_FILE")
    if file is None:
        return given.get("KAFKA_PASSWORD")
    if "KAFKA_PASSWORD" in given:
        raise ConfigurationError("KAFKA_PASSWORD and KAFKA_PASSWORD_FILE say the same twice: leave one out")
    try:
        password = Path(file).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"KAFKA_PASSWORD_FILE={file!r} can't be read: {type(error).__name__}") from error
    if not password:
        raise ConfigurationError(f"KAFKA_PASSWORD_FILE={file!r} is empty: it has to have the password in it")
    return password


def _context(given: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the context for TLS, which any setting of access asks for: no password goes in the clear by chance."""
    files = [name for name in TLS_FILES if name in given]
    said = given.get("KAFKA_TLS", "true" if files or "KAFKA_USER" in given else "false").lower()
    if said not in TLS:
        raise ConfigurationError(f"KAFKA_TLS={said!r}: use true or false")
    if not TLS[said]:
        if files:
            raise ConfigurationError(f"{files[0]} is for TLS, and KAFKA_TLS=false: leave one out")
        return None
    if "KAFKA_KEY" in given and "KAFKA_CERTIFICATE" not in given:
        raise ConfigurationError("KAFKA_KEY is set without KAFKA_CERTIFICATE: set both")
    try:
        context = ssl.create_default_context(cafile=given.get("KAFKA_CA"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"KAFKA_CA={given.get('KAFKA_CA')!r} can't be used: {error}") from error
    if "KAFKA_CERTIFICATE" in given:
        try:
            context.load_cert_chain(given["KAFKA_CERTIFICATE"], given.get("KAFKA_KEY"), password=_no_password)
        except (OSError, ValueError) as error:
            files_said = ", ".join(f"{name}={given[name]!r}" for name in TLS_FILES[1:] if name in given)
            raise ConfigurationError(f"{files_said} can't be used: {error}") from error
    return context


def _no_password() -> str:
    # Without this OpenSSL would ask for a password on the terminal.
    raise ValueError("the key has a password")
