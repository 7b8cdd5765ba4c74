"""Where queries may be answered without asking who is there, and where other workers reach a worker."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from actors import App, ConfigurationError
from actors.web.access.callers import names_this_machine
from actors.web.access.settings import check_access, own_address

HOST = socket.gethostname()


def make(**options: Any) -> App:
    return App("access", broker="kafka://127.0.0.1:1", **options)


def may(**options: Any) -> bool:
    try:
        check_access(make(**options))
    except ConfigurationError as error:
        return "queries_unprotected" not in str(error)
    return True


def test_state_is_shown_to_this_machine_unless_more_is_asked_for() -> None:
    assert make().conf.web_bind == "127.0.0.1"
    assert may()
    assert may(web_bind="localhost")
    assert may(web_bind="::1")
    assert may(web_bind="127.9.9.9")
    assert may(web_transport="unix:///tmp/x.sock", web_bind="0.0.0.0")
    for reachable in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        assert not may(web_bind=reachable)
        assert may(web_bind=reachable, queries_unprotected=True)
        assert may(web_bind=reachable, queries=False)
        assert may(web_bind=reachable, web_enabled=False)


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "http://127.0.0.1:6066"),
        ({"web_port": 7000}, "http://127.0.0.1:7000"),
        ({"web_bind": "::1"}, "http://[::1]:6066"),
        ({"web_bind": "0.0.0.0"}, f"http://{HOST}:6066"),
        ({"web_host": "node-1", "web_bind": "0.0.0.0"}, "http://node-1:6066"),
        ({"canonical_url": "https://proxy.example:7000"}, "https://proxy.example:7000"),
        ({"web_enabled": False}, ""),
        ({"web_transport": "unix:///tmp/x.sock"}, ""),
    ],
)
def test_the_address_that_others_are_told(options: dict[str, Any], address: str) -> None:
    assert own_address(make(**options)) == address


@pytest.mark.parametrize("url", ["https://proxy.example/w1", "http://a@b:1", "http://a:1/?x=1"])
def test_an_address_that_others_wouldnt_ask_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="canonical_url"):
        own_address(make(canonical_url=url))


def test_only_names_of_this_machine_are_answered() -> None:
    mine = ["localhost", "localhost:6066", "127.0.0.1:6066", "127.1.2.3", "[::1]:6066"]
    others = ["", "example.org", "127.0.0.1.example.org", "localhost.example.org", "10.0.0.1:6066", "[::2]", "@", "a b"]
    assert [names_this_machine(host) for host in mine] == [True] * len(mine)
    assert [names_this_machine(host) for host in others] == [False] * len(others)
