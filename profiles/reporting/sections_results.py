"""The one table of results in README, and the list of the files that results are kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from einops_fast.profiles.attention.ways import OURS as ATTENTION
from einops_fast.profiles.contraction.study import OURS
from einops_fast.profiles.ops.ways import OURS as OPERATOR
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, read_result
from einops_fast.profiles.reporting.sections_cases import kept_files
from einops_fast.profiles.reporting.sections_einsum import GPU, ON_GPU, digits, kept, right

__all__ = ["FURTHER"]

ISSUE = "einsum-amd-epyc-threads-1"
CPU, CUPY = "contraction-intel-r-xeon-r-processor-threads-2", "contraction-cupy-nvidia-h200"


def _results() -> str:
    """Time of the others over ours, per operation, framework, device and dtype."""
    cells = [(*told, f"{geomean(values.values()):.2f}", *_ends(values)) for told, values in _ratios()]
    return markdown_table(("what", "against", "geometric mean", "worst", "best"), cells)


def _ends(values: Mapping[str, float]) -> Iterable[str]:
    for pick in (min, max):
        case = pick(values, key=lambda case: values[case])
        yield f"{digits(values[case], 1 if values[case] >= 3.95 else 2)} (`{case}`)"


def _ratios() -> Iterable[tuple[tuple[str, str], dict[str, float]]]:
    """For each line of the table what it is about, and the ratio of every case."""
    issue = right(kept(ISSUE).measured, framework="mxnet", what=OURS, backward=False)
    yield ("MXNet, one CPU thread, float32", "`mx.np.einsum`"), _speedups(issue)
    rows = kept(CPU).measured
    numpy = [row for row in rows if row.framework == "numpy"]
    better = "the better of `np.einsum(optimize=True)` and opt_einsum"
    yield ("NumPy, 2 CPU threads, float32", better), _over_best(right(numpy, what=OURS, backward=False), numpy)
    for dtype in ("float32", "bfloat16"):
        ours = right(rows, framework="torch", dtype=dtype, what=OURS, backward=False)
        yield (f"torch, 2 CPU threads, {dtype}", "`torch.einsum`"), _speedups(ours)
    for dtype, told in ON_GPU.items():
        ours = right(kept(GPU).measured, framework="torch", dtype=dtype, what=OURS, backward=False)
        yield (f"torch, GPU, {told}", "`torch.einsum`"), _speedups(ours)
    for dtype in ("float16", "float32"):
        ours = right(kept(CUPY).measured, framework="cupy", dtype=dtype, what=OURS, backward=False)
        yield (f"CuPy, GPU, {ON_GPU[dtype]}", "`cupy.einsum`"), _speedups(ours)
    for backward, told in ((False, "forward"), (True, "forward and backward")):
        against = "the best of cuDNN, FlashAttention, FlexAttention and others"
        yield (f"attention, GPU, bfloat16, {told}", against), _to_best("attention", ATTENTION, backward)
    for backward, told in ((False, "forward"), (True, "forward and backward")):
        against = "the best of torch, `torch.compile`, Liger-Kernel and QuACK"
        yield (f"fused layers, GPU, bfloat16, {told}", against), _to_best("ops", OPERATOR, backward)


def _speedups(ours: Mapping[str, Row]) -> dict[str, float]:
    return {case: row.speedup for case, row in ours.items() if row.speedup is not None}


def _over_best(ours: Mapping[str, Row], rows: Sequence[Row]) -> dict[str, float]:
    """By case, the median time of the fastest of the others over that of ours."""
    others: dict[str, float] = {}
    for row in rows:
        if row.what != OURS and row.seconds is not None and not row.backward:
            others[row.case] = min(others.get(row.case, row.seconds), row.seconds)
    return {case: others[case] / row.seconds for case, row in ours.items() if row.seconds and case in others}


def _to_best(study: str, ours: str, backward: bool) -> dict[str, float]:
    """By case, the time of the best of the others over that of ours, in bfloat16, of all kept results of a study."""
    rows = [row for path in kept_files(study) for row in read_result(path).measured]
    chosen = right(rows, what=ours, dtype="bfloat16", backward=backward)
    return {case: 1 / row.to_best for case, row in chosen.items() if row.to_best}


def _files() -> str:
    """Every kept result: what it is of, where and when."""
    cells = []
    for path in sorted(RESULTS.glob("*.json")):
        if not path.stem.endswith("-partial"):
            result = read_result(path)
            cells.append((f"[{path.stem}]({path.stem}.md)", result.study, result.device, result.date))
    return markdown_table(("file", "study", "device", "date"), cells)


FURTHER: dict[str, Callable[[], str]] = {"results": _results, "files": _files}
"""What makes each section, by name."""
