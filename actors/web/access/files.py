"""Tokens and certificates that come from files: read at the start, and again when somebody writes the files anew.

A timer looks at the files, so no request does. A file is read when it has stood still between two looks, since it may
be half written before; one that can't be used leaves in use what was read last.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from actors._core.logs import escaping
from actors.errors import ConfigurationError
from actors.web.access.secret import given_secrets, secret_seeds, worker_keys
from actors.web.access.settings import given_tokens, tokens_of
from actors.web.access.tls import Hops, OwnContext, renew_client, renew_server, tls_files

logger = escaping(logging.getLogger(__name__))

LOOK_EVERY_S = 3.0
"""So a new file is in use within three times that: it is seen, seen again, and read."""

Stamp = tuple[tuple[int, int, int] | None, ...]


class Watched:
    """Files that are read together.

    Args:
        what: the settings that name them.
        files: the files.
        read: has their content used, or raises a `ConfigurationError` and changes nothing. It gives what is to be said.
    """

    def __init__(self, what: str, files: Iterable[Path], read: Callable[[], str]) -> None:
        self._what = what
        self._files = tuple(files)
        self._read = read
        self._seen = self._taken = self._stamp()

    def look(self) -> None:
        """Read the files if they have changed, and stood still since the last look."""
        seen, self._seen = self._seen, self._stamp()
        if self._seen != seen or self._seen == self._taken:
            return
        # Also if it can't be used: that is said once, and there is nothing to try before the next change.
        self._taken = self._seen
        names = ", ".join(map(str, self._files))
        try:
            more = self._read()
        except ConfigurationError as error:
            logger.error(
                "%s changed on disk and can't be used, so what was read before stays in use: write it anew (%s). %s",
                self._what,
                names,
                error,
            )
        else:
            logger.info("%s changed on disk and was read again: %s%s", self._what, names, more)

    def _stamp(self) -> Stamp:
        return tuple(map(_stamp_of, self._files))


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        # Through links: Kubernetes puts a new folder behind one.
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class AccessFiles:
    """What an app's settings of access name files for; one per app.

    Args:
        app: the app with its settings.

    Attributes:
        tokens: the tokens that are taken at the moment.

    Raises:
        ConfigurationError: a file with tokens can't be used.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hops: Hops | None = None
        self._watched: list[Watched] = []
        self._watcher: asyncio.Task[None] | None = None
        files = [given for given in given_tokens(app).values() if isinstance(given, Path)]
        if files:
            # Stamped before they are read: no change between the two is missed.
            self._watched.append(Watched("query_tokens, admin_tokens", files, self._read_tokens))
        self.tokens = tokens_of(app)
        if isinstance(secret := given_secrets(app, "worker_secret"), Path):
            self._watched.append(Watched("worker_secret", [secret], self._read_secret))
        self._secret = secret_seeds(app, self.tokens)
        if files := tls_files(app.actor_options):
            what = "web_certificate, web_key, web_client_ca, web_ca"
            self._watched.append(Watched(what, files, self._read_certificates))

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """What the workers' keys are derived from: the first is used, all are taken; see `worker_keys`."""
        return self._secret or self.tokens.seeds

    def hops(self) -> Hops:
        """Give how this worker asks others.

        Raises:
            ConfigurationError: a file can't be used.
        """
        if self._hops is None:
            self._hops = Hops.of(self._app)
        return self._hops

    def look(self) -> None:
        """Read again what has changed."""
        for watched in self._watched:
            try:
                watched.look()
            except Exception:
                # Whatever it is, the next change may be another one.
                logger.exception("what a file with tokens or certificates changed to can't be read")

    # --- while the web server runs ---------------------------------------------------------------------------------

    def watch(self, web_app: web.Application) -> None:
        """Look at the files for as long as a web server runs."""
        if self._watched:
            web_app.on_startup.append(self._start)
            web_app.on_cleanup.append(self._stop)

    async def _start(self, _: web.Application) -> None:
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._look_on())

    async def _stop(self, _: web.Application) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            # Not on the event loop, which would stand still for it.
            await asyncio.to_thread(worker_keys, self._app, b"")

    # --- what is read ----------------------------------------------------------------------------------------------

    def _read_tokens(self) -> str:
        self.tokens.become(tokens_of(self._app))
        return f" ({len(self.tokens)} tokens)"

    def _read_secret(self) -> str:
        self._secret = secret_seeds(self._app, self.tokens)
        return ""

    def _read_certificates(self) -> str:
        options, context = self._app.actor_options, self._app.conf.web_ssl_context
        # Both are tried before either is changed.
        renewals: list[Callable[[], set[bytes]]] = []
        if isinstance(context, OwnContext):
            renewals.append(renew_server(context, options))
        if self._hops is not None and isinstance(self._hops.tls, ssl.SSLContext):
            renewals.append(renew_client(self._hops.tls, options))
        gone = set().union(*(renew() for renew in renewals))
        if not gone:
            return ""
        return f"; authorities that aren't there any more are trusted until the worker is restarted: {len(gone)}"
