"""Builds the package as `make dist` does, and runs programs outside of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documents import ROOT

PACKAGES = ("actors", "spark_replay", "stores")
MODULES = ("faust_actors_java.py", "pytest_faust_actors.py")
_EPOCH_S = 1_700_000_000
_SOURCES = (*PACKAGES, *MODULES, "Makefile", "LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.py")


def run(*words: object, cwd: Path, code: int = 0, **environment: str) -> str:
    """Run a program outside of the checkout; return what it printed."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**clean, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def copy_sources(folder: Path) -> Path:
    """Copy what the package is built from, as it is in the checkout now."""
    source = folder / "source"
    for name in run("git", "ls-files", *_SOURCES, cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source


def make(source: Path, target: str, *, epoch_s: int = _EPOCH_S) -> Path:
    """Run a target of the Makefile in a copy, with this Python's environment as it is; return the folder `dist`."""
    ready = Path(sys.prefix) / ".ready"
    run("make", "-o", ready, f"VENV={sys.prefix}", f"SOURCE_DATE_EPOCH={epoch_s}", target, cwd=source)
    return source / "dist"


def build(folder: Path) -> Path:
    """Build an sdist and from it a wheel; return the wheel."""
    [wheel] = make(copy_sources(folder), "packages").glob("*.whl")
    return wheel
