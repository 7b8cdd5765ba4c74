"""`faust state export` where Parquet can't be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.cli import cli


def test_an_export_without_pyarrow_names_the_extra_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ["-A", "tests.unit.cli.tables_app", "state", "export", "customers", "--to", str(tmp_path / "to")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert "store customers can't be exported" in line
    assert "pip install 'faust-actors[parquet]'" in line
    assert not (tmp_path / "to").exists()
