"""Who may ask a worker's web server, by table: tokens, certificates, the machine itself; a real server."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY

from actors import App, ConfigurationError
from actors._faust.settings.secrets import Level, Secrets, Token, Tokens, worker_keys
from actors.errors import NotReadyError
from actors.web.access import guard
from actors.web.access.settings import check_access
from actors.web.access.signature import HOP
from actors.web.access.tls import Hops
from actors.web.workers import WorkerClient
from tests.certificates import Authority
from tests.unit.web.web_part import ADMIN, OLD_READ, READ, TOKENS, bearer, hop, make_app, raw, served

WRONG = "reader-0123456789-abcdeX"

CASES = [
    # method, path, token, status
    ("GET", "/state", READ, 200),
    ("GET", "/state", OLD_READ, 200),
    ("GET", "/state", ADMIN, 200),
    ("GET", "/state", None, 401),
    ("GET", "/state", WRONG, 401),
    ("GET", "/state/nowhere", None, 401),
    ("GET", "/state/nowhere", READ, 404),
    ("PUT", "/state/drop", READ, 405),
    ("GET", "/state/secret", READ, 403),
    ("GET", "/state/secret", ADMIN, 200),
    ("HEAD", "/state/secret", READ, 403),
    ("POST", "/state/_many", READ, 200),
    ("POST", "/state/_many", None, 401),
    ("POST", "/state/drop", READ, 403),
    ("POST", "/state/drop", ADMIN, 200),
    ("GET", "/state/both", READ, 403),
    ("GET", "/state/both", ADMIN, 200),
    ("POST", "/state/both", READ, 403),
    ("OPTIONS", "/state", None, 401),
    ("OPTIONS", "/state", READ, 405),
    ("HEAD", "/state", None, 401),
    ("GET", "/health", None, 200),
    ("GET", "/health", WRONG, 200),
    ("GET", "/health/secret", None, 401),
    ("POST", "/health/drop", None, 401),
]


@pytest.mark.parametrize(("method", "path", "token", "status"), CASES)
async def test_who_may_do_what(method: str, path: str, token: str | None, status: int) -> None:
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        headers = {} if token is None else bearer(token)
        async with session.request(method, server.make_url(path), headers=headers) as reply:
            assert reply.status == status
            if status == 401:
                assert reply.headers["WWW-Authenticate"].startswith('Bearer realm="faust-actors"')
            if status >= 400:
                assert reply.content_type == "application/problem+json"


AUTHORIZATIONS = [
    ([f"Bearer {READ}"], 200),
    ([f"bearer   {READ} "], 200),
    ([f"Basic {READ}"], 401),
    ([READ], 401),
    (["Bearer"], 401),
    (["Bearer "], 401),
    ([f"Bearer {READ}, Bearer {ADMIN}"], 401),
    # Which one a proxy in front would have looked at can't be told.
    ([f"Bearer {READ}", f"Bearer {READ}"], 401),
    ([f"Bearer {READ}\udcff".encode("utf-8", "surrogateescape").decode("latin-1")], 401),
]


@pytest.mark.parametrize(("values", "status"), AUTHORIZATIONS)
async def test_a_token_comes_in_one_form_only(values: list[str], status: int) -> None:
    async with served(**TOKENS) as server:
        lines = "".join(f"Authorization: {value}\r\n" for value in values)
        found, answer = await raw(server, f"GET /state HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n")
        assert found == status, answer


LOCAL = [
    # options, method, path, headers, status
    ({}, "GET", "/state", {}, 200),
    ({}, "POST", "/state/drop", {}, 200),
    ({}, "GET", "/state", {"Host": "evil.example"}, 403),
    ({}, "GET", "/state", {"X-Forwarded-For": "10.0.0.1"}, 403),
    ({}, "GET", "/state", {"Forwarded": "for=10.0.0.1"}, 403),
    ({}, "POST", "/state/drop", {"Origin": "http://evil.example"}, 403),
    ({}, "POST", "/state/drop", {"Origin": "null"}, 403),
    ({}, "POST", "/state/drop", {"Sec-Fetch-Site": "cross-site"}, 403),
    ({}, "POST", "/state/drop", {"Sec-Fetch-Site": "same-site"}, 403),
    ({}, "GET", "/state", bearer(READ), 401),
    ({"queries_unprotected": True}, "GET", "/state", {"Host": "anything.example"}, 200),
    ({"queries_unprotected": True}, "POST", "/state/_many", {"Host": "anything.example"}, 200),
    ({"queries_unprotected": True}, "POST", "/state/drop", {"Host": "anything.example"}, 403),
    ({"queries_unprotected": True, "web_bind": "0.0.0.0"}, "GET", "/state", {}, 200),
    ({"queries_unprotected": True, "web_bind": "0.0.0.0"}, "POST", "/state/drop", {}, 403),
    ({"queries_unprotected": True, "admin_tokens": [ADMIN]}, "GET", "/state", {}, 200),
    ({"queries_unprotected": True, "admin_tokens": [ADMIN]}, "POST", "/state/drop", {}, 401),
    ({"queries_unprotected": True, "admin_tokens": [ADMIN]}, "POST", "/state/drop", bearer(ADMIN), 200),
    ({"admin_tokens": [ADMIN]}, "GET", "/state", {}, 401),
    ({"query_tokens": [READ]}, "GET", "/state", {"Host": "evil.example", **bearer(READ)}, 200),
]


@pytest.mark.parametrize(("options", "method", "path", "headers", "status"), LOCAL)
async def test_what_this_machine_and_everybody_may(
    options: dict[str, Any], method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with (
        served(**options) as server,
        aiohttp.ClientSession() as session,
        session.request(method, server.make_url(path), headers=headers) as reply,
    ):
        assert reply.status == status, await reply.text()


HOPS = [
    # what a worker has whose request it is, method, path, status
    ({"query_tokens": [READ]}, "GET", "/state", 401),
    ({"query_tokens": ["unknown-0123456789"], "admin_tokens": [ADMIN]}, "GET", "/state", 200),
    ({"admin_tokens": [ADMIN]}, "GET", "/state", 200),
    ({"admin_tokens": [ADMIN]}, "GET", "/state/secret", 403),
    ({"admin_tokens": [ADMIN]}, "POST", "/state/drop", 403),
    ({"query_tokens": ["another-0123456789"]}, "GET", "/state", 401),
]


@pytest.mark.parametrize(("theirs", "method", "path", "status"), HOPS)
async def test_a_worker_may_pass_questions_on_and_no_more(
    theirs: dict[str, Any], method: str, path: str, status: int
) -> None:
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        headers = hop(server, method, path, **theirs)
        async with session.request(method, server.make_url(path), headers=headers) as reply:
            assert reply.status == status, await reply.text()
        # What workers show each other is good for nothing else.
        del headers[HOP]
        async with session.get(server.make_url("/state"), headers=headers) as reply:
            assert reply.status == 401


@pytest.mark.parametrize(
    ("token", "method", "path", "status"),
    [(ADMIN, "POST", "/state/drop", 403), (ADMIN, "GET", "/state", 200), (READ, "GET", "/state/secret", 403)],
)
async def test_a_forged_hop_gives_nobody_more(token: str, method: str, path: str, status: int) -> None:
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        headers = {HOP: "1", **bearer(token)}
        async with session.request(method, server.make_url(path), headers=headers) as reply:
            assert reply.status == status
        async with session.get(server.make_url("/state"), headers={HOP: "1"}) as reply:
            assert reply.status == 401


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


CERTIFICATES = [
    # certificate, method, path, headers, status
    (None, "GET", "/health", {}, 200),
    (None, "GET", "/state", {}, 401),
    (None, "GET", "/state", bearer(READ), 200),
    ("reader", "GET", "/state", {}, 200),
    ("reader", "POST", "/state/drop", {}, 403),
    ("reader", "POST", "/state/drop", bearer(ADMIN), 200),
    ("reader", "GET", "/state", bearer(WRONG), 401),
    ("ops", "GET", "/state/secret", {}, 200),
    ("ops", "POST", "/state/drop", {}, 200),
    ("chief", "GET", "/state/secret", {}, 200),
    # Another subject that has the first one's text in it.
    ("ops,OU=Tests,O=Ops", "GET", "/state/secret", {}, 403),
    ("CN=chief", "GET", "/state/secret", {}, 403),
    ("ops", "POST", "/state/drop", {"Origin": "https://evil.example"}, 403),
    ("ops", "POST", "/state/drop", {HOP: "1"}, 403),
    ("ops", "GET", "/state", {HOP: "1"}, 200),
]


def secured(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.certificate("worker")
    return {
        "web_certificate": certificate,
        "web_key": key,
        "web_client_ca": authority.file,
        "admin_certificates": ["CN=ops,OU=Tests,O=Ops", "CN=chief"],
        **TOKENS,
    }


@pytest.mark.parametrize(("name", "method", "path", "headers", "status"), CERTIFICATES)
async def test_what_certificates_allow(
    authority: Authority, name: str | None, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    given = None if name is None else authority.certificate(name, organization=name.title())
    async with served(**secured(authority)) as server:
        connector = aiohttp.TCPConnector(ssl=authority.trust(given))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, server.make_url(path), headers=headers) as reply,
        ):
            assert reply.status == status, await reply.text()


async def test_a_certificate_of_somebody_elses_gets_nowhere(authority: Authority, stranger: Authority) -> None:
    async with served(**secured(authority)) as server:
        for trust, client in ((authority, stranger.certificate("ops", organization="Ops")), (stranger, None)):
            connector = aiohttp.TCPConnector(ssl=trust.trust(client))
            async with aiohttp.ClientSession(connector=connector) as session:
                with pytest.raises(aiohttp.ClientError):
                    async with session.get(server.make_url("/health")) as reply:
                        await reply.read()


async def test_a_worker_shows_its_certificate_to_others(authority: Authority) -> None:
    options = secured(authority)
    for name in ("query_tokens", "admin_tokens"):
        del options[name]
    hops = Hops.of(make_app(**options))
    async with served(**options) as server:
        assert isinstance(hops.tls, ssl.SSLContext)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=hops.tls)) as session,
            session.get(server.make_url("/state"), headers=hops.headers("GET", "https://x:1", "/state")) as reply,
        ):
            assert (await reply.json())["by"].startswith("certificate ")


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"query_tokens": ["short"]}, "query_tokens: entry 1"),
        ({"query_tokens": [READ, "with a space in the middle"]}, "query_tokens: entry 2"),
        ({"admin_tokens": ["ümlaut-0123456789-abc"]}, "admin_tokens: entry 1"),
        ({"query_tokens": []}, "query_tokens has nothing in it"),
        ({"query_tokens": [READ], "admin_tokens": [READ]}, "twice"),
        ({"query_tokens": Path("/nowhere/at/all")}, "/nowhere/at/all"),
        ({"web_key": "x"}, "web_certificate"),
        ({"web_client_ca": "x"}, "web_certificate"),
        ({"web_certificate": "/nowhere.pem"}, "web_certificate='/nowhere.pem"),
        ({"web_certificate": "x", "web_ssl_context": ssl.create_default_context()}, "leave one out"),
        ({"admin_certificates": ["CN=ops"]}, "web_client_ca"),
    ],
)
def test_settings_that_cant_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        check_access(App("refused", broker="kafka://127.0.0.1:1", **options))
    assert said in str(failure.value)
    assert READ not in str(failure.value)


def test_tokens_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{READ}\n\n{OLD_READ}\n")
    found = Secrets(App("files", query_tokens=file)).tokens
    assert [found.find(token) is not None for token in (READ, OLD_READ, ADMIN)] == [True, True, False]
    monkeypatch.setenv("QUERY_TOKENS", f"{ADMIN}, {OLD_READ}")
    found = Secrets(App("environment", query_tokens=file)).tokens
    assert [found.find(token) is not None for token in (READ, OLD_READ, ADMIN)] == [False, True, True]
    monkeypatch.setenv("ADMIN_TOKENS_FILE", str(file))
    monkeypatch.delenv("QUERY_TOKENS")
    found = Secrets(App("environment")).tokens
    assert len(found) == 2


async def test_no_token_is_ever_shown(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shown", **TOKENS)
    tokens = Secrets(app).tokens
    hops = app.extensions["web"].files.hops()
    keys = [key.hex() for key in worker_keys(app, b"hop")]
    caplog.set_level(logging.DEBUG)
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        for token in (WRONG, READ, ADMIN):
            async with session.post(server.make_url(f"/state/drop?token={token}"), headers=bearer(token)) as reply:
                said = await reply.text()
            assert token not in said
    shown = f"{app.actor_options!r} {tokens!r} {tokens.find(READ)!r} {hops!r} {caplog.text}"
    for secret in (READ, OLD_READ, ADMIN, WRONG, *keys):
        assert secret not in shown
    assert "POST /state/drop" in caplog.text
    assert "127.0.0.1 (query token 1)" in caplog.text


async def test_refusals_are_counted_and_written_in_lines_that_cant_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=guard.__name__)
    before = refused("unauthorized")
    async with served(**TOKENS) as server, aiohttp.ClientSession() as session:
        for number in range(200):
            async with session.get(server.make_url(f"/state/to/{number}%0Aforged%20line")) as reply:
                assert reply.status == 401
    assert refused("unauthorized") - before == 200
    lines = [record.getMessage() for record in caplog.records if record.name == guard.__name__]
    assert lines
    assert all(
        line.startswith("refused GET") and "127.0.0.1 (nobody known): 401 unauthorized" in line for line in lines
    )
    assert all(line.isprintable() for line in lines)


def refused(reason: str) -> float:
    labels = {"app": "access", "reason": reason}
    return REGISTRY.get_sample_value("faust_actors_refused_requests_total", labels) or 0.0


def test_all_tokens_are_compared_whichever_fits() -> None:
    class Counted(Token):
        seen = 0

        def has(self, digest: bytes) -> bool:
            Counted.seen += 1
            return super().has(digest)

    tokens = Tokens([READ, OLD_READ], admin=[ADMIN])
    tokens._held = tuple(Counted(secret, Level.READ, secret[:3]) for secret in (READ, OLD_READ, ADMIN))
    for given in (READ, ADMIN, "", "nothing", READ[:-1]):
        Counted.seen = 0
        tokens.find(given)
        assert Counted.seen == 3


async def test_workers_that_dont_know_each_others_tokens_say_so() -> None:
    stranger = App("access", query_tokens=["another-0123456789"])
    workers = WorkerClient(stranger.extensions["web"].files.hops())
    async with served(**TOKENS) as server:
        try:
            with pytest.raises(NotReadyError, match=r"refuses what this worker passes on \(401\)"):
                await workers.fetch("GET", str(server.make_url("")), "/state", partitions=[0])
        finally:
            await workers.close()


def test_what_comes_from_outside_stays_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    who, what = "certificate CN=a\nrefused nothing\x1b[2J", "GET /\u2028"
    guard.logger.warning("refused %s, asked by %s: %s %s", what, who, 403, "\r")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
