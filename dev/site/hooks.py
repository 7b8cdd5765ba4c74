"""Functions that mkdocs calls while it builds the site."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from dev.site.layout import ROOT, moved, navigation, outside

_DRAWING = re.compile(r"^!\[(?P<text>[^]]*)\]\((?P<path>[^)\s]+\.svg)\)$", re.MULTILINE)
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_JOINT = re.compile(r"[_./](?=\w)")


def on_config(config: Any) -> Any:
    """Take the navigation from the index page."""
    config.nav = navigation()
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files outside of `docs` that pages link to."""
    for uri, path in outside().items():
        if path.suffix == ".py":
            name = path.relative_to(ROOT).as_posix()
            code = f"# {name}\n\n````python\n{path.read_text()}````\n"
            files.append(File.generated(config, uri, content=code))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let links lead to places of the site, and put drawings into the page, where they have its colours."""
    del config, files
    source = outside().get(page.file.src_uri, ROOT / "docs" / page.file.src_uri)

    def drawn(image: re.Match[str]) -> str:
        return drawing((source.parent / image["path"]).resolve(), image["text"])

    return moved(source, _DRAWING.sub(drawn, markdown))


def on_page_content(text: str, *, page: Any, config: Any, files: Files) -> str:
    """Let names in tables be broken between their words, so that a table fits on a phone."""
    del page, config, files
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _JOINT.sub(r"\g<0><wbr>", code[0]), cell[0]), text)


def drawing(file: Path, text: str) -> str:
    """Return an SVG file as a figure of a page, with a description for those who can't see it."""
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    label = f'<svg role="img" aria-label="{html.escape(text, quote=True)}" '
    return f'<figure class="drawing">{"".join(lines).replace("<svg ", label, 1)}</figure>'
