"""What the tests with real workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.kafka import Cluster, Secure
from tests.certificates import Authority
from tests.kafka.acls import AUTHORIZER
from tests.kafka.helpers import WorkerProcess

USER, RESTRICTED, PASSWORD = "alice", "bob", "alice-secret-0123"
EXACT = ("plain", "all", "once", "maker")
"""Users that are allowed exactly what an app needs, each for one test."""


@pytest.fixture(scope="session")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Authority]]:
    """A broker with TLS, SASL and an authorizer. It allows everything to the plain listener and to `USER`, and nothing
    to `RESTRICTED` and `EXACT` but what a test allows.
    """
    authority = Authority(tmp_path_factory.mktemp("authority"))
    secure = Secure(str(authority.keystore("broker")), dict.fromkeys((USER, RESTRICTED, *EXACT), PASSWORD))
    authorizer = {"authorizer.class.name": AUTHORIZER, "super.users": f"User:ANONYMOUS;User:{USER}"}
    folder = tmp_path_factory.mktemp("secure-kafka")
    with Cluster.up(folder, secure=secure, overrides=authorizer) as running:
        yield running, authority


@pytest.fixture(autouse=True)
def _workers_end() -> Iterator[None]:
    """Workers end with the test that started them; those of fixtures that tests share are older than this one."""
    count = WorkerProcess.count_started()
    yield
    WorkerProcess.kill_since(count)


@pytest.fixture
def workers() -> list[WorkerProcess]:
    """The workers that a test's helpers start and look at."""
    return []
