"""What pages quote of logs and errors is what the code says: an operator searches for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.documents import ROOT

PAGES = (
    "start-errors",
    "stopped-partitions",
    "reset",
    "pause",
    "coordination",
    "logs",
    "snapshots",
    "replay",
    "local-broker",
)
GAP = "…"
"""Stands for a value, in the page and here in the code's texts."""
Run = tuple[str, ...]
RUN_WORDS = 3
FEWEST_RUNS = 2
"""Fewer words are too few to be found."""
SHARE = 0.5
"""Of the runs of words of a quote that the code has to have: a quote may show values that the code puts in."""
PUT_TOGETHER = {
    "[tool.faust-actors]: there is no setting",
    "environment: there is no setting",
    "was given more partitions than",
    "this worker has partitions of",
    "commit of APP:worker:w",
    "in answers with 503",
    "no manifest.json in",
}
"""Pieces that the code puts together from texts of few words."""


def _texts(path: Path) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[.\d]*[sdrgf]|\{[^}]*\}", GAP, node.value)


def runs(text: str) -> list[Run]:
    """Return each three words that follow each other; none of a shorter text."""
    words = re.findall(r"[\w'-]+", text)
    return [tuple(words[at : at + RUN_WORDS]) for at in range(len(words) - RUN_WORDS + 1)]


@cache
def texts_of_code() -> list[str]:
    paths = (path for root in ("actors", "stores", "spark_replay") for path in ROOT.glob(f"{root}/**/*.py"))
    return [text for path in paths for text in _texts(path)]


@cache
def runs_of_code() -> set[Run]:
    return {run for text in texts_of_code() for piece in text.split(GAP) for run in runs(piece)}


def places_in(text: str) -> list[tuple[str, str]]:
    """Return the page of the documentation, and the section or "", that a text refers to."""
    return [
        (one or other, section)
        for one, other, section in re.findall(r"""documentation's page (?:'([^']+)'|"([^"]+)")(?:, '([^']+)')?""", text)
    ]


def quoted(page: str) -> list[str]:
    """Return the pieces without values of the texts that a page's tables quote."""
    tables = re.findall(r"^\| (?:it says|message) \|.*\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [row.removeprefix("| ").split(" | ")[0] for table in tables for row in table.splitlines()]
    texts = (re.sub(r"\([^)]*\)", GAP, cell.replace("`", "")) for cell in cells)
    return [piece.strip(" .,:=") for text in texts for piece in re.split(r"…|; ", text)]


def is_of_code(piece: str) -> bool:
    """Tell whether the code says about this, as far as that can be told of so few words."""
    wanted = runs(piece)
    known = sum(run in runs_of_code() for run in wanted)
    return len(wanted) < FEWEST_RUNS or piece in PUT_TOGETHER or known >= SHARE * len(wanted)


def test_each_error_that_a_page_quotes_is_one_of_the_code() -> None:
    pieces = [piece for name in PAGES for piece in quoted((ROOT / f"docs/how-to/{name}.md").read_text())]
    assert [piece for piece in pieces if not is_of_code(piece)] == [], "correct the page, or the list"
    assert set(pieces) >= PUT_TOGETHER


def test_an_error_that_the_code_has_no_more_is_noticed() -> None:
    page = "| it says | what to do |\n|---|---|\n| topic … was eaten by `mice` (…); it's gone | … |\n"
    assert quoted(page) == ["topic", "was eaten by mice", "", "it's gone"]
    assert not is_of_code("was eaten by mice")
    assert not is_of_code("another process has its transactional id, or it was too slow")
    assert is_of_code("the end of an open transaction that holds back the group's offset")


def test_each_page_that_an_error_refers_to_is_there() -> None:
    texts = (path.read_text() for path in sorted(ROOT.glob("docs/*/*.md")))
    pages = [re.findall(r"^#+ (.+)$", text, re.MULTILINE) for text in texts]
    places = {place for text in texts_of_code() for place in places_in(text)}
    assert len(places) > FEWEST_RUNS
    for title, section in places:
        [headings] = [headings for headings in pages if re.fullmatch(rf"{re.escape(title)}(:.*)?", headings[0])]
        assert not section or section in headings, (title, section)


def test_a_reference_to_a_page_is_found() -> None:
    text = """the documentation's page 'Snapshots', 'A corrected state'; the documentation's page "A worker's start" """
    assert places_in(text) == [("Snapshots", "A corrected state"), ("A worker's start", "")]
