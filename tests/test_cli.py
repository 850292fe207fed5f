"""The command line, as a process: what a script sees, exit codes, plans."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from einops_fast.cli import main

ROOT = Path(__file__).parents[1]

SCRIPT = """
import atexit
import sys
import numpy as np
from neighbour import VALUE

class Mine:
    pass

if __name__ == "__main__":
    assert sys.modules["__main__"].Mine is Mine
    patched = hasattr(np.einsum.__wrapped__, "__wrapped__")
    assert np.einsum("ij,jk", np.ones((2, 3)), np.ones((3, 4))).shape == (2, 4)
    print(sys.argv[1:], sys.path[0], VALUE, patched)
    atexit.register(lambda: print(Mine.__name__))
    if "fail" in sys.argv:
        sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("VALUE = 5\n")
    return tmp_path


def _run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "einops_fast", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("separator", [["--"], []], ids=["with --", "without --"])
def test_runs_a_script_as_python_does(folder, separator):
    script = folder / "script.py"
    arguments = ["--patch", "x", "--", "-m"]
    done = _run("run", "--patch", "numpy", *separator, str(script), *arguments, cwd=folder.parent)
    assert done.stderr == ""
    assert done.stdout == f"{arguments} {folder} 5 True\nMine\n"
    plain = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    assert plain.stdout == done.stdout.replace("True", "False")


def test_runs_a_module_as_python_does(folder):
    arguments = ["--patch", "x", "--", "-h"]
    done = _run("run", "--patch", "numpy", "-m", "script", *arguments, cwd=folder)
    assert done.stderr == ""
    assert done.stdout == f"{arguments} {folder} 5 True\nMine\n"


def test_exits_as_the_script_does(folder):
    done = _run("run", "--patch", "numpy", str(folder / "script.py"), "fail")
    assert done.returncode == 3
    (folder / "broken.py").write_text("1 / 0\n")
    done = _run("run", "--patch", "numpy", str(folder / "broken.py"))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_an_error_of_ours_in_a_script_is_the_script_s(folder):
    (folder / "broken.py").write_text("from einops_fast import fast_einsum\nfast_einsum('i->i', [[1]])\n")
    done = _run("run", "--patch", "numpy", str(folder / "broken.py"))
    assert done.returncode == 1
    assert "broken.py" in done.stderr


def test_patches_several_frameworks(folder):
    pytest.importorskip("torch")
    (folder / "both.py").write_text("import numpy, torch\nprint(torch.einsum.__wrapped__.__name__)\n")
    assert _run("run", "--patch", "numpy, torch", str(folder / "both.py")).stdout == "einsum\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--patch", "numpy", "missing.py"], "no file 'missing.py'"),
        (["--patch", "jax", "setup.cfg"], "'jax'"),
        (["--patch", "numpy"], "what shall be run"),
        (["--patch", "numpy", "-m"], "what shall be run"),
        (["--patch", ",", "script.py"], "at least one framework"),
        (["script.py"], "--patch"),
    ],
)
def test_says_what_is_wrong(arguments, message):
    done = _run("run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_explains(capsys):
    assert main(["explain", "bind,bjnd->bnij", "2,3,4,5", "2,6,4,5", "--dtype", "float64"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("bind,bjnd->bnij\n")
    assert "float64" in printed
    assert "b=2" in printed


def test_explains_in_json(capsys):
    assert main(["explain", "ij,jk,k,->i", "(2, 3)", "3,4", "4", "", "--optimize", "false", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [operand["shape"] for operand in plan["operands"]] == [[2, 3], [3, 4], [4], []]
    assert plan["path"][0] == [0, 1]
    assert main(["explain", ",i->i", "()", "(3,)", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [operand["shape"] for operand in plan["operands"]] == [[], [3]]


def test_explains_without_another_framework():
    script = (
        "import sys; from einops_fast.cli import main; main(['explain', 'ij,jk', '2,3', '3,4'])\n"
        "print({'torch', 'mxnet', 'cupy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ij,jk", "2,3", "4,5"], "'j' has size"),
        (["ij,jk->iz", "2,3", "3,4"], "'z'"),
        (["ij,jk,kl", "2,3", "3,4", "4,5", "--optimize", "nonsense"], "nonsense"),
    ],
)
def test_an_einsum_that_cannot_be_explained(arguments, message, capsys):
    assert main(["explain", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("einops-fast: ")
    assert message in printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ij,jk", "2,x", "3,4"],
        ["ij,jk"],
        ["ij", "2,3", "--dtype", "nonsense"],
        ["ij", "2,3", "--backend", "nonsense"],
    ],
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["explain", *arguments])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("usage: einops-fast explain")
