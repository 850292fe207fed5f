"""Sections about einsum: the three problems of the issue, many contractions, the host's time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from einops_fast.profiles.contraction.peers import NATIVE
from einops_fast.profiles.contraction.study import BEHIND, OURS
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result

__all__ = ["EINSUM", "GPU", "ON_GPU", "digits", "kept", "right"]

NAMES = {"numpy": "NumPy", "torch": "torch", "mxnet": "MXNet", "cupy": "CuPy"}


def kept(name: str) -> Result:
    """A kept result."""
    return read_result(RESULTS / f"{name}.json")


def right(rows: Sequence[Row], **wanted: object) -> dict[str, Row]:
    """The rows with these values by case, without those that failed."""
    return {
        row.case: row
        for row in rows
        if row.seconds is not None and all(getattr(row, name) == value for name, value in wanted.items())
    }


# The three problems


def _issue() -> str:
    result = kept("einsum-amd-epyc-threads-1")
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
            what: right(result.measured, framework=framework, what=what, backward=False)
            for what in ("einsum", "no_einsum", OURS, "patched")
        }
        for case, native in ways["einsum"].items():
            times = [_milliseconds(ways[what][case].seconds) for what in ways]
            problem = f"{case.removeprefix('mx')} `{native.equation}`"
            cells.append((_versioned(result, framework), problem, *times, digits(ways[OURS][case].speedup or 0.0)))
    return markdown_table(head, cells)


def _issue_on_two_threads() -> str:
    rows = kept("einsum-amd-epyc-threads-2").measured
    ours = right(rows, framework="mxnet", what=OURS, backward=False)
    *others, last = (digits(row.speedup or 0.0) for row in ours.values())
    told = f"{', '.join(others)} and {last}"
    return f"With two threads MXNet's own einsum gets faster by almost two and the ratios are {told}."


# Many contractions


GPU = "contraction-nvidia-h200"

ON_GPU = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32 (no TF32)"}
"""What each dtype that is measured there is called."""


FLOORED = {
    OURS: "`fast_einsum`",
    "compile": "`torch.compile`",
    "opt_einsum": "opt_einsum on torch",
    NATIVE: "`torch.einsum`",
    "cupy": "`cupy.einsum`",
}


def _floors() -> str:
    """Time over floor of all implementations, in the cases of two operands."""
    rows = [row for row in kept(GPU).measured if row.equation.count(",") == 1]
    cells = []
    for dtype, told in ON_GPU.items():
        ratios = []
        for what in FLOORED:
            found = right(rows, dtype=dtype, what=what, backward=False).values()
            ratios.append([(row.seconds or 0.0) / row.floor for row in found if row.floor])
        values = (geomean(each) if each else None for each in ratios)
        cells.append((told, *("–" if value is None else digits(value, 2 if value < 10 else 1) for value in values)))
    return markdown_table(("", *FLOORED.values()), cells)


def _engine() -> str:
    """How far ours is from the floor and from the best of the others, per dtype."""
    told: dict[str, list[str]] = {
        "cases": [],
        "time over floor, geometric mean": [],
        "the worst": [],
        "time over that of the best other, geometric mean": [],
        f"over {BEHIND - 1:.0%} behind it": [],
    }
    for dtype in ON_GPU:
        ours = right(kept(GPU).measured, dtype=dtype, what=OURS, backward=False)
        floors = {case: (row.seconds or 0.0) / row.floor for case, row in ours.items() if row.floor}
        best = {case: row.to_best for case, row in ours.items() if row.to_best is not None}
        worst = max(floors, key=lambda case: floors[case])
        behind = [f"`{case}` ({best[case]:.2f})" for case in sorted(best, key=lambda case: -best[case])
                  if best[case] > BEHIND]  # fmt: skip
        values = (
            str(len(ours)),
            f"{geomean(floors.values()):.2f}",
            f"{floors[worst]:.2f} (`{worst}`)",
            f"{geomean(best.values()):.2f}",
            ", ".join(behind) or "none",
        )
        for cells, value in zip(told.values(), values, strict=True):
            cells.append(value)
    rows = [(name, *cells) for name, cells in told.items()]
    return markdown_table(("", *ON_GPU.values()), rows)


def _backward() -> str:
    """Of the cases that models are trained through."""
    found = {dtype: right(kept(GPU).measured, dtype=dtype, what=OURS, backward=True) for dtype in ON_GPU}
    half, brain, single = (
        geomean(1 / row.speedup for row in rows.values() if row.speedup is not None) for rows in found.values()
    )
    count = _in_words(len(found["float16"]))
    return (
        f"Forward and backward of the {count} cases that are like attention take {half:.2f} of the time of"
        f" `torch.einsum` in float16, {brain:.2f}\nin bfloat16, {single:.2f} in float32."
    )


# The host


def _overhead() -> str:
    head = ("", "native einsum", "the bare GEMM call", "`fast_einsum`", "`contract_expression`", "first call")
    places = (
        ("NumPy", "overhead-intel-r-xeon-r-processor-threads-2", "numpy", "np.matmul"),
        ("torch, CPU", "overhead-intel-r-xeon-r-processor-threads-2", "torch", "torch.bmm"),
        ("torch, CUDA (H200 host)", "overhead-nvidia-h200", "torch", "torch.bmm"),
        ("MXNet", "overhead-intel-r-xeon-r-processor-threads-2", "mxnet", "npx.batch_dot"),
    )
    cells = []
    for where, name, framework, product in places:
        rows = {(row.case, row.what): row.seconds for row in kept(name).measured if row.framework == framework}
        keys = [("tiny", what) for what in (f"{framework}.einsum", product, OURS, "contract_expression")]
        times = [rows[key] for key in (*keys, ("first call", OURS))]
        cells.append((where, *("–" if seconds is None else f"{seconds * 1e6:.1f}" for seconds in times)))
    return markdown_table(head, cells)


def _versioned(result: Result, framework: str) -> str:
    """``torch 2.13`` of ``2.13.0+cpu``; a pre-release in full."""
    # MXNet calls itself otherwise than its wheel is called.
    version = result.versions[framework].partition("+")[0].replace("beta", "b")
    short = version if re.search("[a-z]", version) else ".".join(version.split(".")[:2])
    return f"{NAMES[framework]} {short}"


def _milliseconds(seconds: float | None) -> str:
    """With three digits, or all before the point."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def digits(value: float, decimals: int | None = None) -> str:
    """A ratio with three digits, and without zeros at its end that say nothing."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{float(f'{value:.3g}'):g}"


def _in_words(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number] if number < len(words) else str(number)


EINSUM: dict[str, Callable[[], str]] = {
    "issue": _issue,
    "issue-on-two-threads": _issue_on_two_threads,
    "floors": _floors,
    "engine": _engine,
    "backward": _backward,
    "overhead": _overhead,
}
"""What makes each section, by name."""
