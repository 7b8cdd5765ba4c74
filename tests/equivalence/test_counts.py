"""The documents say how many cases the quick tests run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEAST = 500


def test_the_documents_say_how_many_cases_there_are() -> None:
    """All parts of the suite count."""
    names = sorted(path.stem for path in HERE.glob("test_*equivalence.py"))
    cases = sum(import_module(f"tests.equivalence.{name}").CASES for name in names)
    assert cases >= LEAST
    assert f"`make test` runs {cases} cases" in (ROOT / "docs/explanation/equivalence.md").read_text()
    assert f"| {cases} cases, every planted mistake" in (ROOT / "CONTRIBUTING.md").read_text()
