"""The credentials of `--live`, for workers that authenticate their clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_replay.errors import LiveError

if TYPE_CHECKING:
    from spark_replay.comparison.live import Workers

Command = TypeVar("Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Live:
    """The files that the options name; they are read when the workers are asked."""

    token_file: Path | None
    ca: Path | None
    certificate: Path | None
    key: Path | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Live:
        """Make it from a command's options.

        Raises:
            click.UsageError: The options don't go together.
        """
        live = cls(options["live_token_file"], options["live_ca"], options["live_certificate"], options["live_key"])
        if live.key is not None and live.certificate is None:
            raise click.UsageError("--live-key goes with --live-certificate")
        return live

    @property
    def is_given(self) -> bool:
        """True if at least one file is given."""
        return any(file is not None for file in (self.token_file, self.ca, self.certificate))

    def workers(self, urls: str) -> AbstractContextManager[Workers]:
        """Return the workers with these URLs, separated by commas, until the block ends.

        Raises:
            LiveError: There is no URL, or a file isn't what it should be.
        """
        from spark_replay.comparison.live import Workers

        return closing(Workers(urls.split(","), token=self.token(), ssl=self.context()))

    def token(self) -> str | None:
        """Return the token: the file's first line; `LiveError` if there is none in it."""
        if self.token_file is None:
            return None
        lines = self.token_file.read_text(encoding="utf-8", errors="replace").split()
        if not lines or not lines[0].isascii():
            raise LiveError(f"{self.token_file} has no token in its first line")
        return lines[0]

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for requests to workers, None for Python's default.

        Raises:
            LiveError: A file isn't what it should be.
        """
        if self.ca is None and self.certificate is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise LiveError(f"--live-ca, --live-certificate or --live-key can't be used: {error}") from error
        return context


def live_options(command: Command) -> Command:
    """Add the options."""
    for option in (
        click.option("--live-key", type=_FILE, help="The key of --live-certificate, if it isn't in the same file."),
        click.option("--live-certificate", type=_FILE, help="A client certificate, for workers that require one."),
        click.option("--live-ca", type=_FILE, help="The CA that signs the certificates of workers with https."),
        click.option("--live-token-file", type=_FILE, help="A file with one of the workers' query_tokens."),
    ):
        command = option(command)
    return command
