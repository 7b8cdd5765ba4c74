"""Builds the site of this version, strictly: a broken link, an anchor without a heading or a forgotten page fails.

    python -m dev.site              into the folder `site`
    python -m http.server -d site   to look at it

`site` has a folder for each minor version (`1.0`), `versions.json`, from which pages fill their list of versions, and a
page that leads to the newest one. Folders of other versions stay, so a host that keeps `site` keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from dev.site.layout import ROOT

_FORWARD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>faust-actors</title>
<meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">faust-actors {newest}</a></html>
"""


def main() -> int:
    """Build the site, and return mkdocs' exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.site", description="Build the documentation site.")
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="the folder of all versions (default: site)")
    to = parser.parse_args().to.resolve()
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    minor = re.match(r"\d+\.\d+", release)
    if minor is None:
        print(f"pyproject.toml: version {release!r} doesn't begin with two numbers: write it as 1.2.3")
        return 2
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to / minor[0])]
    # Otherwise the theme prints a notice about other tools with each build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code == 0:
        list_versions(to)
        print(f"{to / 'index.html'}: built")
    return code


def list_versions(to: Path) -> None:
    """Write the list of the versions whose folders are there, the newest first, and the page that leads to that one."""
    found = [path.name for path in to.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    found.sort(key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    listed = [{"version": version, "title": version, "aliases": []} for version in found]
    (to / "versions.json").write_text(json.dumps(listed))
    (to / "index.html").write_text(_FORWARD.format(newest=found[0]))


if __name__ == "__main__":
    sys.exit(main())
