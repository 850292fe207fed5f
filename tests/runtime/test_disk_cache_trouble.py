"""Files that are no entries, and folders that can't be used."""

import errno
import os

import pytest
from cache_folders import KEY, RECORD, files_in, path_of

from einops_fast.runtime import disk_cache
from einops_fast.runtime.disk_cache import Entry

pytestmark = pytest.mark.usefixtures("folder")


# ---- files that are no entries


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"key": {}, "record": {}',
        b"\x80\x04\x95\x0c\x00\x00\x00",  # what pickle writes
        b"null",
        b'{"key": {}}',
        b'{"key": [], "record": {}}',
        b'{"key": {"a": NaN}, "record": {}}',
        b'{"key": {}, "record": {"seconds": 1e999}}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_corrupt_file_is_a_miss_and_one_warning(content, heard):
    path = path_of()
    path.write_bytes(content)
    for _ in range(3):
        assert disk_cache.read(KEY) is None
        assert list(disk_cache.entries()) == []
    (warning,) = heard
    assert warning.category is RuntimeWarning
    assert f"can't read {path}, and goes on without it: " in str(warning.message)
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD


def test_a_file_of_another_key_is_a_miss(heard):
    path, other = path_of(), {**KEY, "dtype": "float32"}
    path_of(other).write_bytes(path.read_bytes())
    assert disk_cache.read(other) is None
    assert disk_cache.read(KEY) == RECORD
    assert list(disk_cache.entries()) == [Entry(KEY, RECORD, path)]
    assert heard == []


def test_a_folder_in_the_place_of_a_file(heard):
    path = path_of()
    path.unlink()
    path.mkdir()
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) is None
    assert list(disk_cache.entries()) == []
    assert disk_cache.clear() == 0
    assert [path] == list(path.parent.iterdir())
    assert all(str(path) in str(warning.message) for warning in heard)


# ---- folders that can't be used


def test_a_file_in_the_place_of_the_folder(folder, heard):
    folder.parent.mkdir()
    folder.write_text("mine")
    for _ in range(3):
        assert disk_cache.read(KEY) is None
        disk_cache.write(KEY, RECORD)
        assert list(disk_cache.entries()) == []
        assert disk_cache.clear() == 0
    assert folder.read_text() == "mine"
    (warning,) = heard
    assert warning.category is RuntimeWarning
    assert str(folder) in str(warning.message)
    assert os.strerror(errno.ENOTDIR) in str(warning.message)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_folder_that_cannot_be_written(call, code, folder, heard, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        for at in range(3):
            disk_cache.write({"at": at}, RECORD)
    (warning,) = heard
    assert str(folder) in str(warning.message)
    assert os.strerror(code) in str(warning.message)
    assert files_in(folder) == set()
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD


def test_an_interrupted_write_leaves_nothing_behind(folder, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    disk_cache.write(KEY, RECORD)
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk_cache.write(KEY, {})
    assert len(files_in(folder)) == 1
    assert disk_cache.read(KEY) == RECORD


def test_each_kind_of_trouble_is_told_once(heard, monkeypatch):
    path_of().write_text("{")
    disk_cache.read(KEY)

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    for _ in range(3):
        disk_cache.read(KEY)
        disk_cache.write(KEY, RECORD)
    read, write = (str(warning.message) for warning in heard)
    assert "can't read" in read
    assert "can't write" in write
