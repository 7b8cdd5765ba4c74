"""Which app a folder has."""

from __future__ import annotations

import click
import pytest

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
