"""Sections of documents with numbers, each made from kept results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from einops_fast.profiles.contraction.peers import NATIVE
from einops_fast.profiles.contraction.study import BEHIND
from einops_fast.profiles.contraction.study import OURS as EINSUM
from einops_fast.profiles.ops.cases import FAMILIES
from einops_fast.profiles.ops.study import in_order
from einops_fast.profiles.reporting.cells import best_over_ours, megabytes, milliseconds, over_floor, ratio
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result

__all__ = ["SECTIONS", "kept_files"]

GPU, CUPY = "contraction-nvidia-h200", "contraction-cupy-nvidia-h200"
CPU = "contraction-intel-r-xeon-r-processor-threads-2"
HOST, GPU_HOST = "overhead-intel-r-xeon-r-processor-threads-2", "overhead-nvidia-h200"
ISSUE = "einsum-amd-epyc-threads-{}"

OURS = "ours"
"""What ours is called in the studies of attention and of the operators."""

NAMES = {"numpy": "NumPy", "torch": "torch", "mxnet": "MXNet", "cupy": "CuPy"}

ON_GPU = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32 (no TF32)"}
"""What each dtype that is measured there is called."""

FLOORED = {
    EINSUM: "`fast_einsum`",
    "compile": "`torch.compile`",
    "opt_einsum": "opt_einsum on torch",
    NATIVE: "`torch.einsum`",
    "cupy": "`cupy.einsum`",
}

NONE = "No result is kept yet"


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


def _on_gpu(dtype: str, what: str, backward: bool = False) -> dict[str, Row]:
    return _right(_kept(GPU).measured, dtype=dtype, what=what, backward=backward)


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


def _engine() -> str:
    """Tell how far ours is from the floor and from the best of the others, per dtype."""
    heads = (
        "cases",
        "time over floor, geometric mean",
        "the worst",
        "time over that of the best other, geometric mean",
        f"over {BEHIND - 1:.0%} behind it",
    )
    columns = []
    for dtype in ON_GPU:
        ours = _on_gpu(dtype, EINSUM)
        floors = {case: value for case, row in ours.items() if (value := over_floor(row)) is not None}
        best = {case: row.to_best for case, row in ours.items() if row.to_best is not None}
        worst = max(floors, key=lambda case: floors[case])
        slower = [case for case in sorted(best, key=lambda case: -best[case]) if best[case] > BEHIND]
        columns.append(
            (
                str(len(ours)),
                f"{geomean(floors.values()):.2f}",
                f"{floors[worst]:.2f} (`{worst}`)",
                f"{geomean(best.values()):.2f}",
                ", ".join(f"`{case}` ({best[case]:.2f})" for case in slower) or "none",
            )
        )
    return markdown_table(("", *ON_GPU.values()), list(zip(heads, *columns, strict=True)))


def _backward() -> str:
    """Tell the gradients of the cases that models are trained through."""
    found = {dtype: _on_gpu(dtype, EINSUM, backward=True) for dtype in ON_GPU}
    half, brain, single = (geomean(1 / value for value in _speedups(rows).values()) for rows in found.values())
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return (
        f"Forward and backward of the {words[len(found['float16'])]} cases that are like attention take {half:.2f} of"
        f" the time of `torch.einsum` in float16, {brain:.2f}\nin bfloat16, {single:.2f} in float32."
    )


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


def _ops_in_short() -> str:
    """Tell per device and dtype how far ours is ahead of the best peer, and losses and layers against torch's own."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for result in map(read_result, kept_files("ops")):
        for row in result.measured:
            groups.setdefault((result.device, row.dtype), []).append(row)
    texts = [_ops_in_short_of(device, dtype, rows) for (device, dtype), rows in groups.items()]
    return "\n\n".join(texts) or f"{NONE}: `python -m einops_fast.profiles ops` measures."


def _ops_in_short_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    ours = [row for row in in_order(rows) if row.what == OURS and row.seconds]
    forward, both = ([row for row in ours if row.backward is backward] for backward in (False, True))
    ahead = [geomean(1 / row.to_best for row in some if row.to_best) for some in (forward, both)]
    text = (
        f"{device}, {dtype}: {ahead[0]:.2f} times as fast as the best of the others forward, and {ahead[1]:.2f} times "
        f"forward and backward, in the geometric mean of {len(forward)} and {len(both)} cases. Forward and backward:"
    )
    shown = [case.name for family in ("losses", "layers") for case in FAMILIES[family]]
    native = _right(rows, what="native", backward=True)
    cells = [
        (
            f"`{row.case}`",
            milliseconds(native[row.case].seconds),
            milliseconds(row.seconds),
            ratio(row.speedup),
            megabytes(native[row.case]),
            megabytes(row),
        )
        for row in both
        if row.case in shown and row.case in native
    ]
    head = ("case", "torch ms", "ours ms", "torch / ours", "torch peak MB", "ours peak MB")
    return f"{text}\n\n{markdown_table(head, cells)}" if cells else text


def _plots(study: str) -> str:
    """List the plots that lie beside the kept results of a study."""
    names = [path.name for file in kept_files(study) for path in sorted(RESULTS.glob(f"{file.stem}-*.svg"))]
    images = [f"![{name.removesuffix('.svg')}]({name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images) or f"{NONE}."


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
    "engine": _engine,
    "backward": _backward,
    "overhead": _overhead,
    "attention-plots": partial(_plots, "attention"),
    "ops-in-short": _ops_in_short,
    "ops-plots": partial(_plots, "ops"),
    "results": _results,
    "files": _files,
}
"""What makes each section, by name."""
