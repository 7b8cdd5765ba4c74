"""The check of sizes and names finds what is planted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev import tidy


@pytest.fixture(autouse=True)
def no_larger_folders(monkeypatch):
    monkeypatch.setattr(tidy, "LARGER_FOLDERS", {})


def modules(folder, count):
    return [Path(folder, name) for name in ("__init__.py", *(f"module_{number}.py" for number in range(count)))]


def test_a_folder_with_too_many_modules_is_found_and_its_rooms_do_not_count():
    full = modules("actors/web", tidy.MAX_MODULES)
    rooms = [path for room in "ab" for path in modules(f"actors/web/{room}", 5)]
    assert list(tidy.look_at_folders(full + rooms)) == []
    found = list(tidy.look_at_folders([*full, *rooms, Path("actors/web/one_more.py")]))
    assert [finding.split(",")[0] for finding in found] == ["actors/web: 13 modules"]
    assert list(tidy.look_at_folders(modules("tests/unit", 40))) == []


@pytest.mark.parametrize("name", ["utils", "helpers", "Camel", "one_two_three_four"])
def test_a_name_that_does_not_say_what_is_in_the_module_is_found(name):
    assert len(list(tidy.look_at_folders([Path("stores", f"{name}.py")]))) == 1
    assert list(tidy.look_at_folders([Path("tests", f"{name}.py"), Path("stores/rocks_options.py")])) == []


def test_a_limit_that_is_not_needed_any_more_is_found(monkeypatch):
    monkeypatch.setattr(tidy, "LARGER_FOLDERS", {"actors/cli": 30})
    assert list(tidy.look_at_folders(modules("actors/cli", 20))) == []
    assert len(list(tidy.look_at_folders(modules("actors/cli", 12)))) == 1


def test_a_long_function_and_a_long_file_are_found():
    body = "    pass\n" * tidy.MAX_FUNCTION_LINES
    assert list(tidy._look_at_code(Path("actors/one.py"), "def short():\n" + body[: -len("    pass\n")])) == []
    assert len(list(tidy._look_at_code(Path("actors/one.py"), "def long():\n" + body))) == 1
    assert len(list(tidy._look_at_code(Path("actors/one.py"), "pass\n" * (tidy.MAX_FILE_LINES + 1)))) == 1


@pytest.mark.parametrize("text", ["f'{error}'", "f'{error!r}'", "str(error)", "repr(error)", "f'{error or 1}'"])
def test_a_text_of_any_error_that_may_raise_is_found(text):
    code = "try:\n    pass\nexcept {} as error:\n    print({})\n"
    assert len(list(tidy._look_at_code(Path("actors/one.py"), code.format("Exception", text)))) == 1
    assert len(list(tidy._look_at_code(Path("actors/one.py"), code.format("BaseException", text)))) == 1
    assert list(tidy._look_at_code(Path("actors/one.py"), code.format("OSError", text))) == []
    assert (
        list(tidy._look_at_code(Path("actors/one.py"), code.format("Exception", "f'{type(error)} {text_of(error)}'")))
        == []
    )


@pytest.mark.parametrize(
    ("line", "count"), [("# --- reads ---", 1), ("    #=====", 1), ("# a comment - it says why", 0)]
)
def test_a_banner_is_found(line, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stores").mkdir()
    Path("stores/rows.py").write_text(f"{line}\n")
    assert len(list(tidy._look_at(Path("stores/rows.py")))) == count


def test_participles_are_counted_where_they_are_bound() -> None:
    text = "found = read(one)\nfor one in found:\n    print(one, [held for held, mark in one], known.since)\n"
    assert tidy.count_participles(text) == 3
    assert tidy.count_participles("marks = read(found=1)\nrow.held = 2\n") == 0


def test_docstrings_that_begin_with_neither_a_verb_nor_a_noun_are_counted() -> None:
    text = '"""What a mark is."""\nclass Mark:\n    """{} a commit has."""\n    at: int\n    """Whether it is."""\n'
    assert tidy.count_vague_docstrings(text.format("Gives what")) == 3
    assert tidy.count_vague_docstrings(text.format("Fields that")) == 2
    assert tidy.count_vague_docstrings('print("What")\n"""Given marks."""\n') == 0


@pytest.mark.parametrize(
    ("look", "limit", "text", "number", "says"),
    [
        (tidy.look_at_locals, "MAX_PARTICIPLES", "found = given = 1\n", 2, "2 locals are named"),
        (tidy.look_at_docstrings, "MAX_VAGUE_DOCSTRINGS", '"""See below."""\n', 1, "1 docstrings begin"),
    ],
)
def test_a_number_that_only_falls_is_exact(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[list[Path]], Iterator[str]],
    limit: str,
    text: str,
    number: int,
    says: str,
) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    for former, words in ((number - 1, says), (number + 1, f"falls to {number}")):
        monkeypatch.setattr(tidy, limit, former)
        [finding] = look([file])
        assert words in finding
    monkeypatch.setattr(tidy, limit, number)
    assert list(look([file])) == []
