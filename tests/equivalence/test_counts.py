"""The documents say how many cases the quick tests run."""

from __future__ import annotations

from pathlib import Path

from tests.equivalence import (
    test_equivalence,
    test_every_equivalence,
    test_foreign_equivalence,
    test_join_equivalence,
    test_table_equivalence,
    test_view_equivalence,
)

ROOT = Path(__file__).parents[2]
LEAST = 500
PARTS = (
    test_equivalence,
    test_every_equivalence,
    test_foreign_equivalence,
    test_join_equivalence,
    test_table_equivalence,
    test_view_equivalence,
)


def test_the_documents_say_how_many_cases_there_are() -> None:
    """All parts of the suite count."""
    modules = {path.stem for path in Path(__file__).parent.glob("test_*equivalence.py")}
    assert {part.__name__.rpartition(".")[2] for part in PARTS} == modules
    cases = sum(part.CASES for part in PARTS)
    assert cases >= LEAST
    assert f"`make test` runs {cases} cases" in (ROOT / "docs/explanation/equivalence.md").read_text()
    assert f"| {cases} cases, every planted mistake" in (ROOT / "CONTRIBUTING.md").read_text()
