"""The data folder: one app, one process, nothing outside."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stores.errors import (
    ForeignFolderError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    StoreUnavailableError,
)
from stores.folder import DataFolder, if_copied
from stores.rocks import RocksStore

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from stores.folder import DataFolder
folder = DataFolder.open(sys.argv[1], app="dispatcher")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    opened = DataFolder.open(tmp_path / "v1" / "actors", app="dispatcher")
    yield opened
    opened.close()


def make_database(folder: DataFolder, store: str, partition: int) -> Path:
    RocksStore.open(folder.store_path(store, partition)).close()
    return folder.store_path(store, partition)


def test_a_new_folder_says_whose_it_is(folder):
    about = {"app": "dispatcher", "format": 1, "id": folder.id}
    assert json.loads((folder.path / "worker.json").read_text()) == about
    assert len(folder.id) == 32
    assert (folder.path / "worker.lock").read_text().strip() == str(os.getpid())
    assert folder.stores_on_disk() == []
    assert folder.partitions_on_disk("seen") == []


def test_a_folder_can_be_opened_again(folder):
    folder.close()
    folder.close()
    DataFolder.open(folder.path, app="dispatcher").close()


def test_another_process_is_named_by_its_pid_and_its_death_frees_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError, match=f"{re.escape(str(tmp_path))} is in use by process {holder.pid}:"):
            DataFolder.open(tmp_path, app="dispatcher")
        assert DataFolder.inspect(tmp_path).app == "dispatcher"
    finally:
        holder.kill()
        holder.communicate()
    DataFolder.open(tmp_path, app="dispatcher").close()
    assert (tmp_path / "worker.lock").read_text().strip() == str(os.getpid())


def test_a_second_opening_in_one_process_is_refused(folder):
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        DataFolder.open(folder.path, app="dispatcher")


def test_a_folder_of_another_app_is_refused_and_left_free(folder):
    folder.close()
    with pytest.raises(ForeignFolderError, match="belongs to the app 'dispatcher', not 'other'"):
        DataFolder.open(folder.path, app="other")
    with pytest.raises(ForeignFolderError, match="'dispatcher', not 'other'"):
        DataFolder.inspect(folder.path, app="other")
    DataFolder.open(folder.path, app="dispatcher").close()


def test_a_folder_of_a_newer_release_is_refused(folder):
    folder.close()
    (folder.path / "worker.json").write_text('{"app": "dispatcher", "format": 2, "id": "1"}')
    with pytest.raises(StoreFormatError, match="format 2"):
        DataFolder.open(folder.path, app="dispatcher")
    with pytest.raises(StoreFormatError, match="format 2"):
        DataFolder.inspect(folder.path)


@pytest.mark.parametrize("text", ["", "[]", '{"app": "dispatcher"}', '{"app": "dispatcher", "format": "x"}'])
def test_a_damaged_worker_json_is_refused(folder, text):
    folder.close()
    (folder.path / "worker.json").write_text(text)
    with pytest.raises(ForeignFolderError, match="doesn't say"):
        DataFolder.open(folder.path, app="dispatcher")


def test_what_isn_t_a_data_folder_can_t_be_inspected(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ForeignFolderError, match=r"worker\.json is missing"):
            DataFolder.inspect(path)
    assert not (tmp_path / "nothing").exists()


def test_a_path_that_can_t_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="datadir"):
        DataFolder.open(tmp_path / "file", app="dispatcher")


def test_what_is_on_disk(folder):
    for store, partition in (("seen", 10), ("seen", 2), ("locks", 0)):
        make_database(folder, store, partition)
    (folder.path / "stores" / "seen" / "3.discarded").mkdir()
    (folder.path / "stores" / "empty").mkdir()
    assert folder.partitions_on_disk("seen") == [2, 10]
    assert folder.stores_on_disk() == ["locks", "seen"]


def test_a_copy_of_a_folder_gets_an_id_of_its_own_by_the_remedy_that_the_error_names(tmp_path):
    with closing(DataFolder.open(tmp_path / "one", app="app")) as one:
        make_database(one, "sums", 0)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        with closing(DataFolder.open(tmp_path / "two", app="app")) as two:
            assert two.id == one.id
        assert f"the data folder {two.path}" in if_copied(two.path)
        assert "delete worker.json" in if_copied(two.path)
        (tmp_path / "two" / "worker.json").unlink()
        with closing(DataFolder.open(tmp_path / "two", app="app")) as two:
            assert two.id not in ("", one.id)
            assert two.partitions_on_disk("sums") == [0]


def test_discard_deletes_one_partition(folder):
    doomed, kept = make_database(folder, "seen", 0), make_database(folder, "seen", 1)
    folder.discard("seen", 0)
    folder.discard("seen", 0)
    assert not doomed.exists()
    assert kept.exists()
    assert [path.name for path in doomed.parent.iterdir()] == ["1"]


@pytest.mark.parametrize("store", ["", ".", "..", "../seen", "a/b", "/etc", "a\0b"])
def test_names_that_lead_out_are_refused(folder, store):
    with pytest.raises(StoreError):
        folder.discard(store, 0)
    with pytest.raises(StoreError):
        folder.store_path(store, 0)
    with pytest.raises(StoreError):
        folder.store_path("seen", -1)


def test_links_that_lead_out_are_refused(folder, tmp_path):
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)
    (folder.path / "stores" / "seen").symlink_to(outside)
    with pytest.raises(StoreError, match="outside"):
        folder.discard("seen", 0)
    (folder.path / "stores" / "seen").unlink()
    (folder.path / "stores" / "seen").mkdir()
    (folder.path / "stores" / "seen" / "0").symlink_to(outside / "0")
    with pytest.raises(StoreError, match="outside"):
        folder.discard("seen", 0)
    assert (outside / "0").exists()


def test_no_database_is_opened_behind_a_link(folder, tmp_path):
    """RocksDB deletes files that look like its own in the folder that it is given."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "000004.log").write_text("somebody's")
    (folder.path / "stores" / "seen").mkdir()
    place = folder.path / "stores" / "seen" / "0"
    place.symlink_to(outside)
    with pytest.raises(StoreError, match="is a symbolic link, or lies behind one"):
        RocksStore.open(folder.store_path("seen", 0))
    assert (outside / "000004.log").read_text() == "somebody's"


def test_links_inside_a_database_are_deleted_and_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("somebody's")
    database = make_database(folder, "seen", 0)
    (database / "link").symlink_to(outside)
    (database / "000001.sst").symlink_to(outside / "file")
    folder.discard("seen", 0)
    assert not database.exists()
    assert (outside / "file").read_text() == "somebody's"


def test_a_data_folder_may_be_a_link_as_a_whole(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    folder = DataFolder.open(tmp_path / "link", app="dispatcher")
    make_database(folder, "seen", 0)
    folder.discard("seen", 0)
    folder.close()


def test_a_link_in_the_place_of_the_lock_or_the_draft_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("somebody's")
    for name in ("worker.lock", "worker.json.tmp"):
        place = tmp_path / name.replace(".", "-")
        place.mkdir()
        (place / name).symlink_to(victim)
    with pytest.raises(StoreUnavailableError, match="can't use the data folder"):
        DataFolder.open(tmp_path / "worker-lock", app="dispatcher")
    DataFolder.open(tmp_path / "worker-json-tmp", app="dispatcher").close()
    assert victim.read_text() == "somebody's"


def test_a_link_to_another_partition_is_refused(folder):
    database = make_database(folder, "seen", 1)
    database.with_name("0").symlink_to(database)
    with pytest.raises(StoreError, match=r"leads to .*/seen/1"):
        folder.discard("seen", 0)
    assert sorted(path.name for path in database.parent.iterdir()) == ["0", "1"]


def test_who_doesn_t_hold_the_folder_can_t_discard(folder):
    database = make_database(folder, "seen", 0)
    with pytest.raises(StoreClosedError):
        DataFolder.inspect(folder.path).discard("seen", 0)
    folder.close()
    with pytest.raises(StoreClosedError):
        folder.discard("seen", 0)
    assert database.exists()
