"""The page on programs with windows and joins shows the code of the examples, which have tests of their own."""

from __future__ import annotations

import pytest

from tests.documents import ROOT, block, blocks_of

PAGE = "docs/how-to/windows-and-joins.md"
PROGRAMS = {
    "Sales per minute": "sales_per_minute",
    "Sessions of clicks": "click_sessions",
    "Orders with payments": "unpaid_orders",
    "Orders with customers": "enriched_orders",
    "Failed logins": "failed_logins",
}


@pytest.mark.parametrize(("title", "example"), PROGRAMS.items())
def test_a_block_is_the_code_of_its_example(title: str, example: str) -> None:
    code = block(PAGE, title).code
    assert (ROOT / "examples" / f"{example}.py").read_text().endswith(code)
    assert "async def" in code
    assert f"](../../examples/{example}.py)" in (ROOT / PAGE).read_text()


def test_there_are_no_other_blocks() -> None:
    assert {one.label for one in blocks_of(PAGE)} == {f"{PAGE}#{title}" for title in PROGRAMS}
