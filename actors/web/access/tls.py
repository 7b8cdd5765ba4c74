"""TLS contexts of the web server and its clients, and the signatures with which workers ask each other."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors._core.origins import is_on, origin_of
from actors._faust.settings.secrets import worker_keys
from actors.declare.options import ActorOptions
from actors.errors import ConfigurationError, NotReadyError
from actors.runtime.clock import machine_ms
from actors.web.access.signature import APP, HOP, PARTITIONS, PURPOSE, SignedRequest, sign


class OwnContext(ssl.SSLContext):
    """A context of the web server that our settings fill when a worker starts: commands needn't read the key."""


def use_own_tls(options: ActorOptions, faust_options: dict[str, Any]) -> None:
    """Put a context of ours into Faust's settings where ours name a certificate.

    Raises:
        ConfigurationError: Faust's name one too.
    """
    if options.web_certificate is not None:
        if faust_options.get("web_ssl_context") is not None:
            raise ConfigurationError("web_certificate and web_ssl_context say the same twice: leave one out")
        faust_options["web_ssl_context"] = OwnContext(ssl.PROTOCOL_TLS_SERVER)


@dataclass(frozen=True, slots=True)
class Hops:
    """How a worker asks another one.

    Attributes:
        app: the app's id, "" for any.
        keys: returns the keys of hops; the first one signs.
        tls: for workers with https; None for Python's default.
        is_secure: whether workers are asked over https only.
        hosts: patterns of hosts that workers may be on; empty for any.
        wall_ms: returns the time that is signed, in Unix milliseconds.
    """

    app: str = ""
    keys: Callable[[], tuple[bytes, ...]] = field(default=tuple, repr=False)
    tls: ssl.SSLContext | None = None
    is_secure: bool = False
    hosts: tuple[str, ...] = ()
    wall_ms: Callable[[], int] = machine_ms

    def origin(self, address: str) -> str:
        """Return where a worker is asked that announced an address.

        Raises:
            NotReadyError: it isn't asked there: the address isn't an origin, or the settings don't allow it.
        """
        try:
            origin = origin_of(address)
        except ValueError as error:
            raise NotReadyError(f"the worker can't be asked: {error}") from None
        if self.is_secure and not origin.startswith("https:"):
            raise NotReadyError(f"the worker at {origin} isn't asked: it has no https, and this one has")
        if self.hosts and not is_on(origin, self.hosts):
            raise NotReadyError(f"the worker at {origin} isn't asked: worker_hosts doesn't name its host")
        return origin

    def headers(
        self, method: str, origin: str, path: str, *, body: bytes | None = None, partitions: str = ""
    ) -> dict[str, str]:
        """Return the headers of a request to another worker: the mark of a passed-on request, and the signature.

        The signature is good for this request to this worker only, and for reads only.
        """
        found = {HOP: "1"}
        if self.app:
            found[APP] = self.app
        if partitions:
            found[PARTITIONS] = partitions
        keys = self.keys()
        if keys:
            asked = SignedRequest(method, origin, path, partitions)
            found["Authorization"] = sign(keys[0], asked, body, self.wall_ms())
        return found

    @classmethod
    def of(cls, app: Any) -> Hops:
        """Read an app's settings; `ConfigurationError` if a file can't be used."""
        options = app.actor_options
        return cls(
            app=str(app.conf.id),
            keys=lambda: worker_keys(app, PURPOSE),
            tls=client_context(options),
            is_secure=has_https(app),
            hosts=tuple(options.worker_hosts),
            wall_ms=app.actor_clock.wall_ms,
        )


def has_https(app: Any) -> bool:
    """Return whether this app's web servers have certificates."""
    return bool(app.conf.web_ssl_context or app.actor_options.web_certificate)


def has_client_certificates(conf: Any, options: ActorOptions) -> bool:
    """Return whether the web server asks its clients for certificates."""
    given = conf.web_ssl_context
    return options.web_client_ca is not None or (given is not None and given.verify_mode != ssl.CERT_NONE)


def serve_tls(app: Any) -> None:
    """Have Faust's web server use the certificates of our settings.

    Clients without a certificate get in as far as nothing of them is asked: a health page, or with a token. One that
    isn't signed by `web_client_ca` doesn't get through the handshake.

    Raises:
        ConfigurationError: settings that don't go together, or a file that can't be used.
    """
    conf, options = app.conf, app.actor_options
    context = conf.web_ssl_context
    if options.web_certificate is None:
        if options.web_key is not None:
            raise ConfigurationError("web_key is set without web_certificate: set both")
        if options.web_client_ca is not None and context is None:
            raise ConfigurationError(
                "web_client_ca asks clients for certificates, which takes HTTPS: set web_certificate and web_key"
            )
    if options.admin_certificates and not has_client_certificates(conf, options):
        raise ConfigurationError(
            "admin_certificates names clients' certificates, and nobody asks for one: web_client_ca"
        )
    if isinstance(context, OwnContext):
        _fill(context, options)


def _fill(context: ssl.SSLContext, options: ActorOptions) -> None:
    """Load the files of our settings into a context, of the web server or of its clients."""
    is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
    name = "web_ca" if options.web_ca is not None and not is_server else "web_client_ca"
    authority = getattr(options, name)
    if options.web_certificate is not None:
        _load(options, "web_certificate", lambda: _load_certificate(context, options))
    if authority is not None:
        _load(options, name, lambda: context.load_verify_locations(authority))
    if is_server:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A client could have it do the handshake's work again and again.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.verify_mode = ssl.CERT_NONE if authority is None else ssl.CERT_OPTIONAL


def client_context(options: ActorOptions) -> ssl.SSLContext | None:
    """Return the TLS context for requests to other workers, None if no setting asks for one."""
    if not (options.web_ca or options.web_client_ca or options.web_certificate):
        return None
    context = ssl.create_default_context()
    _fill(context, options)
    return context


def tls_files(options: ActorOptions) -> list[Path]:
    """Return the files that our settings name."""
    named = (options.web_certificate, options.web_key, options.web_client_ca, options.web_ca)
    return [Path(name) for name in named if name is not None]


def reload_tls(context: ssl.SSLContext, options: ActorOptions) -> None:
    """Load changed files into a context, for new connections.

    OpenSSL can't take an authority out of a context: one that was removed is trusted until the worker restarts.

    Raises:
        ConfigurationError: a file can't be used; the context is unchanged.
    """
    _fill(ssl.SSLContext(context.protocol), options)
    _fill(context, options)


def _load_certificate(context: ssl.SSLContext, options: ActorOptions) -> None:
    def no_password() -> str:
        raise ValueError("the key has a password")

    # Without this OpenSSL would ask for a password on the terminal.
    context.load_cert_chain(str(options.web_certificate), options.web_key, password=no_password)


def _load(options: ActorOptions, name: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        # An SSLError is an OSError.
        files = f"{getattr(options, name)}" + (f", {options.web_key}" if name == "web_certificate" else "")
        raise ConfigurationError(f"{name}={files!r} can't be used: {error}") from error
