"""The wheel, built and installed into an empty environment outside of the checkout, without an extra.

The package comes with everything that it needs and nothing else, and says which extra is missing.
"""

from __future__ import annotations

import email
import json
import os
import re
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from actors.cli.init.scaffold import TEMPLATES
from tests.documents import ROOT
from tests.wheel.building import MODULES, PACKAGES, build, copy_sources, make, run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

EXTRAS = {"compression", "fastapi", "parquet", "spark", "tracing", "all"}
OPTIONAL = {"opentelemetry", "py4j", "pyarrow", "pyspark", "pytest"}
"""What the modules of an extra, and the fixtures of pytest, import."""
HEAVY = {"numpy", "pandas", "pyarrow", "pyspark"}
MAX_INSTALLED_MB = 120
"""Of an environment with pip, which is 17 of them."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import actors, spark_replay, stores
missing, files = {}, []
for package in (actors, spark_replay, stores):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("__main__"):
            continue
        try:
            files.append(importlib.import_module(module.name).__file__)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
print(json.dumps({"missing": missing, "files": files}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment are that has the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if not name.endswith("/")}
    tracked = run("git", "ls-files", *PACKAGES, *MODULES, cwd=ROOT).splitlines()
    ours = (*(f"{one}/" for one in PACKAGES), *MODULES)
    [info] = {name.partition("/")[0] for name in names if not name.startswith(ours)}
    assert {name for name in names if not name.startswith(info)} == {name for name in tracked if (ROOT / name).exists()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert f"{info}/licenses/LICENSE" in names


def test_the_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        [name] = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(content.read(name))
    assert (about["Name"], about["License-Expression"]) == ("faust-actors", "Apache-2.0")
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    assert set(about.get_all("Provides-Extra", ())) >= EXTRAS
    needed = [text for text in about.get_all("Requires-Dist", ()) if "extra ==" not in text]
    assert needed
    assert not any(text.startswith(tuple(HEAVY)) for text in needed)


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Also in a copy with other modes and times, as another checkout has them."""
    source = copy_sources(tmp_path)
    for path in source.rglob("*"):
        path.chmod(0o777 if os.access(path, os.X_OK) else 0o664)
    again = sorted(make(source, "packages").iterdir())
    former = sorted(wheel.parent.iterdir())
    assert [path.name for path in again] == [path.name for path in former]
    assert len(again) == 2
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in former]


def test_a_release_names_what_it_installs_and_the_licences(tmp_path: Path) -> None:
    dist = make(copy_sources(tmp_path), "dist")
    sbom = json.loads((dist / "sbom.cdx.json").read_text())
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", "faust-actors")
    listed = {canonicalize_name(one["name"]): one for one in sbom["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    assert needed <= listed.keys()
    assert not (HEAVY | {"pytest", "setuptools"}) & listed.keys()
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    others = {name: one["version"] for name, one in listed.items() if name != "faust-actors"}
    assert others == {name: pinned.get(name) for name in others}

    rows = re.findall(r"^\| (\S+) +\| (\S+) +\| (.+?) +\|", (dist / "licenses.md").read_text(), re.MULTILINE)
    licences = {canonicalize_name(name): licence for name, _, licence in rows if name != "Name"}
    assert licences.keys() >= needed | {"faust-actors"}
    assert listed.keys() <= licences.keys()
    assert [name for name, licence in licences.items() if licence.upper() in {"", "UNKNOWN"}] == []


def test_every_module_is_imported_without_an_extra_or_belongs_to_one(binaries: Path, tmp_path: Path) -> None:
    found = json.loads(run(binaries / "python", "-c", IMPORT_ALL, cwd=tmp_path))
    assert set(found["missing"].values()) <= OPTIONAL, found["missing"]
    assert "actors.testing.fixtures" in found["missing"], "the environment isn't empty"
    assert all(Path(name).is_relative_to(binaries.parent) for name in found["files"])
    typical = {
        "actors",
        "actors._faust.service",
        "actors.testing",
        "actors.coordination",
        "actors.client",
        "stores.rocks",
    }
    assert not typical & found["missing"].keys()


def test_an_installation_is_light(binaries: Path) -> None:
    packages = next((binaries.parent / "lib").glob("python*/site-packages"))
    assert not HEAVY & {path.name for path in packages.iterdir()}
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
    assert size / 1e6 < MAX_INSTALLED_MB


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_projects_types_are_complete(binaries: Path, tmp_path: Path, template: str) -> None:
    """As whoever has the wheel sees them, with nothing of the checkout."""
    run(binaries / "faust", "init", "my-shop", "--template", template, cwd=tmp_path)
    mypy = (sys.executable, "-m", "mypy", "--python-executable", binaries / "python", "--strict")
    folder = tmp_path / "my-shop"
    assert "no issues found in 2 source files" in run(*mypy, ".", cwd=folder)
    app = folder / "my_shop.py"
    app.write_text(app.read_text().replace("ctx: Context", "ctx: int"))
    run(*mypy, ".", cwd=folder, code=1)


@pytest.mark.parametrize("program", ["faust", "faust-actors"])
def test_a_project_is_made_and_its_tests_pass(binaries: Path, tmp_path: Path, program: str) -> None:
    for template in TEMPLATES if program == "faust" else TEMPLATES[:1]:
        name = f"my-{template}"
        run(binaries / program, "init", name, "--template", template, cwd=tmp_path)
        said = run(binaries / "python", "-W", "error", "-m", "unittest", cwd=tmp_path / name)
        assert "OK" in said
        listed = run(binaries / program, "-A", name.replace("-", "_"), "--help", cwd=tmp_path / name)
        assert {"actors", "init", "locks", "state", "worker"} <= set(listed.split())


def test_a_missing_extra_is_named_in_one_line(binaries: Path, tmp_path: Path) -> None:
    run(binaries / "faust", "init", "shop", cwd=tmp_path)
    project = tmp_path / "shop"
    said = run(binaries / "faust", "-A", "shop", "state", "export", "seen", "--to", "out", cwd=project, code=1)
    assert said.splitlines() == [
        "Error: store seen can't be exported to Parquet: pyarrow isn't installed. "
        "Install it with pip install 'faust-actors[parquet]'"
    ]
    (project / "shop.py").write_text((project / "shop.py").read_text().replace("App(", "App(tracing=True, id="))
    python = binaries / "python"
    said = run(
        python,
        "-c",
        "import shop; from actors._faust.setup import Setup; Setup(shop.app).check_settings()",
        cwd=project,
        code=1,
    )
    assert "pip install 'faust-actors[tracing]'" in said.splitlines()[-1]
    words = ("rebuild", "--brokers", "127.0.0.1:1", "--changelog", "a", "--to", "out")
    said = run(python, "-m", "spark_replay", *words, cwd=tmp_path, code=2)
    assert len(said.splitlines()) == 1
    assert "pip install 'faust-actors[spark]'" in said


def test_spark_replay_says_what_it_can(binaries: Path, tmp_path: Path) -> None:
    said = run(binaries / "python", "-m", "spark_replay", "--help", cwd=tmp_path)
    assert {"archive", "explain", "rebuild", "recompute", "snapshot", "validate"} <= set(said.split())
