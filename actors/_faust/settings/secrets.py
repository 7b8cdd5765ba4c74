"""The tokens of an app, the secret that its workers and commands share, and the keys derived from it, one per purpose.

The secret is the setting `worker_secret`; without it, it is derived from the app's tokens. Tokens may be chosen by
people, so they are salted and stretched: a leaked key doesn't reveal a token in reasonable time.

A secret is held as the bytes that are compared; no object here shows one in its `repr`.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.errors import ConfigurationError

LEAST_TOKEN_CHARACTERS = 16
LEAST_CHARACTERS = 32
"""Of a worker's secret."""
SCRYPT_COST = 2**14
"""About 50 ms and 16 MiB for each secret, once in a process."""

Given = str | Path | Sequence[str] | None


class Level(enum.IntEnum):
    """The level of access that a request needs; each includes those before it."""

    OPEN = 0
    """Anybody: whether the worker lives."""
    READ = 1
    """Reads of state."""
    WRITE = 2
    """Messages to actors."""
    ADMIN = 3
    """Changes: retries and drops of messages."""


SETTINGS = {Level.READ: "query_tokens", Level.WRITE: "write_tokens", Level.ADMIN: "admin_tokens"}


class Token:
    """One token that is taken.

    Attributes:
        level: what it allows.
        name: which of the setting's it is, for logs.
        seed: what the key of the app's workers is derived from where no setting names one.
    """

    __slots__ = ("_digest", "level", "name", "seed")

    def __init__(self, secret: str, level: Level, name: str) -> None:
        raw = secret.encode()
        self.level = level
        self.name = name
        self._digest = hashlib.sha256(raw).digest()
        self.seed = hmac.digest(raw, b"faust-actors seed", "sha256")

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def has(self, digest: bytes) -> bool:
        """Return whether that is this token's SHA-256."""
        return hmac.compare_digest(self._digest, digest)


class Tokens:
    """All tokens that are taken."""

    def __init__(self, query: Given = None, write: Given = None, admin: Given = None) -> None:
        given = [
            (level, secret, f"{setting.removesuffix('_tokens')} token {number}")
            for (level, setting), tokens in zip(SETTINGS.items(), (query, write, admin), strict=True)
            for number, secret in enumerate(read_secrets(tokens, setting, LEAST_TOKEN_CHARACTERS), 1)
        ]
        if len({secret for _, secret, _ in given}) < len(given):
            names = ", ".join(SETTINGS.values())
            raise ConfigurationError(f"{names}: a token is there twice, and each has one level only")
        self._held = tuple(Token(secret, level, name) for level, secret, name in given)

    def __repr__(self) -> str:
        return f"<{len(self._held)} tokens>"

    def __len__(self) -> int:
        return len(self._held)

    def become(self, others: Tokens) -> None:
        """Take others from now on, and no longer those before."""
        self._held = others._held

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """The seeds of the tokens that allow most: a reader's token mustn't give the key of admin commands away."""
        most = max((token.level for token in self._held), default=Level.OPEN)
        return tuple(token.seed for token in self._held if token.level == most)

    def find(self, given: str) -> Token | None:
        """Return the token, None if there is none. All tokens are compared, so that the time tells nothing."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = [token for token in self._held if token.has(digest)]
        return found[0] if found else None


def read_secrets(given: Given, setting: str, least_characters: int) -> list[str]:
    """Return the secrets of a setting: texts, one text with commas, or a file with one a line.

    Raises:
        ConfigurationError: one of them, or the file, can't be used; the text shows no secret.
    """
    if given is None:
        return []
    if isinstance(given, Path):
        try:
            parts = given.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{setting}: the file {given} can't be read: {type(error).__name__}") from error
    elif isinstance(given, str):
        parts = given.split(",")
    else:
        parts = list(given)
    found = [part.strip() for part in parts if part.strip()]
    for number, secret in enumerate(found, 1):
        if len(secret) < least_characters or not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise ConfigurationError(
                f"{setting}: entry {number} can't be used: it takes at least {least_characters} letters, digits and "
                "signs without spaces; python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
            )
    if not found:
        raise ConfigurationError(f"{setting} has nothing in it: leave it out, or give at least one")
    return found


class Secrets:
    """The tokens and the worker's secret of an app's settings; one per app.

    Args:
        app: the app with its settings.

    Attributes:
        tokens: the tokens that are accepted now.

    Raises:
        ConfigurationError: a setting or a file can't be used.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.tokens = Tokens()
        self.read()

    def read(self) -> None:
        """Read the settings, and the files that they name; `ConfigurationError` leaves what was read before."""
        tokens = Tokens(*(getattr(self._app.actor_options, name) for name in SETTINGS.values()))
        self._secret = _seeds(self._app, tokens)
        self.tokens.become(tokens)

    @property
    def files(self) -> list[Path]:
        given = (getattr(self._app.actor_options, name) for name in (*SETTINGS.values(), "worker_secret"))
        return [file for file in given if isinstance(file, Path)]

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """The seeds of the workers' keys: the first one signs, all are accepted; see `worker_keys`."""
        return self._secret or self.tokens.seeds


def worker_keys(app: Any, purpose: bytes) -> tuple[bytes, ...]:
    """Return the keys of this app's workers and commands for a purpose; empty where no setting has a secret.

    The first one signs, and all are accepted: secrets are replaced one by one. The same settings give the same keys in
    each process, and keys for two purposes tell nothing of each other. Ask each time, since files are read again. The
    first call for a secret takes 50 ms: make one before the event loop has work to do.

    Raises:
        ConfigurationError: a file with secrets can't be used.
    """
    salt = b"faust-actors " + str(app.conf.id).encode()
    return tuple(hmac.digest(_stretched(seed, salt), purpose, "sha256") for seed in app.secrets.seeds)


@functools.cache
def _stretched(seed: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(seed, salt=salt, n=SCRYPT_COST, r=8, p=1, dklen=32)


def _seeds(app: Any, tokens: Tokens) -> tuple[bytes, ...]:
    """Return the value of `worker_secret`; empty if it isn't set.

    Raises:
        ConfigurationError: it can't be used, or is one of the tokens.
    """
    found = read_secrets(app.actor_options.worker_secret, "worker_secret", LEAST_CHARACTERS)
    if any(tokens.find(secret) for secret in found):
        raise ConfigurationError("worker_secret is one of the tokens too, which others know: choose another one")
    return tuple(hmac.digest(secret.encode(), b"faust-actors seed", "sha256") for secret in found)
