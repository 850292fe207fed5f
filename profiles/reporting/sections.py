"""Sections of documents with numbers, each made from kept results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from einops_fast.profiles.reporting.cells import (
    BEHIND,
    RATIOS,
    best_over_ours,
    megabytes,
    milliseconds,
    over_floor,
    ratio,
)
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result
from einops_fast.profiles.studies import STUDIES

__all__ = ["SECTIONS", "kept_files"]

GPU, CUPY = "contraction-nvidia-h200", "contraction-cupy-nvidia-h200"
CPU = "contraction-intel-r-xeon-r-processor-threads-2"
HOST, GPU_HOST = "overhead-intel-r-xeon-r-processor-threads-2", "overhead-nvidia-h200"
ISSUE = "einsum-amd-epyc-threads-{}"

EINSUM, OURS = "fast_einsum", "ours"
"""What ours is called in the studies of einsum, and in those of attention and of the operators."""

NAMES = {"numpy": "NumPy", "torch": "torch", "mxnet": "MXNet", "cupy": "CuPy"}

ON_GPU = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32 (no TF32)"}
"""What each dtype that is measured there is called."""

FLOORED = {
    EINSUM: "`fast_einsum`",
    "compile": "`torch.compile`",
    "opt_einsum": "opt_einsum on torch",
    "native": "`torch.einsum`",
    "cupy": "`cupy.einsum`",
}


def kept_files(study: str) -> list[Path]:
    """The kept results of a study, those of single families too."""
    return [path for path in sorted(RESULTS.glob(f"{study}-*.json")) if not path.stem.endswith("-partial")]


def _kept(name: str) -> Result:
    return read_result(RESULTS / f"{name}.json")


def _right(rows: Iterable[Row], **wanted: object) -> dict[str, Row]:
    """Return the rows with these values by case, without those that failed."""
    return {
        row.case: row
        for row in rows
        if row.seconds is not None and all(getattr(row, name) == value for name, value in wanted.items())
    }


def _digits(value: float, decimals: int | None = None) -> str:
    """Tell a ratio with three digits, and without zeros at its end that say nothing."""
    return f"{value:.{decimals}f}" if decimals is not None else f"{float(f'{value:.3g}'):g}"


# The three problems


def _issue() -> str:
    result = _kept(ISSUE.format(1))
    head = (
        "framework",
        "problem",
        "native einsum",
        "best by hand",
        "`fast_einsum`",
        "patched native call",
        "native / `fast_einsum`",
    )
    cells = []
    for framework in ("mxnet", "torch", "numpy"):
        ways = {
            what: _right(result.measured, framework=framework, what=what, backward=False)
            for what in ("einsum", "no_einsum", EINSUM, "patched")
        }
        for case, native in ways["einsum"].items():
            found = [rows[case].seconds for rows in ways.values()]
            times = [_three_digits(seconds * 1e3) for seconds in found if seconds is not None]
            problem = f"{case.removeprefix('mx')} `{native.equation}`"
            cells.append((_versioned(result, framework), problem, *times, _digits(ways[EINSUM][case].speedup or 0.0)))
    return markdown_table(head, cells)


def _issue_on_two_threads() -> str:
    ours = _right(_kept(ISSUE.format(2)).measured, framework="mxnet", what=EINSUM, backward=False)
    *others, last = (_digits(row.speedup or 0.0) for row in ours.values())
    told = f"{', '.join(others)} and {last}"
    return f"With two threads MXNet's own einsum gets faster by almost two and the ratios are {told}."


def _versioned(result: Result, framework: str) -> str:
    """Return ``torch 2.13`` of ``2.13.0+cpu``; a pre-release in full."""
    # MXNet calls itself otherwise than its wheel is called.
    version = result.versions[framework].partition("+")[0].replace("beta", "b")
    short = version if re.search("[a-z]", version) else ".".join(version.split(".")[:2])
    return f"{NAMES[framework]} {short}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# Many contractions


def _floors() -> str:
    """Tell the time over the floor of all implementations, in the cases of two operands."""
    rows = [row for row in _kept(GPU).measured if row.equation.count(",") == 1]
    cells = []
    for dtype, told in ON_GPU.items():
        ratios = []
        for what in FLOORED:
            found = _right(rows, dtype=dtype, what=what, backward=False).values()
            ratios.append([value for row in found if (value := over_floor(row)) is not None])
        values = (geomean(each) if each else None for each in ratios)
        cells.append((told, *("–" if value is None else _digits(value, 2 if value < 10 else 1) for value in values)))
    return markdown_table(("", *FLOORED.values()), cells)


def _means(study: str) -> str:
    """Tell per kept result, dtype and direction how far ours is from the floor, the best other and the native call."""
    cells = []
    for path in kept_files(study):
        for table in STUDIES[study].tables(read_result(path).measured):
            means, behind = table.figures["geomean"], table.figures["behind"]
            told = (f"{means[name]:.2f}" if name in means else "–" for name in RATIOS)
            worst = min(behind, key=lambda case: behind[case], default=None)
            last = "none" if worst is None else f"{len(behind)}, `{worst}` most ({behind[worst]:.2f})"
            cells.append((path.stem, table.title.partition(": ")[2], str(len(table.cells)), *told, last))
    return markdown_table(("result", "measured", "cases", *RATIOS, f"over {BEHIND - 1:.0%} behind the best"), cells)


# The host


def _overhead() -> str:
    head = ("", "native einsum", "the bare GEMM call", "`fast_einsum`", "`contract_expression`", "first call")
    places = (
        ("NumPy", HOST, "numpy", "np.matmul"),
        ("torch, CPU", HOST, "torch", "torch.bmm"),
        ("torch, CUDA (H200 host)", GPU_HOST, "torch", "torch.bmm"),
        ("MXNet", HOST, "mxnet", "npx.batch_dot"),
    )
    cells = []
    for where, name, framework, product in places:
        rows = {(row.case, row.what): row.seconds for row in _kept(name).measured if row.framework == framework}
        keys = [("tiny", what) for what in (f"{framework}.einsum", product, EINSUM, "contract_expression")]
        times = [rows[key] for key in (*keys, ("first call", EINSUM))]
        cells.append((where, *("–" if seconds is None else f"{seconds * 1e6:.1f}" for seconds in times)))
    return markdown_table(head, cells)


# Operators and attention


def _losses() -> str:
    """Tell losses and layers of models, forward and backward, beside torch's own."""
    shown = [case.name for family in ("losses", "layers") for case in STUDIES["ops"].families[family]]
    cells = []
    for result in map(read_result, kept_files("ops")):
        for dtype in dict.fromkeys(row.dtype for row in result.measured):
            native, ours = (_right(result.measured, dtype=dtype, what=what, backward=True) for what in ("native", OURS))
            for case in shown:
                if case in ours and case in native:
                    both = native[case], ours[case]
                    times = (milliseconds(row.seconds) for row in both)
                    peaks = (megabytes(row.peak_bytes) for row in both)
                    cells.append((f"`{case}`", dtype, *times, ratio(ours[case].speedup), *peaks))
    return markdown_table(
        ("case", "dtype", "torch ms", "ours ms", "torch / ours", "torch peak MB", "ours peak MB"), cells
    )


def _plots(study: str) -> str:
    """List the plots that lie beside the kept results of a study."""
    names = [path.name for file in kept_files(study) for path in sorted(RESULTS.glob(f"{file.stem}-*.svg"))]
    images = [f"![{name.removesuffix('.svg')}]({name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images)


# All results


def _results() -> str:
    """Tell the time of the others over ours, per operation, framework, device and dtype."""
    cells = [
        (what, against, f"{geomean(values.values()):.2f}", _end(values, min), _end(values, max))
        for what, against, values in _ratios()
    ]
    return markdown_table(("what", "against", "geometric mean", "worst", "best"), cells)


def _end(values: Mapping[str, float], pick: Callable[..., str]) -> str:
    case = pick(values, key=lambda case: values[case])
    return f"{_digits(values[case], 1 if values[case] >= 3.95 else 2)} (`{case}`)"


def _ratios() -> Iterable[tuple[str, str, dict[str, float]]]:
    """Yield for each line of the table what it is about, and the ratio of every case."""

    def speedups(name: str, framework: str, **wanted: str) -> dict[str, float]:
        return _speedups(_right(_kept(name).measured, framework=framework, what=EINSUM, backward=False, **wanted))

    yield "MXNet, one CPU thread, float32", "`mx.np.einsum`", speedups(ISSUE.format(1), "mxnet")
    yield "NumPy, 2 CPU threads, float32", "the better of `np.einsum(optimize=True)` and opt_einsum", _over_best()
    for dtype in ("float32", "bfloat16"):
        yield f"torch, 2 CPU threads, {dtype}", "`torch.einsum`", speedups(CPU, "torch", dtype=dtype)
    for dtype, told in ON_GPU.items():
        yield f"torch, GPU, {told}", "`torch.einsum`", speedups(GPU, "torch", dtype=dtype)
    for dtype in ("float16", "float32"):
        yield f"CuPy, GPU, {ON_GPU[dtype]}", "`cupy.einsum`", speedups(CUPY, "cupy", dtype=dtype)
    for study, name, against in (
        ("attention", "attention", "the best of cuDNN, FlashAttention, FlexAttention and others"),
        ("ops", "fused layers", "the best of torch, `torch.compile`, Liger-Kernel and QuACK"),
    ):
        rows = [row for path in kept_files(study) for row in read_result(path).measured]
        for backward, told in ((False, "forward"), (True, "forward and backward")):
            ours = _right(rows, what=OURS, dtype="bfloat16", backward=backward)
            ratios = {case: value for case, row in ours.items() if (value := best_over_ours(row)) is not None}
            yield f"{name}, GPU, bfloat16, {told}", against, ratios


def _speedups(ours: Mapping[str, Row]) -> dict[str, float]:
    return {case: row.speedup for case, row in ours.items() if row.speedup is not None}


def _over_best() -> dict[str, float]:
    """Return by case the time of the fastest of the others over that of ours, of NumPy on a CPU."""
    rows = [row for row in _kept(CPU).measured if row.framework == "numpy" and not row.backward and row.seconds]
    others: dict[str, float] = {}
    for row in rows:
        if row.what != EINSUM:
            others[row.case] = min(others.get(row.case, row.seconds or 0.0), row.seconds or 0.0)
    ours = _right(rows, what=EINSUM)
    return {case: others[case] / row.seconds for case, row in ours.items() if row.seconds and case in others}


def _files() -> str:
    """List every kept result: what it is of, where and when."""
    results = [(path.stem, read_result(path)) for path in kept_files("*")]
    cells = [(f"[{stem}]({stem}.md)", result.study, result.device, result.date) for stem, result in results]
    return markdown_table(("file", "study", "device", "date"), cells)


SECTIONS: dict[str, Callable[[], str]] = {
    "issue": _issue,
    "issue-on-two-threads": _issue_on_two_threads,
    "floors": _floors,
    "contraction-means": partial(_means, "contraction"),
    "overhead": _overhead,
    "attention-plots": partial(_plots, "attention"),
    "attention-means": partial(_means, "attention"),
    "ops-means": partial(_means, "ops"),
    "ops-losses": _losses,
    "ops-plots": partial(_plots, "ops"),
    "results": _results,
    "files": _files,
}
"""What makes each section, by name."""
