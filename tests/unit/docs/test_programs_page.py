"""The page on programs with windows and joins shows the code of the examples, which have tests of their own."""

from __future__ import annotations

import pytest

from tests.documents import ROOT, Block, block, blocks_of

PROGRAMS = {
    "sales_per_minute": block("docs/how-to/windows-and-joins.md", "Sales per minute"),
    "click_sessions": block("docs/how-to/windows-and-joins.md", "Sessions of clicks"),
    "unpaid_orders": block("docs/how-to/windows-and-joins.md", "Orders with payments"),
    "enriched_orders": block("docs/how-to/windows-and-joins.md", "Orders with customers"),
    "top_pages": block("docs/how-to/windows-and-joins.md", "The most viewed pages"),
    "failed_logins": block("docs/how-to/windows-and-joins.md", "Failed logins"),
}
PAGE = "docs/how-to/windows-and-joins.md"


@pytest.mark.parametrize(("example", "shown"), PROGRAMS.items())
def test_a_block_is_the_code_of_its_example(example: str, shown: Block) -> None:
    assert (ROOT / "examples" / f"{example}.py").read_text().endswith(shown.code)
    assert "async def" in shown.code
    assert f"](../../examples/{example}.py)" in (ROOT / PAGE).read_text()


def test_there_are_no_other_blocks() -> None:
    assert [one.label for one in blocks_of(PAGE)] == [one.label for one in PROGRAMS.values()]
