"""Tokens, and what is derived from them: what workers show each other.

A secret is held as the bytes that are compared; no object here shows one in its `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from actors.errors import ConfigurationError
from actors.web.access.levels import Level

LEAST_CHARACTERS = 16
SETTINGS = {Level.READ: "query_tokens", Level.ADMIN: "admin_tokens"}

Given = str | Path | Sequence[str] | None


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
        """Tell whether that is this token's SHA-256."""
        return hmac.compare_digest(self._digest, digest)


class Tokens:
    """All tokens that are taken."""

    def __init__(self, query: Given = None, admin: Given = None) -> None:
        given = [
            (level, secret, f"{kind} token {number}")
            for level, kind, tokens in ((Level.READ, "query", query), (Level.ADMIN, "admin", admin))
            for number, secret in enumerate(read_secrets(tokens, SETTINGS[level], LEAST_CHARACTERS), 1)
        ]
        if len({secret for _, secret, _ in given}) < len(given):
            raise ConfigurationError("query_tokens, admin_tokens: a token is there twice, and each has one level only")
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
