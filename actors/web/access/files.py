"""Files with tokens and certificates: read at the start, and again when they change.

A timer looks at the files; requests never do. Changed files are read when two looks in a row find them the same, since
a file may be half written. If a file can't be used, its former content stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

from actors._core.logs import escaping
from actors._faust.settings.secrets import worker_keys
from actors.errors import ConfigurationError
from actors.runtime.cancellation import end
from actors.web.access.tls import Hops, OwnContext, reload_tls, tls_files

logger = escaping(logging.getLogger(__name__))

LOOK_EVERY_S = 3.0
"""A new file is in use within three times that."""

Stamp = tuple[int, int, int] | None


class AccessFiles:
    """The files with tokens and certificates that an app's settings name; one per app.

    Args:
        app: the app with its settings.

    Raises:
        ConfigurationError: a file with tokens can't be used.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hops: Hops | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._files = app.secrets.files + tls_files(app.actor_options)
        # Before the files are read again: no change in between is missed.
        self._seen = self._read = self._stamps()
        app.secrets.read()

    def hops(self) -> Hops:
        """Return the settings of requests to other workers; `ConfigurationError` if a file can't be used."""
        if self._hops is None:
            self._hops = Hops.of(self._app)
        return self._hops

    def look(self) -> None:
        """Read the files again if they changed, and have not changed since the last look."""
        seen, self._seen = self._seen, self._stamps()
        if self._seen != seen or self._seen == self._read:
            return
        # Files that can't be used are not tried again before their next change.
        self._read = self._seen
        names = ", ".join(map(str, self._files))
        try:
            self._read_again()
        except ConfigurationError as error:
            logger.error(
                "%s changed on disk and can't be used, so its former content stays in use: write it again. %s",
                names,
                error,
            )
        else:
            logger.info("%s changed on disk and was read again (%d tokens)", names, len(self._app.secrets.tokens))

    def _read_again(self) -> None:
        options, context = self._app.actor_options, self._app.conf.web_ssl_context
        # Tokens first: a broken certificate must not keep a revoked token in use.
        self._app.secrets.read()
        if isinstance(context, OwnContext):
            reload_tls(context, options)
        if self._hops is not None and isinstance(self._hops.tls, ssl.SSLContext):
            reload_tls(self._hops.tls, options)

    def _stamps(self) -> list[Stamp]:
        return [_stamp_of(file) for file in self._files]

    def watch(self, web_app: web.Application) -> None:
        """Look at the files while a web server runs."""
        if self._files:
            web_app.on_startup.append(self._start)
            web_app.on_cleanup.append(self._stop)

    async def _start(self, _: web.Application) -> None:
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._look_on())

    async def _stop(self, _: web.Application) -> None:
        watcher, self._watcher = self._watcher, None
        await end(watcher)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            # Keys of new secrets take 50 ms each: derive them outside of the event loop.
            await asyncio.to_thread(worker_keys, self._app, b"")


def _stamp_of(file: Path) -> Stamp:
    try:
        # Follows links: Kubernetes exchanges the folder behind one.
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
