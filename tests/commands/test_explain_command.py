"""``einops-fast explain``, completion of shells, shapes in any spelling, and JSON of every command."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip
from python_process import run_python

from einops_fast import explain, explain_attention
from einops_fast.backends import registered
from einops_fast.backends.absent_gpu import absent_gpu, aiming
from einops_fast.cli import _parser, main
from einops_fast.commands.parser import numbers
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.profiles.__main__ import parser_of
from einops_fast.runtime import disk_cache

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_strides(backend: str, capsys: Capture) -> None:
    pytest.importorskip(backend)
    shapes = ["4x5x6", "5x4x7"]
    asked = ["explain", "bij,ibk->bjk", *shapes, "--backend", backend, "--json"]
    plan = json.loads(told(capsys, *asked, "--strides", "1,24,4", "28x7x1"))
    assert [operand["strides"] for operand in plan["operands"]] == [[1, 24, 4], [28, 7, 1]]
    first = np.ones((5, 6, 4)).transpose(2, 0, 1)
    assert first.strides == (8, 192, 32)
    expected = explain("bij,ibk->bjk", first, np.ones((5, 4, 7)))
    if backend == "numpy":
        assert [step["kind"] for step in plan["steps"]] == [step.kind for step in expected.steps]
    assert json.loads(told(capsys, *asked))["operands"][0]["strides"] == [30, 6, 1]


def test_an_equation_that_a_shell_has_cut(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "ij,jk-", "2x3", "3x4"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "'ij,jk-' ends in '-': write it in quotes" in line


class TestAbsentGpu:
    torch = pytest.importorskip("torch")

    def test_a_plan_for_it(self, capsys: Capture) -> None:
        asked = ["explain", "bihd,bjhd->bhij", "2x128x8x64", "2x128x8x64", "--dtype", "bfloat16"]
        here = json.loads(told(capsys, *asked, "--backend", "torch", "--json"))
        there = json.loads(told(capsys, *asked, "--device", "h200", "--json"))
        assert (there["device"], there["rates"]) == ("H200", "known of this device")
        assert [step["kind"] for step in there["steps"]] == ["fused"], "by kernels that this machine has no use for"
        assert here["device"] == "meta"
        assert there["predicted_seconds"] < here["predicted_seconds"]
        assert "\ntimes by rates known of this device" in told(capsys, *asked, "--device", "sm_90")
        assert "rates known of the A100" in told(capsys, *asked, "--device", "b200")

    def test_the_slower_one_takes_longer(self, capsys: Capture) -> None:
        for asked in (["ij,jk->ik", "4096x4096", "4096x4096"], ["attention", "bshd", *["8x4096x16x128"] * 3]):
            times = [
                json.loads(told(capsys, "explain", *asked, "--dtype", "float16", "--device", name, "--json"))
                for name in ("a100", "H100")
            ]
            assert times[0]["predicted_seconds"] > times[1]["predicted_seconds"]

    def test_within_a_memory_limit(self, capsys: Capture) -> None:
        chain = ["ij,jk,kl->il", "400x300", "300x500", "500x200", "--memory-limit", "500kB", "--device", "a100"]
        assert "pieces (" in told(capsys, "explain", *chain)

    def test_only_tensors_without_memory_are_planned_for_it(self) -> None:
        x = self.torch.ones(3, 4)
        with aiming(absent_gpu("h100")):
            assert explain("ij,kj->ik", x, x).plan.target.device == "cpu"
            assert explain("ij,kj->ik", x.to("meta"), x.to("meta")).plan.target.device == "H100"
        assert explain("ij,kj->ik", x.to("meta"), x.to("meta")).plan.target.device == "meta"

    def test_attention_by_its_own_implementations(self, capsys: Capture) -> None:
        asked = ["explain", "attention", "b i h d, b j h d, b j h e -> b i h e", *["2x128x8x64"] * 3, "causal=True"]
        found = json.loads(told(capsys, *asked, "--dtype", "bfloat16", "--device", "h200", "--json"))
        assert found["device"] == "H200"
        assert found["attention"]["causal"] is True
        assert found["implementation"] == min(found["predicted"], key=found["predicted"].get) != "math"
        assert found["answers"]["cudnn"] == "can"
        old = json.loads(told(capsys, *asked, "--dtype", "bfloat16", "--device", "a100", "--json"))
        assert old["answers"]["cudnn"] == "can"


def test_explains_attention(capsys: Capture) -> None:
    pattern, shapes = "b i h d, b j g d, b j g e -> b i h e", ["2x5x8x16", "2x7x4x16", "2x7x4x32"]
    options = ["causal=bottom_right", "window=(3, None)", "bias=8x5x7", "--dtype", "float64"]
    q, k, v = (np.ones([int(size) for size in shape.split("x")]) for shape in shapes)
    expected = explain_attention(pattern, q, k, v, causal="bottom_right", window=(3, None), bias=np.ones((8, 5, 7)))
    assert told(capsys, "explain", "attention", pattern, *shapes, *options) == f"{expected}\n"
    assert told(capsys, "explain", "attention", *options[3:], pattern, *shapes, *options[:3]) == f"{expected}\n"
    assert told(capsys, "explain", "attention", pattern, *shapes, *options[3:], *options[:3]) == f"{expected}\n"
    by_layout = explain_attention(q, k, k, layout="bshd")
    assert (
        told(capsys, "explain", "attention", "bshd", *shapes[:2], shapes[1], "--dtype", "float64") == f"{by_layout}\n"
    )


@pytest.mark.parametrize(
    ("terminal", "no_color", "rich"), [(True, "", True), (True, "1", True), (False, "", True), (True, "", False)]
)
def test_colours_on_a_terminal_alone(
    terminal: bool, no_color: str, rich: bool, capsys: Capture, monkeypatch: Any
) -> None:
    if rich:
        pytest.importorskip("rich")
    for name in () if rich else ("rich", "rich.console", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, value in (("NO_COLOR", no_color), ("TERM", "xterm-256color"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    arguments = ["explain", "bij,bkj->bik", "4x5x6", "4x7x6"]
    plain = told(capsys, *arguments)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    shown = told(capsys, *arguments)
    assert ("\x1b[" in shown) == (terminal and rich and not no_color)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain


def test_json_of_the_cache(capsys: Capture, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    disk_cache.write({"problem": "i,i->"}, {"seconds": 1e-6})
    assert json.loads(told(capsys, "cache", "path", "--json")) == {"path": str(tmp_path)}
    cleared = {"removed": 1, "path": str(tmp_path), "troubles": []}
    assert json.loads(told(capsys, "cache", "clear", "--json")) == cleared


def test_json_of_programs() -> None:
    from python_process import run_python

    code = "import numpy as np; np.einsum('ij,jk->ik', np.ones((99, 99)), np.ones((99, 99)))"
    done = run_python("-m", "einops_fast", "run", "--patch", "numpy", "--profile", "--json", "-c", code)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["rows"][0]["equation"] == "ij,jk->ik"


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of commands that have none below them."""
    below = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield parser
    for choices in below:
        for each in choices.values():
            yield from commands_of(each)


def test_every_command_has_json() -> None:
    parsers = [*commands_of(_parser([parser_of("einops-fast profile")]))]
    assert {"einops-fast profile", "einops-fast cache show"} <= {parser.prog for parser in parsers}
    assert [parser.prog for parser in parsers if "--json" not in parser.format_help()] == []


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


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("backend", registered())
def test_explains_each_dtype_or_says_that_there_is_none(backend, capsys):
    mxnet_or_skip() if backend == "mxnet" else pytest.importorskip(backend)
    for dtype in ITEM_SIZES:
        status = main(["explain", "ij,jk", "2,3", "3,4", "--backend", backend, "--dtype", dtype])
        printed = capsys.readouterr()
        if status:
            assert (status, printed.err) == (2, f"einops-fast: {backend} has no dtype {dtype!r}\n")
        else:
            assert f"on {backend} (" in printed.out
