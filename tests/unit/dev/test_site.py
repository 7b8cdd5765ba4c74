"""Where pages stand on the documentation site; `tests/browser/test_site.py` builds it."""

from __future__ import annotations

from pathlib import Path

from dev.site.layout import INDEX, ROOT, linked, moved, navigation, outside, uri_of


def entries() -> dict[str, str]:
    """The place of each page of the navigation, with its title."""
    found = {}
    for section in navigation():
        for title, below in section.items():
            pages = [{title: below}] if isinstance(below, str) else below
            found |= {uri: name for page in pages for name, uri in page.items()}
    return found


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert pages - entries().keys() == set()


def test_titles_are_those_of_the_index() -> None:
    found = entries()
    assert found["README.md"] == "Home"
    assert found["how-to/local-broker.md"] == "Local broker"
    assert found["reference/api/spark_replay.md"] == "spark_replay"
    assert found["repository/examples/run_commands.md"] == "run_commands"
    assert found["reference/stability.md"] == "Stability"
    assert found["how-to/upgrades.md"] == "Upgrades"
    assert found["design/0001-formats.md"] == "Formats"


def test_files_outside_of_docs_have_a_place_on_the_site() -> None:
    assert uri_of(ROOT / "docs" / "ops" / "alerts.yaml") == "ops/alerts.yaml"
    found = outside()
    assert found["repository/CHANGELOG.md"] == ROOT / "CHANGELOG.md"
    assert found["repository/examples/run_commands.md"] == ROOT / "examples" / "run_commands.py"
    # README links to it, and a page to README.
    assert found["repository/LICENSE"] == ROOT / "LICENSE"


def test_links_are_moved_and_code_is_not() -> None:
    page = ROOT / "docs" / "reference" / "windows.md"
    same = "[a](actors.md#ask) [b](#kinds) [c](https://example.org) `x](y)`\n```\n[d](../../LICENSE)\n```\n"
    assert moved(page, same) == same
    assert moved(page, "[e](../../examples/click_sessions.py#L3)") == "[e](../repository/examples/click_sessions.md#L3)"
    assert moved(ROOT / "README.md", "![d](docs/dashboard.png)") == "![d](../dashboard.png)"
    assert moved(ROOT / "README.md", "[s](docs/reference/settings.md)") == "[s](../reference/settings.md)"


def test_a_link_to_no_file_is_left_for_the_strict_build() -> None:
    page = Path(INDEX)
    assert moved(page, "[a](nowhere.md) [b](../../../etc/passwd)") == "[a](nowhere.md) [b](../../../etc/passwd)"
    assert list(linked(page, "[a](nowhere.md)")) == []
