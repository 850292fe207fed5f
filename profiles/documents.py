"""The tables of README and docs, made from kept results: ``make report``.

A document has a pair of comments around each, ``<!-- results:NAME -->`` and ``<!-- /results:NAME -->``; what stands
between them is made here, and a test says when it isn't up to date.

``python -m einops_fast.profiles.documents`` writes them anew, draws the plots of the kept results, and puts all
results on one page, ``profiles/results/report.html``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from einops_fast.profiles import plots
from einops_fast.profiles.attention_ways import OURS as ATTENTION
from einops_fast.profiles.attention_ways import WAYS
from einops_fast.profiles.case_tables import best_over_ours, by_case, gigabytes, megabytes, number, teraflops
from einops_fast.profiles.contraction_tables import BEHIND, OURS
from einops_fast.profiles.html_report import html_page
from einops_fast.profiles.ops_tables import backward_alone, in_order, of_floor
from einops_fast.profiles.ops_ways import OURS as OPERATOR
from einops_fast.profiles.ops_ways import WAYS as OPERATORS
from einops_fast.profiles.peers import NATIVE
from einops_fast.profiles.records import Row
from einops_fast.profiles.report import geomean, markdown_table, ratio
from einops_fast.profiles.results import RESULTS, Result, read_result

__all__ = ["DOCUMENTS", "SECTIONS", "updated"]

ROOT = Path(__file__).resolve().parents[1]

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
"""Where sections may stand."""

DRAWN = ("contraction-nvidia-h200",)
"""The results whose plots are kept beside them."""

_MARKED = re.compile(r"(<!-- results:([\w-]+) -->\n)(.*?)(<!-- /results:\2 -->)", re.DOTALL)

NAMES = {"numpy": "NumPy", "torch": "torch", "mxnet": "MXNet", "cupy": "CuPy"}


def updated(text: str) -> str:
    """A document with its sections made anew.

    Raises:
        KeyError: there is no section of a name in it.
    """
    return _MARKED.sub(lambda match: f"{match[1]}\n{SECTIONS[match[2]]().strip()}\n\n{match[4]}", text)


def _kept(name: str) -> Result:
    return read_result(RESULTS / f"{name}.json")


def _right(rows: Sequence[Row], **wanted: object) -> dict[str, Row]:
    """The rows with these values by case, without those that failed."""
    return {
        row.case: row
        for row in rows
        if row.seconds is not None and all(getattr(row, name) == value for name, value in wanted.items())
    }


# The three problems


def _issue() -> str:
    result = _kept("einsum-amd-epyc-threads-1")
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
            for what in ("einsum", "no_einsum", OURS, "patched")
        }
        for case, native in ways["einsum"].items():
            times = [_milliseconds(ways[what][case].seconds) for what in ways]
            problem = f"{case.removeprefix('mx')} `{native.equation}`"
            cells.append((_versioned(result, framework), problem, *times, _digits(ways[OURS][case].speedup or 0.0)))
    return markdown_table(head, cells)


def _issue_on_two_threads() -> str:
    rows = _kept("einsum-amd-epyc-threads-2").measured
    ours = _right(rows, framework="mxnet", what=OURS, backward=False)
    *others, last = (_digits(row.speedup or 0.0) for row in ours.values())
    told = f"{', '.join(others)} and {last}"
    return f"With two threads MXNet's own einsum gets faster by almost two and the ratios are {told}."


# Many contractions


CPU, GPU = "contraction-amd-epyc-threads-2", "contraction-nvidia-h200"


def _contractions() -> str:
    """Native time over ours, per framework, device and dtype."""
    places = (
        (
            "NumPy, 2 CPU threads, float32",
            "the better of `np.einsum(optimize=True)` and opt_einsum",
            CPU,
            "numpy",
            "float32",
        ),
        ("torch, 2 CPU threads, float32", "`torch.einsum`", CPU, "torch", "float32"),
        ("torch, 2 CPU threads, bfloat16", "`torch.einsum`", CPU, "torch", "bfloat16"),
        ("torch, H200, float16", "`torch.einsum`", GPU, "torch", "float16"),
        ("torch, H200, float32 (no TF32)", "`torch.einsum`", GPU, "torch", "float32"),
    )
    cells = []
    for where, against, name, framework, dtype in places:
        rows = [row for row in _kept(name).measured if (row.framework, row.dtype) == (framework, dtype)]
        ours = _right(rows, what=OURS, backward=False)
        if framework == "numpy":
            values = _over_best(ours, rows)
        else:
            values = {case: row.speedup for case, row in ours.items() if row.speedup is not None}
        worst, best = (pick(values, key=lambda case: values[case]) for pick in (min, max))
        told = [f"{_digits(values[case], 1 if values[case] >= 3.95 else 2)} (`{case}`)" for case in (worst, best)]
        cells.append((where, against, f"{geomean(values.values()):.2f}", *told))
    return markdown_table(("where", "against", "geometric mean", "worst", "best"), cells)


def _over_best(ours: Mapping[str, Row], rows: Sequence[Row]) -> dict[str, float]:
    """By case, the median time of the fastest of the others over that of ours."""
    others: dict[str, float] = {}
    for row in rows:
        if row.what != OURS and row.seconds is not None and not row.backward:
            others[row.case] = min(others.get(row.case, row.seconds), row.seconds)
    return {case: others[case] / row.seconds for case, row in ours.items() if row.seconds and case in others}


FLOORED = {
    OURS: "`fast_einsum`",
    "compile": "`torch.compile`",
    "opt_einsum": "opt_einsum on torch",
    NATIVE: "`torch.einsum`",
    "cupy": "`cupy.einsum`",
}


def _floors() -> str:
    """Time over floor of all implementations, in the cases of two operands."""
    rows = [row for row in _kept(GPU).measured if row.equation.count(",") == 1]
    cells = []
    for dtype, told in (("float16", "float16"), ("float32", "float32 (no TF32)")):
        ratios = []
        for what in FLOORED:
            found = _right(rows, dtype=dtype, what=what, backward=False).values()
            ratios.append(geomean((row.seconds or 0.0) / row.floor for row in found if row.floor))
        cells.append((told, *(_digits(value, 2 if value < 10 else 1) for value in ratios)))
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
    for dtype in ("float16", "float32"):
        ours = _right(_kept(GPU).measured, dtype=dtype, what=OURS, backward=False)
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
    return markdown_table(("", "float16", "float32 (no TF32)"), rows)


def _backward() -> str:
    """Of the cases that models are trained through."""
    found = {
        dtype: _right(_kept(GPU).measured, dtype=dtype, what=OURS, backward=True) for dtype in ("float16", "float32")
    }
    half, single = (
        geomean(1 / row.speedup for row in rows.values() if row.speedup is not None) for rows in found.values()
    )
    count = _in_words(len(found["float16"]))
    return (
        f"Forward and backward of the {count} cases that are like attention take {half:.2f} of the time of"
        f" `torch.einsum` in float16, {single:.2f}\nin float32."
    )


# The host


def _overhead() -> str:
    head = ("", "native einsum", "the bare GEMM call", "`fast_einsum`", "`contract_expression`", "first call")
    places = (
        ("NumPy", "overhead-amd-epyc-threads-2", "numpy", "np.matmul"),
        ("torch, CPU", "overhead-amd-epyc-threads-2", "torch", "torch.bmm"),
        ("torch, CUDA (H200 host)", "overhead-nvidia-h200", "torch", "torch.bmm"),
        ("MXNet", "overhead-amd-epyc-threads-2", "mxnet", "npx.batch_dot"),
    )
    cells = []
    for where, name, framework, product in places:
        rows = {(row.case, row.what): row.seconds for row in _kept(name).measured if row.framework == framework}
        keys = [("tiny", what) for what in (f"{framework}.einsum", product, OURS, "contract_expression")]
        times = [rows[key] for key in (*keys, ("first call", OURS))]
        cells.append((where, *("–" if seconds is None else f"{seconds * 1e6:.1f}" for seconds in times)))
    return markdown_table(head, cells)


# Attention


def _files(study: str) -> list[Path]:
    """The kept results of a study, those of single families too."""
    return [path for path in sorted(RESULTS.glob(f"{study}-*.json")) if not path.stem.endswith("-partial")]


def _by_device_and_dtype(study: str, told: Callable[[str, str, Sequence[Row]], str]) -> str:
    """What is told of each device and dtype in the kept results of a study."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for result in map(read_result, _files(study)):
        for row in result.measured:
            groups.setdefault((result.device, row.dtype), []).append(row)
    texts = [told(device, dtype, rows) for (device, dtype), rows in groups.items()]
    return "\n\n".join(texts) or f"No result is kept yet: `python -m einops_fast.profiles {study}` measures."


def _attention() -> str:
    """Throughput of every way, forward / forward and backward, per device and dtype."""
    return _by_device_and_dtype("attention", _attention_of)


def _attention_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    both = [by_case([row for row in rows if row.backward is backward]) for backward in (False, True)]
    ways = [name for name in WAYS if any(row.what == name and row.seconds for row in rows)]
    cells = []
    for case in dict.fromkeys(row.case for row in rows):
        found = [cases[case] for cases in both if case in cases]
        ours = [each[ATTENTION] for each in found if ATTENTION in each]
        cells.append(
            (
                f"`{case}`",
                next(row.sizes for row in rows if row.case == case),
                *(" / ".join(number(teraflops(each.get(way))) for each in found) for way in ways),
                " / ".join(f"{1 / row.to_best:.2f}" if row.to_best else "–" for row in ours),
                " / ".join(row.chosen or "–" for row in ours),
                " / ".join(f"{row.floor / row.seconds:.0%}" if row.floor and row.seconds else "–" for row in ours),
            )
        )
    head = (
        "case",
        "batch×heads×positions×features",
        *(f"`{way}`" for way in ways),
        "best peer / ours",
        "ours is",
        "of the roofline",
    )
    return f"{device}, {dtype}, TFLOP/s, forward / forward and backward:\n\n{markdown_table(head, cells)}"


# Operators


def _ops() -> str:
    """Per device and dtype how near ours comes to the device's copy or GEMM, and how the others compare."""
    return _by_device_and_dtype("ops", _ops_of)


def _ops_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    forward, both = (by_case([row for row in in_order(rows) if row.backward is backward]) for backward in (False, True))
    alone = {row.key: row for row in rows if not row.backward}
    ways = [name for name in OPERATORS if any(row.what == name and row.seconds for row in rows)]
    cells = []
    for case in dict.fromkeys([*forward, *both]):
        found = [cases[case] for cases in (forward, both) if case in cases]
        some = next(iter(found[0].values()))
        ours = both.get(case, {}).get(OPERATOR)
        shares = [of_floor(forward.get(case, {}).get(OPERATOR)), backward_alone(ours, alone)[1]]
        unit = "TFLOP/s" if some.flops else "GB/s"
        rate = teraflops if some.flops else gigabytes
        cells.append(
            (
                f"`{case}`",
                some.sizes,
                unit,
                *(" / ".join(number(rate(each.get(way))) for each in found) for way in ways),
                " / ".join("–" if share is None else f"{share:.0%}" for share in shares),
                " / ".join(ratio(best_over_ours(each.get(OPERATOR))) for each in found),
                " / ".join(megabytes(each.get(OPERATOR)) for each in found),
                " / ".join(megabytes(each.get("native")) for each in found),
            )
        )
    head = (
        "case",
        "shape",
        "unit",
        *(f"`{way}`" for way in ways),
        "ours of copy or GEMM, forward / backward alone",
        "best peer / ours",
        "ours peak MB",
        "native peak MB",
    )
    return f"{device}, {dtype}, forward / forward and backward:\n\n{markdown_table(head, cells)}"


def _ops_plots() -> str:
    """The plots that lie beside the kept results."""
    names = [path.name for file in _files("ops") for path in sorted(RESULTS.glob(f"{file.stem}-*.svg"))]
    images = [f"![{name.removesuffix('.svg')}](../profiles/results/{name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images) or "No result is kept yet."


SECTIONS: dict[str, Callable[[], str]] = {
    "issue": _issue,
    "issue-on-two-threads": _issue_on_two_threads,
    "contractions": _contractions,
    "floors": _floors,
    "engine": _engine,
    "backward": _backward,
    "overhead": _overhead,
    "attention": _attention,
    "ops": _ops,
    "ops-plots": _ops_plots,
}
"""What makes each section, by name."""


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


def _digits(value: float, decimals: int | None = None) -> str:
    """A ratio with three digits, and without zeros at its end that say nothing."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{float(f'{value:.3g}'):g}"


def _in_words(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number] if number < len(words) else str(number)


def main() -> None:
    """Make plots, sections and the page anew."""
    drawn = [*(RESULTS / f"{name}.json" for name in DRAWN), *_files("attention"), *_files("ops")]
    plots.main(list(map(str, drawn)))
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        if updated(text) != text:
            path.write_text(updated(text), encoding="utf-8")
            print(f"wrote {path}")
    page = RESULTS / "report.html"
    results = [read_result(path) for path in sorted(RESULTS.glob("*.json")) if not path.stem.endswith("-partial")]
    page.write_text(html_page(results), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
