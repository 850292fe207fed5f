"""The listing of kernels, from small files in every format, written by hand as the profilers write them."""

import gzip
import json
import sqlite3
from functools import partial
from importlib.util import find_spec

import pytest

from einops_fast.profiles import frameworks
from einops_fast.profiles.profilers import kernel_table, traces
from einops_fast.profiles.profilers.kernel_table import read_kernels, short_name
from einops_fast.profiles.reporting.records import Note, Row

GEMM, COPY = "void gemm<float, 4>(float*)", "copy_kernel(int, int)"
EXPECTED = {GEMM: pytest.approx(3e-3), COPY: pytest.approx(2e-5)}

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

NSYS_SUMMARY = f"""Processing [report1.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
99.3,3000000,2,1500000.0,1500000.0,1000000,2000000,0.0,"{GEMM}"
0.7,20000,1,20000.0,20000.0,20000,20000,0.0,"{COPY}"
"""

NCU_RAW = f"""==PROF== Connected to process 12
==PROF== Disconnected from process 12
"ID","Process ID","Kernel Name","Block Size","gpu__time_duration.sum","sm__cycles.avg"
"","","","","usecond","cycle"
"0","12","{GEMM}","(128, 1, 1)","1,000.00","5"
"1","12","{GEMM}","(128, 1, 1)","2,000.00","5"
"2","12","{COPY}","(128, 1, 1)","20.00","5"
"""

NCU_DETAILS = f"""==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","{GEMM}","GPU Speed Of Light Throughput","Duration","msecond","3.00"
"0","12","{GEMM}","GPU Speed Of Light Throughput","SM Frequency","cycle/nsecond","1.2"
"1","12","{COPY}","GPU Speed Of Light Throughput","Duration","usecond","20.00"
"""

TEXTS = {
    "torch.json": json.dumps(TORCH_GPU),
    "nsys-summary.csv": NSYS_SUMMARY,
    "ncu-raw.csv": NCU_RAW,
    "ncu-details.csv": NCU_DETAILS,
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
@pytest.mark.parametrize("name", TEXTS)
def test_kernels_of_every_format(name, pack, tmp_path):
    path = tmp_path / name
    path.write_bytes(pack(TEXTS[name].encode()))
    assert read_kernels(path) == EXPECTED


def test_kernels_of_a_database(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, GEMM), (2, COPY)])
        spans = [(0, 1000000, 1), (0, 2000000, 1), (5, 20005, 2)]
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", spans)
    database.close()
    assert read_kernels(path) == EXPECTED
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE StringIds")
    database.close()
    with pytest.raises(ValueError, match="no kernels of CUDA"):
        read_kernels(path)


def test_operators_of_a_cpu_are_told_without_what_they_call(tmp_path):
    def operator(name, start, lasts, thread=1):
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": lasts}

    events = [operator("einsum", 0, 100), operator("bmm", 10, 60), operator("copy_", 75, 5), operator("bmm", 20, 7, 2)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = {name: round(seconds * 1e6) for name, seconds in read_kernels(path).items()}
    assert found == {"einsum": 35, "bmm": 67, "copy_": 5}


def test_beginnings_and_ends_of_mxnet(tmp_path):
    events = [
        {"name": name, "cat": "operator", "ph": kind, "ts": ts, "pid": 0, "tid": 1}
        for name, kind, ts in (("dot", "B", 0), ("dot", "E", 30), ("dot", "B", 50), ("dot", "E", 60), ("copy", "E", 70))
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_kernels(path) == {"dot": pytest.approx(40e-6)}


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
        assert sum(read_kernels(tmp_path / f"{traces.trace_name(row)}.json").values()) > 0


def test_what_cannot_be_watched_was_measured(numpy, torch, tmp_path):
    row = Row("torch", "a", "b", "float32")
    told = traces.watched(row, torch, partial(torch.torch.zeros, -1), str(tmp_path))
    assert [row, "no trace of torch-float32-a-b-forward: RuntimeError"] == [
        record.text[:51] if isinstance(record, Note) else record for record in told
    ]
    assert list(traces.watched(row, numpy, lambda: None, str(tmp_path)))[1] == Note(
        "no traces of numpy: numpy has no profiler of its own"
    )


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Memcpy DtoD (Device -> Device)", "memcpy dtod"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_align1>(cutlass_80::Params)", "cutlass_80_simt_sgemm_align1"),
        ("void at::native::elementwise_kernel<4, at::native::direct_copy_kernel_cuda(at::Base&)>(int, float)", "copy"),
        ("void at::native::reduce_kernel<128, 4, ReduceOp<float, sum_functor<float, float>>>(ReduceOp<float>)", "sum"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int*)", "CatArrayBatchedCopy"),
        ("sm80_xmma_gemm_" + "x" * 100, "sm80_xmma_gemm_" + "x" * 32 + "…"),
    ],
)
def test_kernels_have_short_names(name, short):
    assert short_name(name) == short


def test_kernels_are_told_longest_first_and_once():
    times = {"void f<int>(x)": 0.9, "Memset (Device)": 0.2, "void f<float>(x)": 0.1, "tiny": 0.001}
    assert traces.summary(times) == "f + memset"
    assert traces.summary({}) == ""


# The command


def test_listing(tmp_path, capsys):
    path = tmp_path / "nsys.csv"
    path.write_text(NSYS_SUMMARY)
    assert kernel_table.main([str(path)]) == 0
    head = ["     Time | Kernel", "--------- | ------"]
    assert capsys.readouterr().out.splitlines() == [*head, f" 3.000 ms | {GEMM}", f" 0.020 ms | {COPY}"]
    assert kernel_table.main([str(path), "--short"]) == 0
    assert capsys.readouterr().out.splitlines() == [*head, " 3.000 ms | gemm", " 0.020 ms | copy_kernel"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line of it"),
        ("{", "isn't"),
        ('{"traceEvents": []}', "no kernels"),
        ("Name,Size,Calls\nx,1,2\n", "none of its columns is a time"),
        ('"Kernel Name","sm__cycles.avg"\n"","cycle"\n"k","5"\n', "ncu has to collect gpu__time_duration.sum"),
        ('"Kernel Name","gpu__time_duration.sum"\n"","cycle"\n"k","5"\n', "no unit of time"),
    ],
)
def test_what_is_not_understood_is_told(text, message, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text(text)
    assert kernel_table.main([str(path)]) == 2
    assert message in capsys.readouterr().err
