"""A broker that wants TLS and a password: every client of ours brings them, and says clearly when they aren't right."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faust
import pytest

from actors import View
from actors.coordination import Coordination, FencedTopic
from actors.errors import ActorsError, BrokerUnavailableError
from dev.kafka import Cluster, Secure
from tests.certificates import Authority
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, unique

MODULE = "tests.kafka.apps.secure_app"
USER, PASSWORD = "alice", "alice-secret-0123"
EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with TLS and SASL, and an app on it."""

    name: str
    plain: str
    brokers: str
    folder: Path
    authority: Authority
    stranger: Authority = field(repr=False)

    def environment(self, *, password: str = PASSWORD, authority: Authority | None = None) -> dict[str, str]:
        """What the app's module wants."""
        return {
            "APP_NAME": self.name,
            "BROKER_USER": USER,
            "BROKER_PASSWORD": password,
            "BROKER_CA": str((authority or self.authority).file),
        }

    def security(self, *, password: str = PASSWORD, authority: Authority | None = None) -> Mapping[str, Any]:
        """What aiokafka's clients take."""
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
            "ssl_context": (authority or self.authority).trust(),
        }

    def credentials(self, *, password: str = PASSWORD, authority: Authority | None = None) -> Any:
        """What Faust takes."""
        context = (authority or self.authority).trust()
        return faust.SASLCredentials(username=USER, password=password, ssl_context=context)

    async def faust(self, *arguments: str, **wrong: Any) -> subprocess.CompletedProcess[str]:
        """Call `faust -A …`."""
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "faust", "-A", MODULE, *arguments],
            cwd=ROOT,
            env={**os.environ, "KAFKA_URL": f"kafka://{self.brokers}", **self.environment(**wrong)},
            capture_output=True,
            text=True,
            timeout=EVERY_S,
            check=False,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Authority]]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    secure = Secure(str(authority.keystore("broker")), {USER: PASSWORD})
    with Cluster.up(tmp_path_factory.mktemp("secure-kafka"), secure=secure) as running:
        yield running, authority


@pytest.fixture(scope="module")
async def site(cluster: tuple[Cluster, Authority], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    running, authority = cluster
    folder = tmp_path_factory.mktemp("secure")
    site = Site(
        unique("secure"), running.bootstrap, running.secure_bootstrap, folder, authority, Authority(folder / "other")
    )
    await make_topics(site.plain, f"{site.name}-in", f"{site.name}-out")
    worker = WorkerProcess(MODULE, site.brokers, folder / "worker", **site.environment()).start()
    try:
        async with producing(site.brokers, **site.security()) as producer:
            for _ in range(3):
                await producer.send_and_wait(f"{site.name}-in", b"word", b"a")
        yield site
    finally:
        worker.kill()


async def test_a_worker_a_view_and_commands_get_in(site: Site) -> None:
    changelog = f"{site.name}-counts-changelog"
    async with View(
        changelog, broker=f"kafka://{site.brokers}", value_type=int, broker_credentials=site.credentials()
    ) as view:
        await eventually(lambda: view.get("a") == 3, what=lambda: dict(view))
    done = await site.faust("--json", "-D", str(site.folder / "worker"), "state", "get", "counts", "a")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["value"] == 3


async def test_a_lock_is_taken_and_guards_a_topic(site: Site) -> None:
    async with Coordination(site.brokers, app=site.name, call_timeout=60, security=site.security()) as client:
        async with (
            client.lock("door") as lease,
            FencedTopic(site.brokers, unique("guarded"), "door", security=site.security()) as topic,
        ):
            record = await topic.append(lease.token, b"in")
        assert record.value == b"in"
    done = await site.faust("locks", "list")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("password", "BROKER_PASSWORD"), ("certificate", "certificate")],
)
async def test_what_is_wrong_is_said_once(site: Site, wrong: str, said: str) -> None:
    given: dict[str, Any] = {"password": "not-it"} if wrong == "password" else {"authority": site.stranger}
    worker = WorkerProcess(MODULE, site.brokers, site.folder / f"refused-{wrong}", **site.environment(**given)).start()
    try:
        code = await asyncio.to_thread(worker.wait, EVERY_S)
    finally:
        worker.kill()
    print("WORKER", code, worker.log())
    done = await site.faust("locks", "list", **given)
    print("CLI", done.returncode, done.stderr)
    with pytest.raises(BrokerUnavailableError) as failure:
        async with View(
            f"{site.name}-counts-changelog",
            broker=f"kafka://{site.brokers}",
            value_type=int,
            broker_credentials=site.credentials(**given),
        ):
            pass
    print("VIEW", failure.value)
    async with Coordination(site.brokers, app=site.name, call_timeout=5, security=site.security(**given)) as client:
        with pytest.raises(ActorsError) as failure:
            async with client.lock("door"):
                pass
    print("LOCK", repr(failure.value))
    raise AssertionError
