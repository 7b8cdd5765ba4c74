"""The settings of access, and their checks."""

from __future__ import annotations

import ipaddress
from typing import Any

from yarl import URL

from actors._core.origins import is_on, origin_of
from actors._faust.settings.secrets import worker_keys
from actors.errors import ConfigurationError
from actors.web.access.tls import has_client_certificates, has_https, serve_tls


def is_local(conf: Any) -> bool:
    """Return whether the web server can be reached from this machine only."""
    return conf.web_transport.scheme == "unix" or is_loopback(str(conf.web_bind))


def check_access(app: Any) -> None:
    """Load the certificates of the web server, and check that the settings protect the state.

    Raises:
        ConfigurationError: naming the settings.
    """
    conf, options = app.conf, app.actor_options
    serve_tls(app)
    # Refuses what can't be used, and takes its time before the event loop has work to do.
    worker_keys(app, b"")
    own = own_address(app)
    if options.worker_hosts and own and not is_on(own, options.worker_hosts):
        raise ConfigurationError(
            f"worker_hosts doesn't name this worker's own host, so the others wouldn't ask it: it announces {own} "
            "(canonical_url)"
        )
    guarded = is_guarded(app)
    if conf.web_enabled and options.queries and not (options.queries_unprotected or guarded or is_local(conf)):
        raise ConfigurationError(
            f"web_bind={conf.web_bind!r} would show the actors' state under /actors to every machine that reaches "
            f"port {conf.web_port}, without asking who it is: set query_tokens (or QUERY_TOKENS) or web_client_ca, "
            "queries_unprotected=True if everybody may read, queries=False to answer no queries, or "
            "web_bind='127.0.0.1'"
        )


def is_guarded(app: Any) -> bool:
    """Return whether requests need a token or a certificate."""
    return bool(app.secrets.tokens) or has_client_certificates(app.conf, app.actor_options)


def own_address(app: Any) -> str:
    """Return where other workers reach this one's web server; empty if they can't.

    Raises:
        ConfigurationError: canonical_url has more than scheme, host and port.
    """
    conf = app.conf
    if not conf.web_enabled or conf.web_transport.scheme == "unix":
        return ""
    scheme = "https" if has_https(app) else "http"
    given = conf.canonical_url
    derived = given.host == conf.NODE_HOSTNAME and given.port == conf.web_port
    if derived and is_loopback(str(conf.web_bind)):
        # Nobody reaches the machine's name here.
        return str(URL.build(scheme=scheme, host=str(conf.web_bind), port=conf.web_port))
    try:
        return origin_of(str(given.with_scheme(scheme) if derived else given))
    except ValueError as error:
        raise ConfigurationError(
            f"canonical_url={str(given)!r} can't be used, since other workers ask this one there: {error}"
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether a name or address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
