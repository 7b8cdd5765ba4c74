"""Nobody but their owner can read files that hold state, whatever the umask; a folder with the setgid bit is shared."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replay.errors import TargetError
from spark_replay.report.html import write_page
from spark_replay.sources.folders import _link
from spark_replay.sources.staging import NEW, replacing
from stores._core.record import Position
from stores._files import make_folder
from stores.export import export_store
from stores.folder import DataFolder
from stores.rocks import RocksStore

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in [folder, *folder.rglob("*")]}


def make_data(path: Path) -> None:
    folder = DataFolder.open(path, app="shop")
    store = RocksStore.open(folder.store_path("counts", 0))
    store.apply([(b"key", b"\1" + bytes(24) + b"value")], Position(1, 2, 3, 4, "id"))
    store.close()
    folder.close()


def export(data: Path, to: Path) -> Path:
    about = {"changelog": "c", "placement": "key", "partition_count": 1, "worker": "w", "now_ms": 1}
    export_store(data, "counts", to, app="shop", **about)
    return to / "w"


def replace(to: Path) -> None:
    with replacing(to) as work:
        (work / NEW / "partition=0").mkdir(parents=True)
        (work / NEW / "partition=0" / "file.parquet").write_text("state")


def test_a_data_folder_is_closed_to_others(tmp_path):
    make_data(tmp_path / "new" / "actors")
    found = modes(tmp_path / "new" / "actors")
    assert [found[name] for name in (".", "stores", "stores/counts", "stores/counts/0")] == [0o700] * 4
    assert [found[name] for name in ("worker.json", "worker.lock")] == [0o600] * 2


def test_a_data_folder_of_an_older_release_is_closed_and_one_that_the_user_made_keeps_its_mode(tmp_path):
    (tmp_path / "data" / "stores").mkdir(parents=True, mode=0o755)
    make_data(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o777
    assert mode(tmp_path / "data" / "stores") == 0o700


def test_a_folder_with_the_setgid_bit_is_shared_with_its_group_as_far_as_the_umask_allows(tmp_path):
    tmp_path.chmod(0o2770)
    replace(tmp_path / "snapshot")
    write_page(tmp_path / "report.html", "<html>")
    assert modes(tmp_path / "snapshot") == {
        ".": 0o2770,
        "partition=0": 0o2770,
        "partition=0/file.parquet": 0o660,
    }
    os.umask(0o027)
    write_page(tmp_path / "other.html", "<html>")
    assert [mode(tmp_path / name) for name in ("report.html", "other.html")] == [0o660, 0o640]


def test_an_export_is_closed_also_where_an_older_one_was_open(tmp_path):
    make_data(tmp_path / "data")
    (tmp_path / "to" / "w").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("somebody's")
    (tmp_path / "to" / "w" / "partition-00000.parquet.tmp").symlink_to(victim)
    found = modes(export(tmp_path / "data", tmp_path / "to"))
    assert found == {".": 0o700, "partition-00000.parquet": 0o600, "manifest.json": 0o600}
    assert victim.read_text() == "somebody's"


def test_what_spark_wrote_is_closed_when_it_takes_its_place(tmp_path):
    with replacing(tmp_path / "to") as work:
        assert mode(tmp_path / ".to.work") == 0o700
        (work / NEW).mkdir()
        (work / NEW / "file").write_text("state")
    assert modes(tmp_path / "to") == {".": 0o700, "file": 0o600}


def test_an_entry_of_a_manifest_appears_closed_and_once(tmp_path):
    for is_new, text in ((True, "one"), (False, "two")):
        assert _link(tmp_path / "_manifest" / "0.json", text) is is_new
    assert modes(tmp_path) | {".": 0} == {".": 0, "_manifest": 0o700, "_manifest/0.json": 0o600}
    assert (tmp_path / "_manifest" / "0.json").read_text() == "one"


def test_reports_are_closed_also_where_older_ones_were_open(tmp_path):
    (tmp_path / "page.html").touch()
    write_page(tmp_path / "page.html", "<html>")
    assert modes(tmp_path) | {".": 0} == {".": 0, "page.html": 0o600}


def test_a_report_may_go_to_what_is_no_file(tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe", 0o644)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_page(tmp_path / "pipe", "<html>")
    assert os.read(reader, 100) == b"<html>"
    os.close(reader)
    assert mode(tmp_path / "pipe") == 0o644
    write_page(Path("/dev/stdout"), "<body>")
    assert "<body>" in capfd.readouterr().out


def test_a_link_in_the_place_of_the_folder_to_work_in_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".to.work").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match="is a symbolic link, or belongs to another user: remove it"):
        replace(tmp_path / "to")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_links_that_a_killed_run_left_are_removed_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("somebody's")
    (tmp_path / ".to.work").mkdir(mode=0o700)
    (tmp_path / ".to.work" / "run").symlink_to(victim)
    (tmp_path / ".to.work" / "file").touch()
    replace(tmp_path / "to")
    assert (victim / "file").read_text() == "somebody's"


@as_root
def test_another_user_s_folder_to_work_in_is_refused(tmp_path):
    (tmp_path / ".to.work").mkdir()
    os.chown(tmp_path / ".to.work", NOBODY, NOBODY)
    with pytest.raises(TargetError, match="belongs to another user"):
        replace(tmp_path / "to")
    assert not any((tmp_path / ".to.work").iterdir())


@as_root
def test_files_that_other_users_executors_wrote_are_no_obstacle(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refused)
    replace(tmp_path / "to")
    assert (tmp_path / "to" / "partition=0" / "file.parquet").read_text() == "state"


@as_root
def test_a_data_folder_that_others_can_change_is_warned_of(tmp_path, caplog):
    for name in ("own", "foreign", "open"):
        (tmp_path / name).mkdir(mode=0o700)
    os.chown(tmp_path / "foreign", NOBODY, NOBODY)
    (tmp_path / "open").chmod(0o777)
    for name in ("own", "foreign", "open"):
        caplog.clear()
        make_data(tmp_path / name)
        assert ("isn't protected from other users" in caplog.text) == (name != "own")


def test_folders_above_a_new_one_are_closed_and_those_that_are_there_keep_their_mode(tmp_path):
    (tmp_path / "old").mkdir()
    make_folder(tmp_path / "old" / "a" / "b")
    make_folder(tmp_path / "old")
    assert modes(tmp_path / "old") == {".": 0o777, "a": 0o700, "a/b": 0o700}
