"""Kernels are read from traces, as small ones written by hand show, and those that profilers write."""

import json
from functools import partial
from importlib.util import find_spec

import pytest

from einops_fast.profiles import frameworks
from einops_fast.profiles.profilers import traces
from einops_fast.profiles.reporting.records import Row

GEMM, COPY = "void gemm<float, 4>(float*)", "copy_kernel(int, int)"

TORCH_GPU = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::bmm", "pid": 1, "tid": 1, "ts": 0, "dur": 9000},
        {"ph": "X", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": 10, "dur": 1000},
        {"ph": "X", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": 2010, "dur": 2000},
        {"ph": "X", "cat": "kernel", "name": COPY, "pid": 0, "tid": 7, "ts": 5000, "dur": 20},
    ],
}


def kernels_of(tmp_path, trace):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    return traces.read_kernels(path)


def test_kernels_of_a_gpu(tmp_path):
    assert kernels_of(tmp_path, TORCH_GPU) == {GEMM: pytest.approx(3e-3), COPY: pytest.approx(2e-5)}


def test_beginnings_and_ends_of_mxnet(tmp_path):
    events = [
        {"name": name, "cat": "operator", "ph": kind, "ts": ts, "pid": 0, "tid": 1}
        for name, kind, ts in (("dot", "B", 0), ("dot", "E", 30), ("dot", "B", 50), ("dot", "E", 60), ("copy", "E", 70))
    ]
    assert kernels_of(tmp_path, {"traceEvents": events}) == {"dot": pytest.approx(40e-6)}


@pytest.mark.parametrize("name", ["torch", "mxnet"])
def test_our_own_traces_are_read(name, tmp_path):
    if find_spec(name) is None:
        pytest.skip(f"{name} isn't installed")
    framework = frameworks.load(name, "cpu", 1)
    left, right = framework.normal([(4, 64, 64)] * 2, "float32", 0)
    row = Row(name, "square", "matmul", "float32", seconds=1e-4)
    # The second of MXNet's traces is written in another way than the first.
    for _ in range(2):
        seen, note = traces.watched(row, framework, partial(framework.matmul, left, right), str(tmp_path))
        assert note.text.startswith("wrote ")
        assert any("bmm" in kernel or "batch_dot" in kernel for kernel in seen.kernel_seconds)
        assert all(seconds > 0 for seconds in seen.kernel_seconds.values())
        assert sum(traces.read_kernels(tmp_path / f"{traces.trace_name(row)}.json").values()) > 0
