"""Where pages stand on the site: the navigation, and the files of the repository that pages link to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "README.md"
OUTSIDE = "repository"
"""The folder of the site for files outside of `docs`."""
_LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)\s#]*)(?P<anchor>#[^)\s]*)?(?=\))")
_NAMED = re.compile(r"(?<!!)\[(?P<name>[^]]+)\]\((?P<path>[^)\s#]+)\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_FOREIGN = ("http://", "https://", "mailto:")


def uri_of(path: Path) -> str:
    """Return where the site has a file of the repository, relative to the site's sources.

    A file of `docs` keeps its place. Markdown and Python from elsewhere are pages, any other file is copied.
    """
    docs = ROOT / "docs"
    if path.is_relative_to(docs):
        return path.relative_to(docs).as_posix()
    uri = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
    return f"{uri.removesuffix('.py')}.md" if path.suffix == ".py" else uri


def linked(page: Path, text: str) -> Iterator[Path]:
    """Yield the files of the repository that a page links to."""
    for part in _FENCED.split(text)[::2]:
        for link in _LINK.finditer(part):
            target = _target(page, link["path"])
            if target is not None:
                yield target


def moved(page: Path, text: str) -> str:
    """Return a page's text with its links to files as they are on the site; other links and code stay."""

    def replace(link: re.Match[str]) -> str:
        target = _target(page, link["path"])
        if target is None:
            return link[0]
        place = posixpath.relpath(uri_of(target), posixpath.dirname(uri_of(page)) or ".")
        return link["before"] + place + (link["anchor"] or "")

    parts = _FENCED.split(text)
    return "".join(part if number % 2 else _LINK.sub(replace, part) for number, part in enumerate(parts))


def _target(page: Path, path: str) -> Path | None:
    """Return the file that a link names; None for a link to the page itself, to another host or to no file."""
    if not path or path.startswith(_FOREIGN):
        return None
    target = (page.parent / path).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def outside() -> dict[str, Path]:
    """Return the files outside of `docs` that pages link to, directly or by another such page, by their place."""
    found: dict[str, Path] = {}
    waiting = sorted((ROOT / "docs").rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in linked(page, page.read_text()):
            uri = uri_of(target)
            if uri.startswith(f"{OUTSIDE}/") and uri not in found:
                found[uri] = target
                waiting += [target] if target.suffix == ".md" else []
    return found


def navigation() -> list[dict[str, object]]:
    """Return the navigation for mkdocs: the index page first, then a section for each of its headings.

    A section has the pages that the index links to below its heading, by the text of the link. So a page that is added
    to the index is in the navigation, and one that isn't fails a strict build.
    """
    sections: list[dict[str, object]] = [{"Home": "README.md"}]
    seen = {INDEX}
    for part in re.split(r"^## ", INDEX.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        entries = []
        for link in _NAMED.finditer(text):
            target = _target(INDEX, link["path"])
            if target is not None and target not in seen and target.suffix in {".md", ".py"}:
                seen.add(target)
                name, uri = link["name"], uri_of(target)
                is_code = target.suffix == ".py" or uri.startswith("reference/api/")
                entries.append({name if is_code else name[:1].upper() + name[1:]: uri})
        if entries:
            sections.append({title: entries})
    return sections
