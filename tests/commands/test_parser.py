"""Completion of shells, and shapes in any spelling."""

import argparse
import re
import subprocess
import sys
from typing import Any

import pytest
from python_process import run_python

from einops_fast.cli import main
from einops_fast.commands.parser import numbers


@pytest.mark.parametrize("text", ["64x100", "64,100", "(64, 100)", "(64,100,)", "64,100,", " 64 x 100 "])
def test_shapes(text: str) -> None:
    assert numbers(text) == (64, 100)
    assert (numbers("(3,)"), numbers("()")) == ((3,), ())


@pytest.mark.parametrize("text", ["64y100", "64x", "x", "64 100", "1.5"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no shape; write 64,100, 64x100"):
        numbers(text)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("torch", ["explain", "ij->ji", "2,3", "--backend", "torch"]),
        ("torch", ["explain", "ij->ji", "2,3", "--device", "h200"]),
        ("torch", ["run", "--patch", "torch", __file__]),
        ("torch", ["fusions", __file__]),
        ("cupy", ["explain", "attention", "bshd", *["2x3x4x8"] * 3, "--backend", "cupy"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:5]),
)
def test_a_framework_that_is_not_installed(name: str, arguments: list[str]) -> None:
    hidden = (
        "import sys, importlib.abc\n"
        "class Hidden(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name.partition('.')[0] == {name!r}:\n"
        f"            raise ModuleNotFoundError('No module named {name}', name={name!r})\n"
        "sys.meta_path.insert(0, Hidden())\n"
        f"from einops_fast.cli import main; sys.exit(main({arguments!r}))"
    )
    done = run_python("-c", hidden, status=2)
    assert done.stderr == f"einops-fast: {name} isn't installed: pip install 'einops_fast[{name}]'\n"


def test_completion_without_shtab(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    assert capsys.readouterr().err == "einops-fast: shtab isn't installed: pip install 'einops_fast[cli]'\n"


def test_completion() -> None:
    pytest.importorskip("shtab")
    script = run_python("-m", "einops_fast", "--print-completion", "bash").stdout
    for word in ("explain", "doctor", "--memory-limit", "--patch", "--quick"):
        assert re.search(rf"['( ]{word}[') ]", script), word
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
