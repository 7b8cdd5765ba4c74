"""A schema registry, a database, and Kafka Connect with Debezium, which all processes of a session share.

They start when a test needs them; `pytest_unconfigure` in `tests/conftest.py` ends them.
"""

from __future__ import annotations

import pytest

from dev import connect as kafka_connect
from dev import postgres as postgresql
from dev import registry as apicurio
from dev.parts import Part, PartError
from tests.parts import CONNECT, POSTGRES, REGISTRY, shared_folder


@pytest.fixture(scope="session")
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a registry's Confluent API. A test's subjects have names of their own."""
    return apicurio.up(shared_folder(request.config, tmp_path_factory) / REGISTRY).address


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a database with logical replication. A test's databases are made by `make_database`."""
    try:
        postgresql.programs()
    except PartError as error:
        pytest.skip(str(error))
    return postgresql.up(shared_folder(request.config, tmp_path_factory) / POSTGRES).address


@pytest.fixture(scope="session")
def debezium(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, brokers: str, postgres: str
) -> Part:
    """Kafka Connect with Debezium; a test's connector is made by `following`."""
    return kafka_connect.up(shared_folder(request.config, tmp_path_factory) / CONNECT, brokers)
