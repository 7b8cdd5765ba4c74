"""The credentials of `--live`, for workers that authenticate their clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_replay.errors import LiveError

if TYPE_CHECKING:
    from spark_replay.comparison.live import Workers

Command = TypeVar("Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


LIVE_FILES = ("live_token_file", "live_ca", "live_certificate", "live_key")


def open_workers(urls: str, options: dict[str, Any]) -> AbstractContextManager[Workers]:
    """Return the workers with these URLs, separated by commas, until the block ends.

    Raises:
        click.UsageError: The options don't go together.
        LiveError: There is no URL, or a file isn't what it should be.
    """
    from spark_replay.comparison.live import Workers

    token_file, *certificates = (options[name] for name in LIVE_FILES)
    return closing(Workers(urls.split(","), token=read_token(token_file), ssl=tls_context(*certificates)))


def read_token(file: Path | None) -> str | None:
    """Return the token: the file's first line; `LiveError` if there is none in it."""
    if file is None:
        return None
    lines = file.read_text(encoding="utf-8", errors="replace").split()
    if not lines or not lines[0].isascii():
        raise LiveError(f"{file} has no token in its first line")
    return lines[0]


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for requests to workers, None for Python's default; errors as of `open_workers`."""
    if key is not None and certificate is None:
        raise click.UsageError("--live-key goes with --live-certificate")
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")
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
