"""The cache on disk: what is written is read, by many processes too, and trouble with the disk is only a miss."""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from einops_fast.runtime import disk_cache
from einops_fast.runtime.disk_cache import Entry

ROOT = Path(__file__).parents[2]
KEY = {
    "problem": "bind,bjnd->bnij",
    "dtype": "float16",
    "device": "NVIDIA H200",
    "shapes": [[64, 100, 8, 128], [64, 50, 8, 128]],
    "versions": {"torch": "2.13.0", "driver": None},
}
RECORD = {"choice": "split-k", "seconds": 1.2e-5, "candidates": {"split-k": 1.2e-5, "cublas": 2e-5, "broken": None}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the cache is; nothing there yet, and nothing said yet."""
    path = tmp_path / "not" / "there"
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(path))
    monkeypatch.setattr(disk_cache, "_known_trouble", set())
    return path


@pytest.fixture
def heard():
    """All that was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _path(key=KEY):
    """The file of a key that is written here."""
    disk_cache.write(key, RECORD)
    (path,) = (entry.path for entry in disk_cache.entries() if entry.key == key)
    return path


def _files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def _start(script, *arguments, **environment):
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


def _finish(process):
    printed, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return printed.strip()


# ---- what is written is read


def test_reads_what_was_written():
    assert disk_cache.read(KEY) is None
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD
    assert disk_cache.read(dict(reversed(KEY.items()))) == RECORD
    assert disk_cache.read({**KEY, "shapes": ((64, 100, 8, 128), (64, 50, 8, 128))}) == RECORD
    disk_cache.write(KEY, {"choice": "cublas"})
    assert disk_cache.read(KEY) == {"choice": "cublas"}


def test_reads_what_another_process_has_written():
    script = "disk_cache.write(json.loads(sys.argv[1]), json.loads(sys.argv[2]))"
    _finish(_start(script, json.dumps(KEY), json.dumps(RECORD), PYTHONHASHSEED="1"))
    assert disk_cache.read(KEY) == RECORD


def test_every_difference_of_keys_counts():
    keys = [
        {},
        {"a": 1},
        {"a": 1.0},
        {"a": "1"},
        {"a": True},
        {"a": None},
        {"a": [1, 2]},
        {"a": [2, 1]},
        {"a": [[1], 2]},
        {"a": {"b": 1}},
        {"a": 1, "b": 1},
        {"a": "µ"},
        {"a": "\\u00b5"},
        {"a": "\ud800"},
    ]
    for at, key in enumerate(keys):
        assert disk_cache.read(key) is None
        disk_cache.write(key, {"at": at})
    assert [disk_cache.read(key) for key in keys] == [{"at": at} for at in range(len(keys))]


def test_an_entry_is_one_file_of_json(folder):
    disk_cache.write(KEY, RECORD)
    (path,) = _files(folder)
    assert re.fullmatch(r"v1/([0-9a-f]{2})/\1[0-9a-f]{62}\.json", path.relative_to(folder).as_posix())
    assert json.loads(path.read_bytes()) == {"key": KEY, "record": RECORD}


def test_a_file_has_the_rights_of_other_files(folder):
    path, usual = _path(), folder / "usual"
    usual.touch()
    assert path.stat().st_mode == usual.stat().st_mode


def test_lists_all_entries(folder):
    keys = [{"at": at} for at in range(20)]
    for key in keys:
        disk_cache.write(key, {"record": key["at"]})
    found = sorted(disk_cache.entries(), key=lambda entry: entry.key["at"])
    assert [(entry.key, entry.record) for entry in found] == [(key, {"record": key["at"]}) for key in keys]
    assert {entry.path for entry in found} == _files(folder)


def test_lists_nothing_where_there_is_nothing(folder):
    assert list(disk_cache.entries()) == []
    assert not folder.exists()


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


def test_holds_nothing_open(heard):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    path = _path()
    disk_cache.write({}, {})
    started = disk_cache.entries()
    assert next(started)
    assert disk_cache.read(KEY) == RECORD
    path.write_text("{")
    assert disk_cache.read(KEY) is None
    assert len(os.listdir("/proc/self/fd")) == before


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
    processes = [_start(script, me, go) for me in range(5)]
    go.touch()
    for process in processes:
        _finish(process)
    assert len(disk_cache.read({"problem": "shared"})["values"]) == 3000
    for me in range(5):
        for turn in range(40):
            assert disk_cache.read({"problem": str(me), "turn": turn}) == {"value": f"{me}-{turn}"}
    assert len(_files(folder)) == len(list(disk_cache.entries())) == 1 + 5 * 40


def test_one_process_clears_while_others_write(folder, tmp_path):
    script = """
me, go = sys.argv[1:]
while not os.path.exists(go):
    time.sleep(0.001)
for turn in range(300):
    disk_cache.write({"turn": turn % 10}, {"value": turn})
    disk_cache.read({"turn": turn % 10})
"""
    go = tmp_path / "go"
    processes = [_start(script, me, go) for me in range(3)]
    go.touch()
    removed = 0
    while any(process.poll() is None for process in processes):
        removed += disk_cache.clear()
    for process in processes:
        _finish(process)
    disk_cache.clear()
    assert removed > 0
    assert _files(folder) == set()


def test_another_process_clears_in_the_middle_of_a_write(folder, heard, monkeypatch):
    replace = os.replace

    def late(*paths):
        disk_cache.clear()
        replace(*paths)

    monkeypatch.setattr(os, "replace", late)
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) is None
    assert _files(folder) == set()
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
    assert _files(folder) == set()
    assert heard == []


# ---- files that are no entries


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\x00" * 500,
        b"\x80\x04\x95\x0c\x00\x00\x00",  # what pickle writes
        b"null",
        b"[]",
        b'"key record"',
        b"{}",
        b'{"key": {}}',
        b'{"key": [], "record": {}}',
        b'{"key": {}, "record": 5}',
        b'{"key": {"a": NaN}, "record": {}}',
        b'{"key": {}, "record": {"seconds": Infinity}}',
        b'{"key": {}, "record": {"seconds": 1e999}}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_corrupt_file_is_a_miss_and_one_warning(content, heard):
    path = _path()
    path.write_bytes(content)
    for _ in range(3):
        assert disk_cache.read(KEY) is None
        assert list(disk_cache.entries()) == []
    (warning,) = heard
    assert warning.category is RuntimeWarning
    assert f"can't read {path}, and goes on without it: " in str(warning.message)
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD


def test_a_file_cut_off_anywhere_is_a_miss(heard):
    path = _path()
    whole = path.read_bytes()
    end = whole.rindex(b"}")
    for length in range(end):
        path.write_bytes(whole[:length])
        assert disk_cache.read(KEY) is None
    assert len(heard) == 1
    path.write_bytes(whole[: end + 1])
    assert disk_cache.read(KEY) == RECORD


def test_a_file_of_another_key_is_a_miss(heard):
    path, other = _path(), {**KEY, "dtype": "float32"}
    _path(other).write_bytes(path.read_bytes())
    assert disk_cache.read(other) is None
    assert disk_cache.read(KEY) == RECORD
    assert list(disk_cache.entries()) == [Entry(KEY, RECORD, path)]
    assert heard == []


def test_a_folder_in_the_place_of_a_file(heard):
    path = _path()
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
    assert _files(folder) == set()
    disk_cache.write(KEY, RECORD)
    assert disk_cache.read(KEY) == RECORD


def test_a_write_that_breaks_off_leaves_nothing_behind(folder):
    pytest.importorskip("resource")
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # a longer file is an OSError in the middle of it
disk_cache.write({}, {"values": [1] * 10})
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    disk_cache.write({}, {"values": [2] * 10_000})
    disk_cache.write({"another": 1}, {"values": [2] * 10_000})
print(len(heard), heard[0].message)
"""
    printed = _finish(_start(script))
    assert printed.startswith(f"1 the cache of einops_fast can't write {folder}")
    assert printed.endswith(os.strerror(errno.EFBIG))
    assert disk_cache.read({}) == {"values": [1] * 10}
    assert len(_files(folder)) == 1


def test_an_interrupted_write_leaves_nothing_behind(folder, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    disk_cache.write(KEY, RECORD)
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        disk_cache.write(KEY, {})
    assert len(_files(folder)) == 1
    assert disk_cache.read(KEY) == RECORD


def test_a_file_that_cannot_be_read(heard, monkeypatch):
    path = _path()

    def fail(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), arguments[0])

    monkeypatch.setattr(disk_cache, "open", fail, raising=False)
    assert [disk_cache.read(KEY), disk_cache.read(KEY), list(disk_cache.entries())] == [None, None, []]
    (warning,) = heard
    assert f"can't read {path}" in str(warning.message)


def test_each_kind_of_trouble_is_told_once(heard, monkeypatch):
    _path().write_text("{")
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


# ---- clearing


def test_clears_what_it_wrote_and_nothing_else(folder):
    for at in range(5):
        disk_cache.write({"at": at}, RECORD)
    path = _path()
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
    assert _files(folder) == set(foreign)
    assert disk_cache.clear() == 0
    assert disk_cache.read(KEY) is None


def test_clears_nothing_where_there_is_nothing(folder):
    assert disk_cache.clear() == 0
    assert not folder.exists()


def test_goes_on_where_a_file_cannot_be_removed(folder, heard, monkeypatch):
    for at in range(5):
        disk_cache.write({"at": at}, RECORD)
    unlink, kept = os.unlink, sorted(_files(folder))[1]

    def fail(path, *arguments, **options):
        if Path(path) == kept:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, *arguments, **options)

    monkeypatch.setattr(os, "unlink", fail)
    assert disk_cache.clear() == 4
    assert _files(folder) == {kept}
    (warning,) = heard
    assert f"can't remove {kept}" in str(warning.message)


# ---- where the folder is


def _platformdirs(name):
    return f"/of/platformdirs/{name}"


def _homeless(name):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize(
    ("user_cache_dir", "environment", "expected"),
    [
        (None, {"EINOPS_FAST_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/xdg"}, "/mine"),
        (None, {"EINOPS_FAST_CACHE_DIR": "~/mine"}, "/home/me/mine"),
        (None, {"EINOPS_FAST_CACHE_DIR": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/einops_fast"),
        (None, {"XDG_CACHE_HOME": ""}, "/home/me/.cache/einops_fast"),
        (None, {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/einops_fast"),
        (None, {}, "/home/me/.cache/einops_fast"),
        (_platformdirs, {"XDG_CACHE_HOME": "/xdg"}, "/of/platformdirs/einops_fast"),
        (_platformdirs, {"EINOPS_FAST_CACHE_DIR": "/mine"}, "/mine"),
        (_homeless, {}, f"{tempfile.gettempdir()}/einops_fast"),
        (None, {"HOME": "~"}, f"{tempfile.gettempdir()}/einops_fast"),  # what is made of it stays relative
    ],
)
def test_the_folder(user_cache_dir, environment, expected, monkeypatch):
    """With and without platformdirs, which may find no home either."""
    module = None if user_cache_dir is None else SimpleNamespace(user_cache_dir=user_cache_dir)
    monkeypatch.setitem(sys.modules, "platformdirs", module)
    for name in ("EINOPS_FAST_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    disk_cache._usual_folder.cache_clear()
    try:
        assert str(disk_cache.folder()) == expected
    finally:
        disk_cache._usual_folder.cache_clear()


def test_the_folder_of_platformdirs_as_installed():
    platformdirs = pytest.importorskip("platformdirs")
    assert disk_cache._usual_folder.__wrapped__() == Path(platformdirs.user_cache_dir("einops_fast"))


def test_a_relative_folder_stays_where_it_is():
    moved = "os.chdir('/'); print(disk_cache.folder())"
    assert _finish(_start(moved, EINOPS_FAST_CACHE_DIR="mine")) == str(ROOT / "mine")


def test_importing_the_package_looks_for_no_folder(tmp_path):
    (tmp_path / "platformdirs.py").touch()
    script = "import sys, einops_fast; print({'einops_fast.runtime.disk_cache', 'platformdirs'} & sys.modules.keys())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    assert _finish(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)) == "set()"
