"""`faust init`: each template is a project whose tests pass at once, and what can't be made is refused in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from actors.cli import cli
from actors.cli.init import scaffold
from actors.cli.init.scaffold import MAX_NAME_CHARACTERS, TEMPLATES
from tests.documents import ROOT

FILES = {
    ".dockerignore",
    ".github/workflows/test.yml",
    ".gitignore",
    "Dockerfile",
    "README.md",
    "compose.yaml",
    "my_shop.py",
    "pyproject.toml",
    "test_my_shop.py",
}


def init(folder: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(cli, ["init", *words])


@pytest.fixture(params=TEMPLATES)
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    done = init(tmp_path, "my-shop", "--template", request.param, monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    return tmp_path / "my-shop"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_templates_are_those_that_are_there() -> None:
    folders = Path(scaffold.__file__).with_name("templates").iterdir()
    assert {folder.name for folder in folders} == {"project", *TEMPLATES}


@pytest.mark.parametrize(
    "project",
    ["window", *(pytest.param(name, marks=pytest.mark.nightly) for name in TEMPLATES if name != "window")],
    indirect=True,
)
def test_the_tests_of_a_project_pass_and_fail_with_its_app(project: Path) -> None:
    done = python(project, "-W", "error", "-m", "unittest")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Ran [1-9]\d* tests?", done.stderr)
    app = project / "my_shop.py"
    app.write_text(app.read_text().replace("ctx.send(", "str("))
    assert python(project, "-m", "unittest").returncode == 1


def test_a_project_is_complete_and_follows_the_rules_of_this_one(project: Path) -> None:
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert files == FILES
    for name in files:
        text = (project / name).read_text()
        assert not re.search(r"@[a-z]+@", text), f"{name} has a word that isn't replaced"
        assert text.endswith("\n")
    ruff = ("-m", "ruff")
    rules = ("--isolated", "--no-cache", "--line-length", "120", "--target-version", "py311")
    select = ("--select", "E,F,W,I,N,UP,B,C4,ANN,RUF,SIM")
    for words in (("check", *rules, *select), ("format", "--check", *rules)):
        done = python(project, *ruff, *words, ".")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_of_a_project_fit_together(project: Path) -> None:
    package = tomllib.loads((project / "pyproject.toml").read_text())
    assert package["project"]["name"] == "my-shop"
    assert package["tool"]["setuptools"]["py-modules"] == ["my_shop"]
    [requirement] = package["project"]["dependencies"]
    assert re.fullmatch(r"faust-actors>=\d[\w.]*,<\d+", requirement)

    declared = set(re.findall(r'app\.topic\("(.+?)"', (project / "my_shop.py").read_text()))
    compose = yaml.safe_load((project / "compose.yaml").read_text())
    [made] = re.findall(r"for topic in (.+?);", compose["services"]["topics"]["command"][0])
    assert set(made.split()) == declared
    sent = re.findall(r"faust -A my_shop send (\S+)", (project / "README.md").read_text())
    assert sent
    assert set(sent) <= declared

    workflow = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "python -m unittest"}
    install = "pip install --find-links . ."
    assert {"run": install} in workflow["jobs"]["test"]["steps"]
    assert install.replace("install", "install --no-cache-dir") in (project / "Dockerfile").read_text()
    assert install in (project / "README.md").read_text()
    kept = (project / ".dockerignore").read_text().splitlines()
    for name in re.findall(r"^COPY (.+) \./$", (project / "Dockerfile").read_text(), re.MULTILINE)[0].split():
        assert f"!{name}" in kept


def test_an_empty_folder_is_used_and_another_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-shop").mkdir()
    assert init(tmp_path, "my-shop", monkeypatch=monkeypatch).exit_code == 0
    (tmp_path / "my-shop" / "my_shop.py").write_text("mine")
    again = init(tmp_path, "my-shop", "--template", "join", monkeypatch=monkeypatch)
    assert again.exit_code == 1
    assert len(again.output.splitlines()) == 1
    assert f"{tmp_path / 'my-shop'} exists and isn't an empty folder" in again.output
    assert (tmp_path / "my-shop" / "my_shop.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["my-shop"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "there").mkdir()
    if kind == "file":
        (tmp_path / "my-shop").touch()
    else:
        (tmp_path / "my-shop").symlink_to(tmp_path / ("there" if kind == "link" else "nowhere"))
    done = init(tmp_path, "my-shop", monkeypatch=monkeypatch)
    assert done.exit_code == 1
    assert "exists and isn't an empty folder: choose another name" in done.output
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "a" * (MAX_NAME_CHARACTERS + 1),
        "",
        ".",
        "..",
        "../shop",
        "a/b",
        "/tmp/shop",
        "Shop",
        "1shop",
        "-shop",
        "shop-",
        "shop--a",
        "my shop",
        "shöp",
        "shop\n",
        "class",
    ],
)
def test_a_bad_name_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    done = init(tmp_path, "--", name, monkeypatch=monkeypatch)
    assert done.exit_code == 1, done.output
    [line] = done.output.splitlines()
    assert "can't be a project's name: use lower-case letters" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "faust", "actors", "spark-replay", "asyncio", "test"])
def test_a_module_that_would_hide_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    done = init(tmp_path, name, monkeypatch=monkeypatch)
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert f"{name.replace('-', '_')}.py would hide the module" in line
    assert f"such as {name}-app" in line
    assert list(tmp_path.iterdir()) == []


def test_a_template_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = init(tmp_path, "my-shop", "--template", "joins", monkeypatch=monkeypatch)
    assert done.exit_code == 2
    assert all(template in done.output for template in TEMPLATES)


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = init(tmp_path, "my-shop", monkeypatch=monkeypatch)
    assert done.exit_code == 1
    assert "No space left on device" in done.output
    assert list(tmp_path.iterdir()) == []
