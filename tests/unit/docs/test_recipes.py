"""The code of docs/how-to/recipes.md runs as it stands there, each block for itself."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from actors.testing import ActorTestDriver
from tests.unit.coordination.test_coordination import an_app
from tests.unit.coordination.test_coordination_client import client, run

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "recipes.md"
BLOCKS = re.findall(r"\*\*([^*]+)\*\*[^*]*?\n\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_recipes():
    assert len(BLOCKS) == PAGE.read_text().count("```python") == 11


@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_it_does_what_it_says(title, code):
    names: dict = {}
    exec(compile("async def recipe(coordination):\n" + textwrap.indent(code, "    "), title, "exec"), names)
    with ActorTestDriver(an_app(), partitions=2) as driver:
        run(driver, lambda: names["recipe"](client(driver)))
