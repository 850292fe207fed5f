"""`einops-fast tune` and `einops-fast cache import`, without a GPU: kernels are compiled for one that isn't here."""

from concurrent.futures import Future
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from python_process import run_python
from recorded_calls import attention_call, einsum_call, layout, operator_call, written

from einops_fast.backends.absent_gpu import absent_gpu
from einops_fast.backends.capabilities import GENERATIONS
from einops_fast.cli import main
from einops_fast.tune import bundle, command

pytest.importorskip("torch")
import triton

SOFTMAX = operator_call("softmax", [layout(64, 128), None], 1, False, None, 0, 1.0, None)

linked = pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and find_library("cuda") is None, reason="needs the driver's library"
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, bundle):
        monkeypatch.setattr(module, "gpu_properties", lambda: ())


def test_the_list_says_what_is_tuned_for_and_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = SOFTMAX, SOFTMAX._replace(device="cpu"), SOFTMAX._replace(backend="cupy")
    path = str(written(tmp_path / "calls.csv", *calls))
    assert main(["tune", path, "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("softmax of 64×128 –") == 3
    assert [listed.count(words) for words in ("yes", "no: it ran on cpu", "no: its arrays are of cupy")] == [1, 1, 1]
    assert main(["tune", path, "--list", "--device", "sm_90"]) == 0
    assert capsys.readouterr().out.count("yes") == 2


@pytest.mark.parametrize(
    ("device", "backend", "interpret", "words"),
    [
        ("", "torch", "0", "there is no NVIDIA GPU here to measure on; --device sm_90, say, compiles for one without"),
        ("cuda:1", "torch", "0", "there is no NVIDIA GPU here"),
        ("sm_75", "torch", "0", "kernels are compiled for sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, not for 'sm_75'"),
        ("sm_90", "torch", "1", "TRITON_INTERPRET is set, and then no kernel is compiled"),
        (
            "sm_90",
            "mxnet",
            "0",
            "none of the 1 calls can be tuned for: its arrays are of mxnet, and only torch's calls",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    backend: str,
    interpret: str,
    words: str,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    path = written(tmp_path / "calls.csv", SOFTMAX._replace(backend=backend))
    assert main(["tune", str(path), "--device", device]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_every_generation_has_a_gpu_that_stands_for_it() -> None:
    gpus = [absent_gpu(f"sm_{major}{minor}") for major, minor in GENERATIONS]
    assert [gpu.capability for gpu in gpus] == [*GENERATIONS]
    assert [gpu.limits[0] >> 10 for gpu in gpus] == [163, 99, 99, 227, 227, 99]


FOUND = """
import os
import sys

from triton.backends.nvidia.compiler import CUDABackend

from einops_fast.backends.absent_gpu import absent_gpu
from einops_fast.tune.absent import at_absent, launches_of
from recorded_calls import layout, operator_call

def refuse(*given):
    raise RuntimeError("compiled again")

CUDABackend.make_cubin = refuse
gpu = absent_gpu("sm_90")
call = operator_call("softmax", [layout(64, 128), None], 1, False, None, 0, 1.0, None)
for folder in sys.argv[1:]:
    os.environ["TRITON_CACHE_DIR"] = folder
    with at_absent(gpu):
        for launches in launches_of(call):
            for each in launches:
                try:
                    each.compile()
                    print("found")
                except RuntimeError as error:
                    print(error)
"""


@linked
def test_kernels_are_compiled_packed_and_found_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    path = written(
        tmp_path / "calls.csv", SOFTMAX, operator_call("dance", [layout(3)]), SOFTMAX._replace(backend="cupy")
    )
    out = tmp_path / "bundle.zip"
    done = run_python("-m", "einops_fast", "tune", path, "--device", "sm_90", "--out", out)
    assert done.stdout == "tuned for 1 kinds of calls, and left out 2\n"
    assert "compiled 2 of 2" in done.stderr
    assert "left out dance of 3: EinsumError: there is no operator 'dance' of torch's tensors" in done.stderr
    caches = {"TRITON_CACHE_DIR": tmp_path / "triton", "EINOPS_FAST_CACHE_DIR": tmp_path / "choices"}
    done = run_python("-m", "einops_fast", "cache", "import", out, **caches)
    assert done.stdout == "took over 2 kernels and 0 choices\n"
    tried = run_python("-c", FOUND, tmp_path / "empty", tmp_path / "triton").stdout.splitlines()
    assert tried == ["compiled again"] * 2 + ["found"] * 2


def test_a_call_is_left_out_if_none_of_its_ways_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from einops_fast.tune import absent

    def compiled(launches: Any) -> Future[None]:
        future, name = Future[None](), launches[0].source[1]
        future.set_result(None) if name == "fine" else future.set_exception(RuntimeError(f"{name}\nat length"))
        return future

    ways = {"both": ["fine", "wide"], "none": ["wide", "wider"], "same": ["fine"]}
    listed = lambda call: [[SimpleNamespace(source=(call.what, name))] for name in ways[call.what]]  # noqa: E731
    monkeypatch.setattr(absent, "launches_of", listed)
    monkeypatch.setattr(absent, "compile_elsewhere", compiled)
    monkeypatch.setattr(absent.background, "take_all_processors", lambda: None)
    calls = [operator_call(what, [layout(3)]) for what in ways]
    ((call, why),) = absent.tune_absent(calls, absent_gpu("sm_90"), lambda *told: None)
    assert call == calls[1]
    assert why in ("RuntimeError: wide", "RuntimeError: wider")  # whichever was first


LISTED = """
import sys

from einops_fast.backends.absent_gpu import absent_gpu
from einops_fast.tune.absent import at_absent, launches_of
from einops_fast.tune.recorded import read_calls

for text in ("sm_80", "sm_90"):
    gpu = absent_gpu(text)
    with at_absent(gpu):
        for call in read_calls(sys.argv[1]):
            ways = list(launches_of(call))
            kernels = sorted({each.call.function.__name__ for launches in ways for each in launches})
            print(text, call.kind, len(ways) > 1, *kernels)
"""


@linked
def test_all_that_a_call_may_launch_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    x, weight = layout(256, 1024, gradient=True), layout(1024, gradient=True)
    calls = (
        einsum_call("bihd,bjhd->bhij", *[layout(2, 512, 8, 64)] * 2),
        einsum_call("bnd,bn->bd", layout(16, 600, 512, dtype="float32"), layout(16, 600, dtype="float32"), order="C"),
        operator_call("norm", [x, weight, None], 1, 1, 1e-5, False),
        attention_call(*[layout(2, 300, 4, 64, gradient=True)] * 3),
    )
    done = run_python("-c", LISTED, written(tmp_path / "calls.csv", *calls), TRITON_CACHE_DIR=tmp_path)
    assert done.stdout.splitlines() == [
        "sm_80 einsum True contract_kernel",
        "sm_80 einsum True reduce_kernel",
        "sm_80 operator True column_sums_kernel norm_gradient_kernel norm_kernel",
        "sm_80 attention False delta_kernel forward_kernel keys_kernel queries_kernel",
        "sm_90 einsum True box_kernel contract_kernel",
        "sm_90 einsum True reduce_kernel",
        "sm_90 operator True column_sums_kernel norm_gradient_kernel norm_kernel",
        "sm_90 attention False delta_kernel hopper_kernel hopper_keys_kernel hopper_queries_kernel",
    ]
