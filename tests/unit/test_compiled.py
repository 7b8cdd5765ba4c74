"""The modules that a wheel may have compiled have nothing that mypyc compiles to something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

import actors
from tests.documents import ROOT

SETUP = ast.parse((ROOT / "setup.py").read_text())
[COMPILED] = (
    ast.literal_eval(node.value)
    for node in SETUP.body
    if isinstance(node, ast.Assign) and node.targets[0].id == "COMPILED"
)


def differences(source: str) -> Iterator[str]:
    """Return what mypyc changes the meaning of."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield f"line {node.lineno}: the keywords of class {node.name} are dropped"
        if isinstance(node, ast.Return) and isinstance(node.value, ast.GeneratorExp):
            yield f"line {node.lineno}: the generator is evaluated at once"
        if isinstance(node, ast.Raise) and node.cause is not None and "caused(" not in ast.unparse(node):
            yield f"line {node.lineno}: the error is raised without its cause"
        if isinstance(node, ast.ExceptHandler):
            awaited = [inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Await)]
            again = [inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Raise) and inner.exc is None]
            if awaited and again and max(again) > min(awaited):
                yield f"line {max(again)}: behind an await, another error may be raised again"


@pytest.mark.parametrize("path", COMPILED)
def test_a_compiled_module_means_the_same(path: str) -> None:
    assert not list(differences((ROOT / path).read_text()))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            "async def work(it):\n    try:\n        pass\n    except OSError:\n        await it.end()\n        raise",
            "line 6: behind an await",
        ),
        ("class Row(Struct, array_like=True):\n    at_ms: int", "keywords of class Row"),
        ("def rows():\n    return (row for row in ())", "evaluated at once"),
        ("raise ValueError from error", "without its cause"),
    ],
)
def test_differences_are_found(source: str, what: str) -> None:
    [difference] = differences(source)
    assert what in difference


def test_a_program_can_subclass_each_public_class() -> None:
    public = {(getattr(getattr(actors, name), "__module__", ""), name) for name in actors.__all__}
    closed = {
        node.name
        for path in COMPILED
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.ClassDef) and (path[:-3].replace("/", "."), node.name) in public
        if "NamedTuple" not in map(ast.unparse, node.bases)
        if not any("allow_interpreted_subclasses" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    assert not closed
