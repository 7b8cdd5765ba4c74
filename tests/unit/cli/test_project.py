"""Which app a folder has."""

from __future__ import annotations

import sys

import click
import pytest
from click.testing import CliRunner
from faust.cli.faust import cli

from actors.cli.project import find_app_module

APP = 'app = App("shop", broker="kafka://127.0.0.1:9092")\n'


def test_the_only_module_that_makes_an_app_is_found_though_it_has_a_syntax_error(tmp_path):
    (tmp_path / "shop.py").write_text(f"import actors\n\n{APP.replace('App(', 'actors.App(')}\ndef (\n")
    (tmp_path / "test_shop.py").write_text("from shop import app\n\nother = App()\n# app = App()\n")
    (tmp_path / "not-a-module.py").write_text(APP)
    assert find_app_module(tmp_path) == "shop"


@pytest.mark.parametrize(("count", "said"), [(0, "no app in"), (2, r"2 modules of .* \(app0, app1\)")])
def test_none_and_several_are_refused(tmp_path, count, said):
    for number in range(count):
        (tmp_path / f"app{number}.py").write_text(APP)
    with pytest.raises(click.UsageError, match=f"{said}.*-A"):
        find_app_module(tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which a command is called; what it imports is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def called(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", argv := ["faust", *arguments])
    # Faust's group reads the arguments of its module's import.
    monkeypatch.setattr(type(cli)._maybe_import_app, "__defaults__", (argv,))
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "import actors\nraise KeyError('TOKEN')\n",
            "bad_shop.py:2: KeyError: 'TOKEN'",
        ),
        ("import actors\napp = actors.App(\n", "bad_shop.py:2: SyntaxError: '(' was never closed"),
        ("import bad_helper\n", "bad_helper.py:3: ZeroDivisionError: division by zero"),
        ("import no_such_module\n", "bad_shop.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('a\\nb\\x1b[1m')\n", "bad_shop.py:1: ValueError: Cannot import 'bad_shop': a b\\x1b[1m"),
        ("other = 1\n", "-A bad_shop: AttributeError: module 'bad_shop' has no attribute 'app'. Name"),
        (
            "import actors\nactors.App('shop', brokr='x')\n",
            "bad_shop.py:2: App(…): there is no setting 'brokr'",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "worker", "agents", "dev"])
def test_an_app_that_can_not_be_imported_is_one_line(folder, monkeypatch, command, text, line):
    (folder / "bad_shop.py").write_text(text)
    (folder / "bad_helper.py").write_text("def half():\n    ...\n1 / 0\n")
    done = called(monkeypatch, "-A", "bad_shop", command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert line in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_a_folders_app_that_can_not_be_imported_is_one_line(folder, monkeypatch):
    (folder / "bad_shop.py").write_text(f"{APP}raise KeyError('TOKEN')\n")
    done = called(monkeypatch, "plan")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "bad_shop.py:1: NameError: name 'App' is not defined" in done.stderr


def test_a_module_that_is_not_there_is_named(folder, monkeypatch):
    done = called(monkeypatch, "-A", "no_such_shop", "plan")
    assert "-A no_such_shop: ModuleNotFoundError: No module named 'no_such_shop'. Name the app's module" in done.stderr
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback(folder, monkeypatch):
    (folder / "bad_shop.py").write_text("raise KeyError('TOKEN')\n")
    done = called(monkeypatch, "-A", "bad_shop", "--debug", "plan")
    assert isinstance(done.exception, KeyError)
