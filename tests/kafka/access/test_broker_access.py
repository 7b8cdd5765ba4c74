"""A broker that wants TLS and a password, by PLAIN or SCRAM, and workers that want to know who asks.

Every client of ours brings what the broker wants, and says clearly what wasn't right. Workers with certificates and
tokens answer each other's questions, and the examples of docs/how-to/security.md work.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka.abc import AbstractTokenProvider
from yarl import URL

from actors import View
from actors._faust.brokers import reached
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import Connection
from actors.client import StateClient, StateRequestError, SyncStateClient
from actors.coordination import Coordination, CoordinationError
from actors.errors import BrokerRefusedError, BrokerUnavailableError
from dev.kafka import Cluster, free_ports
from tests import documents
from tests.certificates import Authority
from tests.kafka import forked
from tests.kafka.conftest import PASSWORD, USER
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, unique

MODULE = "tests.kafka.apps.secure_app"
QUERY_TOKEN, ADMIN_TOKEN = "reader-0123456789-abcdef", "admin-0123456789-abcdefg"
KEYS = [f"key-{number}" for number in range(20)]
NEW_TOKEN = "reader-after-0123456789"
EVERY_S = 60.0
PLAIN, SCRAM = MECHANISMS = ("PLAIN", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with TLS and SASL, an app on it, and two workers with TLS and tokens."""

    name: str
    brokers: str
    folder: Path
    authority: Authority
    stranger: Authority
    ports: tuple[int, ...] = ()
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def tokens(self) -> Path:
        """The file with the tokens that allow to read."""
        return self.folder / "query-tokens"

    @property
    def urls(self) -> list[str]:
        """The workers."""
        return [f"https://127.0.0.1:{port}" for port in self.ports]

    def environment(
        self, *, password: str = PASSWORD, authority: Authority | None = None, mechanism: str = PLAIN
    ) -> dict[str, str]:
        """What the app's module wants."""
        return {
            "APP_NAME": self.name,
            "BROKER_USER": USER,
            "BROKER_PASSWORD": password,
            "BROKER_MECHANISM": mechanism,
            "BROKER_CA": str((authority or self.authority).file),
        }

    def worker(self, name: str, *, port: int | None = None, **wrong: Any) -> WorkerProcess:
        """Start a worker, with a web server if it has a port."""
        files = {"WEB_FILES": str(self.authority.folder), "QUERY_TOKENS_FILE": str(self.tokens)}
        web = {"WEB_PORT": str(port), **files, "ADMIN_TOKENS": ADMIN_TOKEN} if port is not None else {}
        worker = WorkerProcess(MODULE, self.brokers, self.folder / name, **self.environment(**wrong), **web)
        self.workers.append(worker.start(web=port is not None))
        return worker

    def security(
        self, *, password: str = PASSWORD, authority: Authority | None = None, mechanism: str = PLAIN
    ) -> Mapping[str, Any]:
        """What aiokafka's clients take."""
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
            "ssl_context": (authority or self.authority).trust(),
        }

    def view(
        self, *, password: str = PASSWORD, authority: Authority | None = None, mechanism: str = PLAIN
    ) -> View[str, int]:
        """A view of the app's store, with credentials and context as two of Faust's settings."""
        return View(
            f"{self.name}--counts-changelog",
            broker=f"kafka://{self.brokers}",
            value_type=int,
            broker_credentials=faust.SASLCredentials(username=USER, password=password, mechanism=mechanism),
            ssl_context=(authority or self.authority).trust(),
        )

    async def faust(self, *arguments: str, **wrong: Any) -> subprocess.CompletedProcess[str]:
        """Call `faust -A …`."""
        return await asyncio.to_thread(
            forked.faust,
            *("-A", MODULE, *arguments),
            environment={"KAFKA_URL": f"kafka://{self.brokers}", **self.environment(**wrong)},
            timeout_s=EVERY_S,
        )


@pytest.fixture(scope="module")
async def site(
    secure_cluster: tuple[Cluster, Authority], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    running, authority = secure_cluster
    folder = tmp_path_factory.mktemp("secure")
    stranger, ports = Authority(folder / "stranger"), tuple(free_ports(2))
    site = Site(unique("secure"), running.secure_bootstrap, folder, authority, stranger, ports)
    for name in ("worker", "reader", "ops"):
        authority.certificate(name)
    await make_topics(running.bootstrap, f"{site.name}-in", f"{site.name}-out")
    site.tokens.write_text(QUERY_TOKEN)
    try:
        for number, port in enumerate(ports):
            site.worker(f"worker-{number}", port=port, mechanism=MECHANISMS[number])
        async with producing(site.brokers, **site.security()) as producer:
            for key in ["a", *KEYS] * 3:
                await producer.send(f"{site.name}-in", b"word", key.encode())
        yield site
    finally:
        for worker in site.workers:
            worker.kill()


def trusting(site: Site, name: str | None = None) -> Any:
    """A client's context, with a certificate of its own if a name is given."""
    files = site.authority.folder
    return site.authority.trust(None if name is None else (files / f"{name}.pem", files / f"{name}.key"))


@pytest.mark.nightly
async def test_workers_answer_each_others_questions(site: Site) -> None:
    clients = [
        StateClient(url, ssl=trusting(site, name), token=token, follow_owners=follows)
        for url in site.urls
        for name, token in ((None, QUERY_TOKEN), ("reader", None))
        for follows in (True, False)
    ]
    for client in clients:
        async with client:
            await eventually(lambda client=client: _has_all(client), what=lambda: site.workers[0].log()[-2000:])
            assert [await client.get("counts", key) for key in KEYS] == [3] * len(KEYS)


async def _has_all(client: StateClient) -> bool:
    return await client.get_many("counts", KEYS) == dict.fromkeys(KEYS, 3)


async def test_nobody_else_is_answered(site: Site) -> None:
    for token in (None, "guess-0123456789-abc"):
        async with StateClient(site.urls, ssl=trusting(site), token=token) as client:
            with pytest.raises(StateRequestError) as refused:
                await client.get("counts", "a")
        assert (refused.value.status, refused.value.kind) == (401, "unauthorized")

    def blocking() -> Any:
        with SyncStateClient(site.urls, ssl=trusting(site), token=QUERY_TOKEN) as client:
            return client.get("counts", "a")

    assert await asyncio.to_thread(blocking) == 3
    assert "refused GET /actors" in site.workers[0].log() + site.workers[1].log()
    for worker in site.workers:
        assert not any(secret in worker.log() for secret in (QUERY_TOKEN, ADMIN_TOKEN, PASSWORD, "guess-0123"))


async def test_the_examples_of_the_documentation(site: Site) -> None:
    folder = site.authority.folder
    (folder / "token.txt").write_text(f"Authorization: Bearer {QUERY_TOKEN}\n")
    async with StateClient(site.urls, ssl=trusting(site), token=QUERY_TOKEN) as client:
        await eventually(lambda: _has_all(client), what=lambda: site.workers[0].log()[-2000:])
    for command in documents.commands_of("docs/how-to/security.md"):
        found = await documents.run(command, site.ports[0], folder=folder, environment={"QUERY_TOKEN": QUERY_TOKEN})
        assert documents.shows(found, command.answer), (command, found)


async def test_a_view_and_commands_get_in(site: Site) -> None:
    for mechanism in MECHANISMS:
        async with site.view(mechanism=mechanism) as view:
            await eventually(lambda view=view: view.get("a") == 3, what=lambda view=view: dict(view))
    found = [
        await site.faust(
            "--json", "-D", str(site.folder / f"worker-{number}"), "state", "get", "counts", "a", mechanism=mechanism
        )
        for number, mechanism in enumerate(MECHANISMS)
    ]
    assert any(done.returncode == 0 and json.loads(done.stdout)["value"] == 3 for done in found), found


async def test_a_lock_is_taken(site: Site) -> None:
    async with (
        asyncio.timeout(EVERY_S),
        Coordination(site.brokers, app=site.name, call_timeout=60, security=site.security(mechanism=SCRAM)) as client,
        client.lock("door"),
    ):
        done = await site.faust("locks", "list")
    assert (done.returncode, "door" in done.stdout) == (0, True), done


@pytest.mark.parametrize("wrong", ["password", "certificate"])
async def test_what_is_wrong_is_said_in_one_line(site: Site, wrong: str) -> None:
    given: dict[str, Any] = {"password": "not-it"} if wrong == "password" else {"authority": site.stranger}
    said = "doesn't take user 'alice'" if wrong == "password" else "isn't trusted"
    worker = site.worker(f"refused-{wrong}", **given)
    code = await asyncio.to_thread(worker.wait, EVERY_S)
    lines = [line for line in worker.log().splitlines() if said in line]
    assert (code, len(lines), "Traceback" in worker.log()) == (1, 1, False), worker.log()
    done = await site.faust("locks", "list", **given)
    assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (1, 1, True), done
    for mechanism in MECHANISMS:
        with pytest.raises(BrokerRefusedError, match=said):
            async with site.view(**given, mechanism=mechanism):
                pass
    async with Coordination(site.brokers, app=site.name, call_timeout=3, security=site.security(**given)) as client:
        with pytest.raises(CoordinationError, match=said):
            async with asyncio.timeout(EVERY_S), client.lock("door"):
                pass


class UnsignedTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens that the tests' brokers take, for some seconds each, or an error."""

    def __init__(self, *, lasts_s: float = 60.0, error: Exception | None = None) -> None:
        self.lasts_s, self.error = lasts_s, error

    async def token(self) -> str:
        if self.error is not None:
            raise self.error
        now_s = time.time()
        parts = {"alg": "none"}, {"sub": USER, "iat": now_s - 100, "exp": now_s + self.lasts_s}
        texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        return f"{'.'.join(texts)}."


async def test_a_token_gets_in_or_one_error_says_why_not(site: Site) -> None:
    def connection(tokens: UnsignedTokens) -> Connection:
        credentials = faust.OAuthCredentials(oauth_cb=tokens)
        return reached([URL(f"kafka://{site.brokers}")], credentials, site.authority.trust())

    topic = f"{site.name}-in"
    async with ControlPlane.connect(connection(UnsignedTokens()), "nobody") as control:
        assert set(await control.topics([topic])) == {topic}
    with pytest.raises(BrokerUnavailableError, match="doesn't take this token: see broker_credentials"):
        await ControlPlane.open(connection(UnsignedTokens(lasts_s=-30.0)), "nobody")
    with pytest.raises(BrokerUnavailableError, match="gave no token for the broker at"):
        await ControlPlane.open(connection(UnsignedTokens(error=KeyError("access_token"))), "nobody")


@pytest.mark.nightly
async def test_the_ready_made_lock_service_gets_in_by_its_environment(site: Site) -> None:
    password, name = site.folder / "password", unique("locks")
    password.write_text(f"{PASSWORD}\n")
    given = {
        "COORDINATION_APP": name,
        "KAFKA_USER": USER,
        "KAFKA_PASSWORD_FILE": str(password),
        "KAFKA_MECHANISM": SCRAM,
        "KAFKA_CA": str(site.authority.file),
    }
    worker = WorkerProcess("actors.coordination.app", site.brokers, site.folder / "locks", **given).start()
    site.workers.append(worker)
    security = site.security(mechanism=SCRAM)
    async with (
        asyncio.timeout(EVERY_S),
        Coordination(site.brokers, app=name, call_timeout=60, security=security) as client,
        client.lock("door") as lease,
    ):
        assert lease.token >= 0
    assert PASSWORD not in worker.log()


@pytest.mark.nightly
async def test_a_new_token_is_taken_while_the_workers_run(site: Site) -> None:
    # In front of the one before: workers show each other what they derive from it.
    site.tokens.write_text(f"{NEW_TOKEN}\n{QUERY_TOKEN}\n")
    for url in site.urls:
        async with StateClient(url, ssl=trusting(site), token=NEW_TOKEN, follow_owners=False) as client:
            await eventually(lambda client=client: _is_taken(client), what=site.workers[0].log)
            assert [await client.get("counts", key) for key in KEYS] == [3] * len(KEYS)
    for worker in site.workers[: len(site.urls)]:
        assert "was read again" in worker.log()
        assert NEW_TOKEN not in worker.log()


async def _is_taken(client: StateClient) -> bool:
    try:
        return await _has_all(client)
    except StateRequestError as refused:
        if refused.status != 401:
            raise
        return False
