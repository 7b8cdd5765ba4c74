"""Each public name has a docstring and is in the API reference once; the examples of docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from typing import Any

import pytest

from tests.documents import ROOT, Block
from tests.unit.docs.test_blocks import BLOCKS, RUNS, checks_names

MODULES = (
    "actors",
    "actors.client",
    "actors.coordination",
    "actors.formats",
    "actors.sinks",
    "actors.testing",
    "spark_replay",
)
PAGES = ROOT / "docs" / "reference" / "api"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
SHOWN_BY_OTHERS = {
    "AnswerLater": "docs/reference/actors.md#answers-that-come-later",
    "PendingEffect": "docs/reference/timers-and-effects.md#effects-outside-kafka",
    **dict.fromkeys(("ListRows", "ListStore", "MapRows", "MapStore", "SetRows", "SetStore"), "docs/how-to/rows.md"),
    "ParkedHere": "a result of ActorTestDriver",
    "Record": "what a batch has",
    "Sent": "a result of ActorTestDriver",
    "Unknown": "docs/reference/timers-and-effects.md#calls-that-may-not-be-repeated",
}
"""What has no example of its own, with the place that shows it."""


def names() -> list[tuple[str, str]]:
    return [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]


def listed() -> list[str]:
    return [name for page in sorted(PAGES.glob("*.md")) for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


def own_docstring(found: Any) -> str | None:
    """The docstring of a class or function itself, not that of a base class nor one that Python made."""
    text = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    return None if text is None or text.startswith(f"{getattr(found, '__name__', '')}(") else text


def examples_of(module: str, name: str) -> list[doctest.DocTest]:
    """The examples in the docstrings of a name, and of its public members if it is a class."""
    found = getattr(importlib.import_module(module), name)
    members = vars(found).items() if isinstance(found, type) else ()
    documented = [(name, found), *((f"{name}.{one}", it) for one, it in members if not one.startswith("_"))]
    parsed = [
        parse(f"{module}.{title}", inspect.getdoc(one), vars(inspect.getmodule(found))) for title, one in documented
    ]
    return [one for one in parsed if one.examples]


def parse(title: str, text: str | None, names: dict[str, Any]) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text or "", dict(names), title, title, 0)


def failures(example: doctest.DocTest) -> str:
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    return "".join(said)


@pytest.mark.parametrize(("module", "name"), names())
def test_a_public_name_has_a_docstring(module: str, name: str) -> None:
    assert own_docstring(getattr(importlib.import_module(module), name))


def test_each_public_name_is_in_the_reference_once() -> None:
    assert sorted(listed()) == sorted([*(f"{module}.{name}" for module, name in names()), "stores.ports"])


def with_examples() -> list[tuple[str, str]]:
    return [(module, name) for module, name in names() if examples_of(module, name)]


@pytest.mark.parametrize(("module", "name"), with_examples())
def test_examples_run(module: str, name: str) -> None:
    for example in examples_of(module, name):
        assert failures(example) == ""


def test_the_example_of_the_package_runs() -> None:
    import actors

    example = parse("actors", actors.__doc__, {})
    assert example.examples
    assert failures(example) == ""


def used_in(block: Block) -> set[tuple[str, str]]:
    """The public names that a block imports and uses, or uses as attributes of their module."""
    # a decorator stands alone where the page shows only how to write it
    is_cut = block.code.splitlines()[-1].startswith("@")
    tree = ast.parse(block.code + "def cut(): ..." * is_cut)
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return attributes | {found for name, found in imported.items() if name in loaded}


def shown_in_pages() -> set[tuple[str, str]]:
    """What blocks use that really run; of others only names and arguments are checked."""
    run = [one for one in BLOCKS if one.language == "python" and RUNS.get(one.label) is not checks_names]
    return {found for one in run for found in used_in(one)}


def test_every_public_name_has_an_example_that_runs() -> None:
    in_pages = shown_in_pages()
    public = [(module, name) for module, name in names() if not name.endswith("Error")]
    without = {name for module, name in public if not examples_of(module, name) and (module, name) not in in_pages}
    assert without == SHOWN_BY_OTHERS.keys()


def test_a_name_that_a_block_only_imports_is_not_shown() -> None:
    code = "import spark_replay\nfrom actors.client import Answer, Position\nx: Answer = spark_replay.kafka()\n"
    assert used_in(Block("page", "python", code, 1)) == {("actors.client", "Answer"), ("spark_replay", "kafka")}


def test_a_wrong_example_is_noticed() -> None:
    assert "Expected" in failures(parse("wrong", ">>> 1 + 1\n3\n", {}))
    assert "Traceback" in failures(parse("raises", ">>> 1 / 0\n", {}))


def test_a_name_without_a_docstring_of_its_own_is_noticed() -> None:
    class Base:
        """The base."""

    class Bare(Base):
        pass

    assert own_docstring(Base) == "The base."
    assert own_docstring(Bare) is None
