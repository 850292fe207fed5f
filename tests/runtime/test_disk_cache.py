"""The cache on disk: what is written is read, by many processes too, and trouble with the disk is only a miss."""

import errno
import os
import subprocess
import sys
import tempfile

import pytest
from python_process import ROOT

from einops_fast.runtime import disk_cache
from einops_fast.runtime.disk_cache import Entry

KEY = {
    "problem": "bind,bjnd->bnij",
    "dtype": "float16",
    "device": "NVIDIA H200",
    "shapes": [[64, 100, 8, 128], [64, 50, 8, 128]],
    "versions": {"torch": "2.13.0", "driver": None},
}
RECORD = {"choice": "split-k", "seconds": 1.2e-5, "candidates": {"split-k": 1.2e-5, "cublas": 2e-5, "broken": None}}


def path_of(key=KEY):
    """The file of a key that is written here."""
    disk_cache.write(key, RECORD)
    (path,) = (entry.path for entry in disk_cache.entries() if entry.key == key)
    return path


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def start(script, *arguments, **environment):
    """A process in which a warning of anything in the cache is an error."""
    script = f"import json, os, sys, time, warnings\nfrom einops_fast.runtime import disk_cache\n{script}"
    return subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    printed, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return printed.strip()


pytestmark = pytest.mark.usefixtures("folder")


# ---- what is written is read


def test_reads_what_was_written(folder):
    assert (disk_cache.read(KEY), list(disk_cache.entries()), disk_cache.clear()) == (None, [], 0)
    assert not folder.exists()
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD
    assert disk_cache.read(dict(reversed(KEY.items()))) == RECORD
    assert disk_cache.read({**KEY, "shapes": ((64, 100, 8, 128), (64, 50, 8, 128))}) == RECORD
    disk_cache.write(KEY, {"choice": "cublas"})
    assert disk_cache.read(KEY) == {"choice": "cublas"}


def test_every_difference_of_keys_counts():
    values = [1, 1.0, "1", True, None, [1, 2], [2, 1], [[1], 2], {"b": 1}, "µ", "\\u00b5", "\ud800"]
    keys = [{}, {"a": 1, "b": 1}, *[{"a": value} for value in values]]
    for at, key in enumerate(keys):
        assert disk_cache.read(key) is None
        disk_cache.write(key, {"at": at})
    assert [disk_cache.read(key) for key in keys] == [{"at": at} for at in range(len(keys))]
    found = sorted(disk_cache.entries(), key=lambda entry: entry.record["at"])
    assert [(entry.key, entry.record["at"]) for entry in found] == [(key, at) for at, key in enumerate(keys)]


# ---- many processes


def test_many_processes_write_the_same_key_and_others(folder, tmp_path):
    # The record is long, so that a half of one, or two mixed, would be seen.
    script = """
me, go = sys.argv[1:]
shared, rounds = {"problem": "shared"}, 40
while not os.path.exists(go):
    time.sleep(0.001)
for turn in range(rounds):
    value = f"{me}-{turn}"
    disk_cache.write(shared, {"values": [value] * 3000})
    record = disk_cache.read(shared)
    assert record["values"] == record["values"][:1] * 3000
    disk_cache.write({"problem": me, "turn": turn}, {"value": value})
    assert disk_cache.read({"problem": me, "turn": turn}) == {"value": value}
    assert sum(1 for entry in disk_cache.entries()) > turn
"""
    go = tmp_path / "go"
    processes = [start(script, me, go) for me in range(5)]
    go.touch()
    for process in processes:
        finish(process)
    assert len(disk_cache.read({"problem": "shared"})["values"]) == 3000
    for me in range(5):
        for turn in range(40):
            assert disk_cache.read({"problem": str(me), "turn": turn}) == {"value": f"{me}-{turn}"}
    assert len(files_in(folder)) == len(list(disk_cache.entries())) == 1 + 5 * 40


def test_another_process_clears_what_is_being_cleared(folder, heard, monkeypatch):
    unlink = os.unlink

    def late(path, *arguments, **options):
        unlink(path, *arguments, **options)
        unlink(path, *arguments, **options)

    disk_cache.write(KEY, RECORD)
    disk_cache.write({}, RECORD)
    monkeypatch.setattr(os, "unlink", late)
    assert disk_cache.clear() == 0
    assert files_in(folder) == set()
    assert heard == []


# ---- clearing


def test_clears_what_it_wrote_and_nothing_else(folder):
    for at in range(5):
        disk_cache.write({"at": at}, RECORD)
    path = path_of()
    stale = path.with_name(f"{path.stem}.{'0' * 16}.tmp")
    corrupt = path.with_name(path.stem[:2] + "0" * 62 + ".json")
    for ours in (stale, corrupt):
        ours.write_text("{")
    other = "ff" if path.stem[:2] == "00" else "00"
    foreign = [
        folder / "notes.txt",
        folder / path.name,
        folder / "v1" / path.name,
        folder / "v1" / "abc" / ("abc" + "0" * 61 + ".json"),
        folder / "v2" / path.stem[:2] / path.name,
        path.with_name("notes.json"),
        path.with_name(path.name + "~"),
        path.with_name(path.name.upper()),
        path.with_name("x.tmp"),
        path.with_name(other + "0" * 62 + ".json"),
    ]
    for theirs in foreign:
        theirs.parent.mkdir(parents=True, exist_ok=True)
        theirs.write_text("theirs")
    assert disk_cache.clear() == 7  # a temporary file is no entry
    assert files_in(folder) == set(foreign)
    assert disk_cache.clear() == 0
    assert disk_cache.read(KEY) is None


# ---- where the folder is


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EINOPS_FAST_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/xdg"}, "/mine"),
        ({"EINOPS_FAST_CACHE_DIR": "~/mine"}, "/home/me/mine"),
        ({"EINOPS_FAST_CACHE_DIR": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/einops_fast"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/einops_fast"),
        ({}, "/home/me/.cache/einops_fast"),
        ({"HOME": "~"}, f"{tempfile.gettempdir()}/einops_fast"),  # what is made of it stays relative
    ],
)
def test_the_folder(environment, expected, monkeypatch):
    for name in ("EINOPS_FAST_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert str(disk_cache.folder()) == expected


def test_a_relative_folder_stays_where_it_is():
    moved = "os.chdir('/'); print(disk_cache.folder())"
    assert finish(start(moved, EINOPS_FAST_CACHE_DIR="mine")) == str(ROOT / "mine")


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
