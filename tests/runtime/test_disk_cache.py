"""The cache on disk: what is written is read, by many processes too, and trouble with the disk is only a miss."""

import json
import os
import re
import subprocess
import sys
import tempfile

import pytest
from cache_folders import KEY, RECORD, ROOT, files_in, finish, path_of, start

from einops_fast.runtime import disk_cache

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


def test_an_entry_is_one_file_of_json(folder):
    disk_cache.write(KEY, RECORD)
    (path,) = files_in(folder)
    assert re.fullmatch(r"v1/([0-9a-f]{2})/\1[0-9a-f]{62}\.json", path.relative_to(folder).as_posix())
    assert json.loads(path.read_bytes()) == {"key": KEY, "record": RECORD}


def test_a_file_has_the_rights_of_other_files(folder):
    path, usual = path_of(), folder / "usual"
    usual.touch()
    assert path.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize(
    ("bad", "error"),
    [(object(), TypeError), ({1, 2}, TypeError), (float("nan"), ValueError), (float("inf"), ValueError)],
)
def test_what_is_no_json_is_the_caller_s_mistake(bad, error, folder):
    for call in (
        lambda: disk_cache.read({"a": bad}),
        lambda: disk_cache.write({"a": bad}, RECORD),
        lambda: disk_cache.write(KEY, {"seconds": bad}),
    ):
        with pytest.raises(error):
            call()
    assert not folder.exists()


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


def test_another_process_clears_in_the_middle_of_a_write(folder, heard, monkeypatch):
    replace = os.replace

    def late(*paths):
        disk_cache.clear()
        replace(*paths)

    monkeypatch.setattr(os, "replace", late)
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) is None
    assert files_in(folder) == set()
    assert heard == []


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


def test_importing_the_package_looks_for_no_folder():
    script = "import sys, einops_fast; print('einops_fast.runtime.disk_cache' in sys.modules)"
    assert (
        finish(subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)) == "False"
    )
