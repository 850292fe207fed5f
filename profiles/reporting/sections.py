"""Sections of documents with numbers, each made from kept results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from einops_fast.profiles.reporting.cells import (
    RATIOS,
    best_over_ours,
    over_floor,
    speedup,
)
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result
from einops_fast.profiles.studies import STUDIES

GPU, CUPY = "contraction-nvidia-h200", "contraction-cupy-nvidia-h200"
CPU = "contraction-intel-r-xeon-r-processor-threads-2"
HOST, GPU_HOST = "overhead-intel-r-xeon-r-processor-threads-2", "overhead-nvidia-h200"
ISSUE = "einsum-amd-epyc-threads-{}"

# What ours is called in the studies of einsum, and in those of attention and of the operators.
EINSUM, OURS = "fast_einsum", "ours"

NAMES = {"numpy": "NumPy", "torch": "torch", "mxnet": "MXNet", "cupy": "CuPy"}

# What each dtype that is measured there is called.
ON_GPU = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32 (no TF32)"}

FLOORED = {
    EINSUM: "`fast_einsum`",
    "compile": "`torch.compile`",
    "opt_einsum": "opt_einsum on torch",
    "native": "`torch.einsum`",
    "cupy": "`cupy.einsum`",
}


def kept_files(pattern: str) -> list[Path]:
    """Return the kept results whose names look like this."""
    return [path for path in sorted(RESULTS.glob(f"{pattern}.json")) if not path.stem.endswith("-partial")]


def _kept(name: str) -> Result:
    return read_result(RESULTS / f"{name}.json")


def _right(rows: Iterable[Row], **wanted: object) -> dict[str, Row]:
    return {
        row.case: row
        for row in rows
        if row.seconds is not None and all(getattr(row, name) == value for name, value in wanted.items())
    }


# The three problems


def _issue() -> str:
    """Tell the times of the three problems, on one thread and on two."""
    head = ("framework", "threads", "problem", "native einsum", "best by hand", "`fast_einsum`", "patched native call",
            "native / `fast_einsum`")  # fmt: skip
    cells = []
    for framework in ("mxnet", "torch", "numpy"):
        for result in map(_kept, (ISSUE.format(1), ISSUE.format(2))):
            rows = [row for row in result.measured if row.framework == framework and not row.backward]
            ways = [_right(rows, what=what) for what in ("einsum", "no_einsum", EINSUM, "patched")]
            for case, native in ways[0].items():
                times = (_three_digits((found[case].seconds or 0.0) * 1e3) for found in ways)
                problem = f"{case.removeprefix('mx')} `{native.equation}`"
                told = _three_digits(ways[2][case].speedup or 0.0)
                cells.append((_versioned(result, framework), str(result.threads), problem, *times, told))
    return markdown_table(head, cells)


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
        cells.append((told, *("–" if value is None else _three_digits(value) for value in values)))
    return markdown_table(("", *FLOORED.values()), cells)


def _means(study: str) -> str:
    """Tell per kept result, dtype and direction how far ours is from the floor, the best other and the native call."""
    cells = []
    for path in kept_files(f"{study}-*"):
        for table in STUDIES[study].tables(read_result(path).measured):
            means, behind = table.figures["geomean"], table.figures["behind"]
            told = (f"{means[name]:.2f}" if name in means else "–" for name in RATIOS)
            worst = min(behind, key=lambda case: behind[case], default=None)
            last = "none" if worst is None else f"{len(behind)}, `{worst}` most ({behind[worst]:.2f})"
            cells.append((path.stem, table.title.partition(": ")[2], str(len(table.cells)), *told, last))
    return markdown_table(("result", "measured", "cases", *RATIOS, "behind the best, beyond noise"), cells)


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


def _plots(study: str) -> str:
    """List the plots that lie beside the kept results of a study."""
    names = [path.name for file in kept_files(f"{study}-*") for path in sorted(RESULTS.glob(f"{file.stem}-*.svg"))]
    images = [f"![{name.removesuffix('.svg')}]({name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images)


# All results


def _results() -> str:
    """Tell the time of the others over ours, per operation, framework, device and dtype."""
    cells = []
    for what, against, pattern, value, wanted in LINES:
        rows = [row for path in kept_files(pattern) for row in read_result(path).measured]
        ours = (_right(rows, what=name, **wanted) for name in (EINSUM, OURS))
        ratios = {case: ratio for found in ours for case, row in found.items() if (ratio := value(row)) is not None}
        ordered = sorted(ratios, key=lambda case: ratios[case])
        ends = (f"{_three_digits(ratios[case])} (`{case}`)" for case in (ordered[0], ordered[-1]))
        cells.append((what, against, f"{geomean(ratios.values()):.2f}", *ends))
    return markdown_table(("what", "against", "geometric mean", "worst", "best"), cells)


PEERS = {
    "attention": "the best of cuDNN, FlashAttention, FlexAttention and others",
    "ops": "the best of torch, `torch.compile`, Liger-Kernel and QuACK",
}

# What each line is about and against, of which results, what it tells of a row, and of which rows.
LINES: tuple[tuple[str, str, str, Callable[[Row], float | None], dict[str, Any]], ...] = (
    ("MXNet, one CPU thread, float32", "`mx.np.einsum`", ISSUE.format(1), speedup,
     {"framework": "mxnet", "backward": False}),
    ("NumPy, 2 CPU threads, float32", "the better of `np.einsum(optimize=True)` and opt_einsum", CPU, best_over_ours,
     {"framework": "numpy", "backward": False}),
    *((f"torch, 2 CPU threads, {dtype}", "`torch.einsum`", CPU, speedup,
       {"framework": "torch", "dtype": dtype, "backward": False}) for dtype in ("float32", "bfloat16")),
    *((f"torch, GPU, {told}", "`torch.einsum`", GPU, speedup, {"dtype": dtype, "backward": False})
      for dtype, told in ON_GPU.items()),
    *((f"CuPy, GPU, {ON_GPU[dtype]}", "`cupy.einsum`", CUPY, speedup, {"dtype": dtype, "backward": False})
      for dtype in ("float16", "float32")),
    *((f"{'fused layers' if study == 'ops' else study}, GPU, bfloat16, forward{' and backward' * backward}", against,
       f"{study}-*", best_over_ours, {"dtype": "bfloat16", "backward": backward})
      for study, against in PEERS.items() for backward in (False, True)),
    ("training steps of whole programs, GPU, bfloat16", "the better of eager and `torch.compile`", "programs-*",
     best_over_ours, {"dtype": "bfloat16", "backward": True}),
    ("first calls at 40 lengths, GPU, bfloat16", "torch's own functions", "first-calls-*", speedup,
     {"dtype": "bfloat16"}),
)  # fmt: skip


def _files() -> str:
    """List every kept result: what it is of, where and when."""
    results = [(path.stem, read_result(path)) for path in kept_files("*")]
    cells = [(f"[{stem}]({stem}.md)", result.study, result.device, result.date) for stem, result in results]
    return markdown_table(("file", "study", "device", "date"), cells)


# What makes each section, by name.
SECTIONS: dict[str, Callable[[], str]] = {
    "issue": _issue,
    "floors": _floors,
    "contraction-means": partial(_means, "contraction"),
    "overhead": _overhead,
    "attention-plots": partial(_plots, "attention"),
    "attention-means": partial(_means, "attention"),
    "ops-means": partial(_means, "ops"),
    "ops-plots": partial(_plots, "ops"),
    "results": _results,
    "files": _files,
}
