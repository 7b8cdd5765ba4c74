"""The database of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev import postgres as postgresql
from dev.parts import PartError
from tests.formats.changes import make_database


def test_a_database_takes_statements_and_decodes_its_log(postgres: str) -> None:
    database = make_database(postgres)
    postgresql.run_sql(database, "create table numbers (n int, word text)")
    assert postgresql.run_sql(database, "insert into numbers values (1, 'a,b') returning n, word") == '1,"a,b"\n'
    assert postgresql.run_sql(database, "show wal_level") == "logical\n"
    with pytest.raises(PartError, match='relation "nothing" does not exist'):
        postgresql.run_sql(database, "select * from nothing")


@pytest.mark.nightly
def test_a_killed_database_comes_back_with_its_address_and_rows(postgres: str, tmp_path: Path) -> None:
    with postgresql.up(tmp_path / "postgres") as started:
        postgresql.run_sql(started.address, "create table numbers (n int)", "insert into numbers values (1)")
        started.kill()
        again = postgresql.up(tmp_path / "postgres")
        assert again.address == started.address
        assert postgresql.run_sql(again.address, "select n from numbers") == "1\n"
    assert not again.process.running()
    assert not (tmp_path / "postgres").exists()
