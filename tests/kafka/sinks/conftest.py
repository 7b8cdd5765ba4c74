"""A database of these tests' own, which they kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev import postgres as postgresql
from dev.parts import Part, PartError


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """A database server; tests make databases of their own in it."""
    try:
        postgresql.programs()
    except PartError as error:
        pytest.skip(str(error))
    with postgresql.up(tmp_path_factory.mktemp("sinks") / "postgres") as part:
        yield part
