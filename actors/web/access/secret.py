"""The secret that an app's workers and commands share, and the keys derived from it, one per purpose.

The secret is the setting `worker_secret`; without it, it is derived from the app's tokens. Tokens may be chosen by
people, so they are salted and stretched: a leaked key doesn't reveal a token in reasonable time.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from pathlib import Path
from typing import Any

from actors.errors import ConfigurationError
from actors.web.access.tokens import Tokens, read_secrets

LEAST_CHARACTERS = 32
SCRYPT_COST = 2**14
"""About 50 ms and 16 MiB for each secret, once in a process."""


def worker_key(app: Any, purpose: bytes) -> bytes | None:
    """Return the key that this app's workers and commands sign with for a purpose, None where no setting has a secret.

    The same settings give the same key in each process. The first call for a secret takes 50 ms: make one before the
    event loop has work to do.

    Args:
        app: the app with its settings.
        purpose: what the key is for; keys for two purposes tell nothing of each other.

    Raises:
        ConfigurationError: a file with secrets can't be used.
    """
    return next(iter(worker_keys(app, purpose)), None)


def worker_keys(app: Any, purpose: bytes) -> tuple[bytes, ...]:
    """Return all keys that are taken for a purpose, the one of `worker_key` first: secrets are replaced one by one.

    Ask for them each time, since files with secrets are read again.

    Raises:
        ConfigurationError: a file with secrets can't be used.
    """
    salt = b"faust-actors " + str(app.conf.id).encode()
    return tuple(hmac.digest(_stretched(seed, salt), purpose, "sha256") for seed in app.access_files.seeds)


@functools.cache
def _stretched(seed: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(seed, salt=salt, n=SCRYPT_COST, r=8, p=1, dklen=32)


def given_secrets(app: Any, setting: str) -> Any:
    """Return what a setting that takes secrets says, or where; as with Faust's settings, the environment goes first."""
    if (file := app.conf.getenv(f"{setting}_file".upper())) is not None:
        return Path(file)
    if (values := app.conf.getenv(setting.upper())) is not None:
        return values
    return getattr(app.actor_options, setting)


def secret_seeds(app: Any, tokens: Tokens) -> tuple[bytes, ...]:
    """Return what `worker_secret` says; empty if it isn't set.

    Raises:
        ConfigurationError: it can't be used, or is one of the tokens.
    """
    found = read_secrets(given_secrets(app, "worker_secret"), "worker_secret", LEAST_CHARACTERS)
    if any(tokens.find(secret) for secret in found):
        raise ConfigurationError("worker_secret is one of the tokens too, which others know: choose another one")
    return tuple(hmac.digest(secret.encode(), b"faust-actors seed", "sha256") for secret in found)
