"""The command line, as a process: what a script sees, exit codes, plans, the cache."""

import errno
import json
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from python_process import ROOT, run_python

from einops_fast.cli import main
from einops_fast.patching.patch import FUNCTIONS
from einops_fast.runtime import disk_cache

SCRIPT = """
import atexit
import sys
import numpy as np
from neighbour import VALUE

class Mine:
    pass

if __name__ == "__main__":
    assert sys.modules["__main__"].Mine is Mine
    assert np.einsum("ij,jk", np.ones((2, 3)), np.ones((3, 4))).shape == (2, 4)
    print(sys.argv[1:], sys.path[0], VALUE)
    atexit.register(lambda: print(Mine.__name__))
    if "fail" in sys.argv:
        sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("VALUE = 5\n")
    return tmp_path


def _run(*arguments, **options):
    return run_python("-m", "einops_fast", *arguments, **options)


PROGRAM = """
import atexit, multiprocessing, pickle, sys, threading
import helper

class Mine:
    pass

def child():
    print("child")

# No child of multiprocessing imports a file of this name.
mine = helper.child if __file__.endswith("__main__.py") else child

def late():
    threading.main_thread().join()
    assert sys.modules["__main__"].__dict__ is globals()
    print("thread", pickle.loads(pickle.dumps(Mine())).__class__ is Mine)
    process = multiprocessing.get_context("spawn").Process(target=mine)
    process.start()
    process.join()

if __name__ == "__main__":
    module = sys.modules["__main__"]
    print(sys.argv, sys.path[0], module.__dict__.get("__file__"), module.__spec__ and module.__spec__.name)
    sys.stdout.flush()
    threading.Thread(target=late).start()
    atexit.register(lambda: print("atexit", pickle.loads(pickle.dumps(Mine())).__class__ is Mine))
"""


@pytest.mark.parametrize("kind", ["script.py", "folder", "archive.zip", "compiled.pyc", "-mfolder", "-mpackage.module"])
def test_the_main_module_outlives_its_program(kind, tmp_path):
    """What Python runs last of a program, in threads and exit handlers, sees its module as it was."""
    (tmp_path / "package").mkdir()
    (tmp_path / "folder").mkdir()
    sources = [tmp_path / name for name in ("script.py", "folder/__main__.py", "package/module.py")]
    for path in sources:
        path.write_text(PROGRAM)
    for folder in (tmp_path, tmp_path / "folder"):
        (folder / "helper.py").write_text("def child():\n    print('child')\n")
    py_compile.compile(str(sources[0]), str(tmp_path / "compiled.pyc"))
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        for path in (tmp_path / "folder").glob("*.py"):
            archive.write(path, path.name)
    done = _run("run", "--patch", "numpy", kind, "--", "a", "--", cwd=tmp_path)
    native = run_python(kind, "--", "a", "--", cwd=tmp_path)
    first, *others = done.stdout.splitlines()
    assert first == native.stdout.splitlines()[0]
    assert done.stderr == ""
    # Python itself forgets a script's file before its last thread ends.
    assert others == ["thread True", "child", "atexit True"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["script.py", "--patch", "x", "--", "-m"],
        ["script.py", "fail"],
        ["broken.py"],
        ["-m", "script", "--patch", "x", "--", "-h"],
        ["-c", "VALUE = 5; import sys, __main__; print(sys.argv, sys.path[0], __main__.VALUE)", "--", "-c"],
        ["-cimport sys; print(sys.argv)", "a", "--", "b"],
        ["-c", "def f(x: int): ...\nprint(f.__annotations__)"],
        ["-c", "import sys; sys.exit('a reason')"],
        ["-c", "import sys; sys.exit([1])"],
        ["-c", "raise SystemExit"],
        ["-c", "raise KeyboardInterrupt"],
        ["-c", "from einops_fast import fast_einsum; fast_einsum('i->i', [[1]])"],
        ["-c", "nonsense nonsense"],
        ["-c", ""],
        ["-m", "missing"],
        ["-", "a", "--"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("separator", [["--"], []], ids=["with --", "without --"])
def test_runs_and_ends_as_python_does(arguments, separator, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (folder / "broken.py").write_text("1 / 0\n")

    def told(*command):
        program = "import sys; print(sys.argv, sys.path[0]); sys.exit(5)"
        done = subprocess.run(
            [sys.executable, *command, *arguments], input=program, capture_output=True, text=True, cwd=folder
        )
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    assert told("-m", "einops_fast", "run", "--patch", "numpy", *separator) == told()


def test_patches_several_frameworks():
    pytest.importorskip("torch")
    program = "import numpy, torch; print(numpy.einsum.__wrapped__.__wrapped__, torch.einsum.__wrapped__)"
    assert _run("run", "--patch", "numpy, torch", "-c", program).stdout.count("<function einsum") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--patch", "numpy", "missing.py"], "no file 'missing.py'"),
        (["run", "--patch", "jax", __file__], "'jax'"),
        (["run", "--patch", "numpy", "-m"], "what shall be run"),
        (["fusions", "-c"], "einops-fast fusions: "),
        (["run", "--patch", "numpy", "/dev/null/script.py"], "no file '/dev/null/script.py'"),
        (["run", "--patch", ",", "script.py"], "at least one framework"),
        (["run", "script.py"], "--patch"),
        (["explain", "ij,jk", "2,3", "4,5"], "size 3 in operand 0 (axis 1 of shape (2, 3)): ij,jk\n"),
        (["explain", "ij,jk->iz", "2,3", "3,4"], "'z'"),
        (["explain", "ij,jk,kl", "2,3", "3,4", "4,5", "--optimize", "nonsense"], "nonsense"),
        (["explain", "ij,jk", "2,x", "3,4"], "einops-fast explain: '2,x' is no shape; write 64,100, 64x100 or ()"),
        (["explain", "ij,jk"], "einops-fast explain: "),
        (["explain", "i (h d) -> h i d", "2x6"], "(h d), tells no size of h and d"),
        (["explain", "i (h d) -> h i d", "2x6", "n=3"], "no 'n', and 'i (h d) -> h i d' no such axis"),
        (["explain", "ij", "2,3", "--dtype", "float33"], "did you mean 'float32'?"),
        (["explain", "ij", "2,3", "--backend", "nump"], "einops-fast explain: argument --backend: 'nump' isn't one of"),
        (["explain", "ij", "2,3", "--memory-limit", "many"], "memory_limit is a number of bytes"),
        (["explain", "ij", "2,3", "--jsn"], "no such option: --jsn; did you mean '--json'?"),
        (["explain", "ij", "2,3", "--device", "h20"], "not for 'h20'; did you mean 'h200'?"),
        (["explain", "ij", "2,3", "--device", "h200", "--backend", "numpy"], "--device plans for tensors of torch"),
        (
            ["explain", "ij", "2,3", "--strides", "1"],
            "strides [(1,)] aren't one number per axis of the shapes [(2, 3)]",
        ),
        (["explain", "attention", "bshd", "2x3"], "attention with layout 'bshd' takes three arrays"),
        (
            ["explain", "attention", "bshd", *["2x3x4x8"] * 3, "sliding_window=2"],
            "no 'sliding_window'; it is window, with",
        ),
        (["cache", "path", "here"], "einops-fast cache path: one argument too many: here"),
        (["exlpain", "ij", "2,3"], "did you mean 'explain'?"),
        ([], "required: COMMAND; see einops-fast --help"),
        (["profile", "--qick"], "no such option: --qick; did you mean '--quick'?"),
        (["profile", "atention"], "did you mean 'attention'?"),
        (["profile", "--only-run", "mx3"], "did you mean 'mx2'?"),
        (["run", "--patch", "nump", __file__], "did you mean 'numpy'?"),
        (["explain", "ij", "2,3", "--dtype", "bfloat16"], "numpy has no dtype 'bfloat16'"),
        (["metrics", "summarize", "/dev/null"], "no tables of metrics in /dev/null"),
        (["tune", "/dev/null"], "no calls in /dev/null"),
        (["cache", "import", "/dev/null"], "/dev/null is no bundle"),
        (["cache", "import", "/dev"], "/dev is no bundle: bundle.json can't be read: No such file or directory\n"),
        (["cache", "import", "/dev/no"], "/dev/no is no bundle: No such file or directory\n"),
        (["cache", "burn"], "einops-fast cache: "),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_says_what_is_wrong(arguments, message, capsys):
    try:
        status = main(arguments)
    except SystemExit as left:  # of argparse
        status = left.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith("einops-fast")
    assert message in printed.err
    assert "usage:" not in printed.err
    assert printed.err.count("\n") == 1


def test_explains(capsys):
    assert main(["explain", "bind,bjnd->bnij", "2,3,4,5", "2,6,4,5", "--dtype", "float64"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("bind,bjnd->bnij\n")
    assert "float64" in printed
    assert "b=2" in printed
    assert main(["explain", "ij,jk,kl->il", "400,300", "300,500", "500,200", "--memory-limit", "500 kB"]) == 0
    assert "pieces (" in capsys.readouterr().out


def test_explains_shapes_with_crosses_and_sizes_by_name(capsys):
    assert main(["explain", "b i (h d), b j (h d) -> b h i j", "2x5x12", "2,6,12", "h=3"]) == 0
    by_name = capsys.readouterr().out
    assert main(["explain", "bihd,bjhd->bhij", "2,5,3,4", "2,6,3,4"]) == 0
    assert by_name == capsys.readouterr().out


def test_explains_in_json(capsys):
    assert main(["explain", "ij,jk,k,,->i", "(2, 3)", "3,4", "(4,)", "", "()", "--optimize", "false", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [operand["shape"] for operand in plan["operands"]] == [[2, 3], [3, 4], [4], [], []]
    assert plan["path"][0] == [0, 1]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for measurements, which isn't there yet."""
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


KEYS = [
    {"problem": "ij,jk->ik [2,3]", "dtype": "float16", "device": "NVIDIA H200", "versions": {"triton": "3.6"}},
    {"problem": "i,i->", "dtype": "float64"},
    {},
]
RECORDS = [
    {"choice": "split[k]", "seconds": 1.234e-05, "candidates": {"split[k]": 1.234e-05, "cublas": None}},
    {"choice": "cublas", "seconds": 2},
    {"seconds": "soon"},
]


def _fill():
    for key, record in zip(KEYS, RECORDS, strict=True):
        disk_cache.write(key, record)


@pytest.mark.parametrize("rich", [True, False], ids=["with rich", "without rich"])
def test_shows_the_cache(rich, cache, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if rich:
        pytest.importorskip("rich")
    else:
        for module in ("rich", "rich.console", "rich.markup", "rich.table"):
            monkeypatch.setitem(sys.modules, module, None)
    _fill()
    assert main(["cache", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    border = re.compile("[┃│]" if rich else "  +")
    rows = [[cell.strip() for cell in border.split(line) if cell.strip()] for line in lines if border.search(line)]
    assert rows == [
        ["problem", "device", "dtype", "choice", "time, µs"],
        ["i,i->", "–", "float64", "cublas", "2000000.00"],
        ["ij,jk->ik [2,3]", "NVIDIA H200", "float16", "split[k]", "12.34"],
        ["–"] * 5,
    ]
    assert len(set(map(len, lines))) == 1


def test_shows_the_cache_in_json(cache, capsys):
    _fill()
    assert main(["cache", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == len(KEYS)
    for entry in shown:
        assert entry["record"] == RECORDS[KEYS.index(entry["key"])]
        assert json.loads(Path(entry["path"]).read_text()) == {"key": entry["key"], "record": entry["record"]}


def test_a_cache_that_is_not_there(cache, capsys):
    for arguments, printed in [
        (["show"], f"there are no entries in {cache}\n"),
        (["show", "--json"], "[]\n"),
        (["clear"], f"removed 0 entries from {cache}\n"),
        (["path"], f"{cache}\n"),
    ]:
        assert main(["cache", *arguments]) == 0
        assert capsys.readouterr() == (printed, "")
    assert not cache.exists()


@pytest.mark.filterwarnings("default:the cache of einops_fast")
def test_a_warning_is_one_line(cache, capsys, monkeypatch):
    monkeypatch.setattr(disk_cache, "_known_trouble", set())
    cache.write_text("no folder")
    assert main(["cache", "show"]) == 0
    told = f"einops-fast: the cache of einops_fast can't read {cache}/v1, and goes on without it: Not a directory\n"
    assert capsys.readouterr() == (f"there are no entries in {cache}\n", told)


def test_clears_the_cache(cache, capsys):
    _fill()
    (cache / "notes.txt").write_text("mine")
    for removed in ("3 entries", "1 entry"):
        assert main(["cache", "clear"]) == 0
        assert capsys.readouterr().out == f"removed {removed} from {cache}\n"
        assert list(disk_cache.entries()) == []
        disk_cache.write({}, {})
    assert (cache / "notes.txt").exists()


def test_a_cache_that_cannot_be_cleared(cache, capsys, monkeypatch):
    _fill()
    kept = sorted(cache.glob("v1/*/*.json"))
    unlink = Path.unlink

    def fail(path, *arguments, **options):
        if path in kept[1:]:
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", fail)
    for removed in ("1 entry", "0 entries"):  # also where it was said before
        assert main(["cache", "clear"]) == 1
        printed = capsys.readouterr()
        reason = f"can't remove {kept[1]}: Read-only file system (and 1 more)"
        assert (printed.out, printed.err) == ("", f"einops-fast: removed {removed} from {cache}, but {reason}\n")


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"]])
def test_who_reads_may_close_the_output(arguments, cache):
    for at in range(300):  # more than a pipe holds
        disk_cache.write({"problem": f"{at}" * 100}, {"seconds": 1e-6})
    command = [sys.executable, "-m", "einops_fast", "cache", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "command",
    ["explain ij,jk 2,3 3,4", "explain ij 2,3 --json", "cache path", "cache show", "profile --help", "--help"],
)
def test_an_output_that_takes_nothing(command, unbuffered, cache, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)

    def told(redirection):
        shell = f"{sys.executable} -m einops_fast {command} {redirection}"
        done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stderr

    status, error = told(">&-")
    assert (status, error[:43]) == (2, "einops-fast: the standard output is closed;")
    assert told("| true") == (0, "")
    if os.path.exists("/dev/full") and not (unbuffered and "help" in command):  # which argparse prints, or not
        assert told(">/dev/full") == (2, f"einops-fast: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}\n")


def test_prints_what_cannot_be_encoded(cache, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    disk_cache.write({"problem": "ß \ud800"}, {"seconds": 1e-6})
    for arguments in (["cache", "show"], ["explain", "batch ß->batch", "2,3"]):
        done = _run(*arguments)
        assert done.stderr == ""
        assert "\\xdf" in done.stdout
        assert "\\xb5s" in done.stdout


def test_the_help_of_run_names_everything_that_can_be_patched():
    told = " ".join(_run("run", "--help").stdout.split())
    assert all(f"{name} ({function})" in told for name, function in FUNCTIONS.items())
