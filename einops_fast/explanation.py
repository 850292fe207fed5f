"""A plan in words and numbers, for people and for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from einops_fast.observing.pictures import Box, Picture, Pictured, tree
from einops_fast.observing.tables import aligned
from einops_fast.planning.chains import chain_of
from einops_fast.planning.cost import ITEM_SIZES, StepCost
from einops_fast.planning.plan import Plan
from einops_fast.planning.slicing import Slicing
from einops_fast.planning.steps import Arrange, Cast, Contraction, Fused, Gemm, Multiply, Native, Step, Sum, View


@dataclass(frozen=True)
class StepReport:
    """One step of a plan, in words and numbers.

    Attributes:
        slot: where the result goes; the operands are slots 0, 1, …
        kind: name of the step: ``'gemm'``, ``'multiply'``, ``'sum'``, ``'view'``, ``'native'`` …
        reads: slots that it reads.
        equation: the step as an einsum, in the caller's axis names.
        shape: shape of the result.
        gemm: ``(batch, m, n, k)`` of a matrix product, else ``None``.
        operands: per operand, whether it is read as a view or copied, and why.
        cost: FLOPs, bytes and predicted seconds.
    """

    slot: int
    kind: str
    reads: tuple[int, ...]
    equation: str
    shape: tuple[int, ...]
    gemm: tuple[int, int, int, int] | None
    operands: tuple[str, ...]
    cost: StepCost


@dataclass(frozen=True)
class Explanation(Pictured):
    """A plan that can be read: print it, look at its attributes, take :meth:`to_dict` or :meth:`plot` it."""

    plan: Plan
    steps: tuple[StepReport, ...]
    slicing: Slicing | None = None  # of a call with a memory limit; the plan is that of one piece
    sharing: tuple[str, ...] = ()  # how ranks of a mesh (whose plan is one rank's part), or tasks of Dask, share a call

    @property
    def path(self) -> tuple[tuple[int, ...], ...]:
        """Order of contraction, as opt_einsum gives it."""
        return self.plan.path

    @property
    def flops(self) -> int:
        return sum(step.cost.flops for step in self.steps)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written by all steps."""
        return sum(step.cost.moved for step in self.steps)

    @property
    def copied_bytes(self) -> int:
        """Bytes written only to bring an operand into another layout."""
        return sum(step.cost.copied for step in self.steps)

    @property
    def seconds(self) -> float:
        """Predicted time."""
        return self.plan.seconds

    @property
    def largest_intermediate(self) -> int:
        """Bytes of the largest array made on the way, the result left out."""
        item = ITEM_SIZES.get(self.plan.numerics.compute, 8)
        made = [step for step in self.steps[:-1] if step.kind not in ("view", "select", "diagonal")]
        return max((item * prod(step.shape) for step in made), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, ready for JSON."""
        plan = self.plan
        return {
            "equation": plan.subscripts.text,
            "sizes": {plan.subscripts.spelling(label): size for label, size in plan.sizes.items()},
            "operands": [
                {"shape": list(each.shape), "strides": list(each.strides), "dtype": each.dtype}
                for each in plan.operands
            ],
            "backend": plan.target.backend,
            "device": plan.target.device,
            "compute_dtype": plan.numerics.compute,
            "result_dtype": plan.numerics.result,
            "path": [list(pair) for pair in plan.path],
            "flops": self.flops,
            "moved_bytes": self.moved_bytes,
            "copied_bytes": self.copied_bytes,
            "largest_intermediate_bytes": self.largest_intermediate,
            "predicted_seconds": self.seconds,
            **({} if self.slicing is None else {"memory": self._memory(self.slicing)}),
            **({"sharing": list(self.sharing)} if self.sharing else {}),
            "steps": [
                {
                    "slot": step.slot,
                    "kind": step.kind,
                    "reads": list(step.reads),
                    "equation": step.equation,
                    "shape": list(step.shape),
                    "gemm": list(step.gemm) if step.gemm else None,
                    "operands": list(step.operands),
                    "flops": step.cost.flops,
                    "moved_bytes": step.cost.moved,
                    "copied_bytes": step.cost.copied,
                    "predicted_seconds": step.cost.seconds,
                }
                for step in self.steps
            ],
        }

    def plot(self) -> Picture:
        """Return the plan as a tree: each step with its result and the bytes that it moves; copies are red."""
        boxes = [
            Box([f"operand {slot}", each.dtype, _array(each.shape, each.dtype)])
            for slot, each in enumerate(self.plan.operands)
        ]
        for step in self.steps:
            cost = f"moves {scaled(step.cost.moved, 'B')}, copies {scaled(step.cost.copied, 'B')}"
            lines = [f"{step.kind} {step.equation}", _array(step.shape, self.plan.numerics.compute), cost]
            red = dict(enumerate(words.startswith("is copied") for words in step.operands))
            boxes.append(Box(lines, step.reads, [red.get(at, False) for at in range(len(step.reads))]))
        total = f"moves {scaled(self.moved_bytes, 'B')}, copies {scaled(self.copied_bytes, 'B')} (red)"
        where = f"on {self.plan.target.backend} ({self.plan.target.device})"
        return tree(self.plan.subscripts.text, f"{where}: {total}, {scaled(self.seconds, 's')} predicted", boxes)

    @staticmethod
    def _memory(slicing: Slicing) -> dict[str, Any]:
        spelled = slicing.subscripts.spelling
        return {
            "pieces": slicing.count,
            "extents": {spelled(label): extent for label, extent in slicing.extents.items()},
            "peak_bytes": slicing.peak,
            "flops_ratio": slicing.overhead,
        }

    def __str__(self) -> str:
        plan = self.plan
        sizes = ", ".join(f"{plan.subscripts.spelling(label)}={size}" for label, size in plan.sizes.items())
        lines = [
            plan.subscripts.text,
            f"on {plan.target.backend} ({plan.target.device}) in {plan.numerics.compute}"
            + (f", result in {plan.numerics.result}" if plan.numerics.result != plan.numerics.compute else ""),
            f"with {sizes}" if sizes else "without axes",
            *self.sharing,
        ]
        if len(plan.operands) > 2:
            lines.append(f"path {' '.join(str(pair) for pair in plan.path)}")
        rows = [["slot", "step", "computes", "shape", "batch×m×n×k", "flops", "moved", "copied", "time"]]
        rows += [
            [
                str(step.slot),
                f"{step.kind} {', '.join(map(str, step.reads))}",
                step.equation,
                "×".join(map(str, step.shape)) or "scalar",
                "×".join(map(str, step.gemm)) if step.gemm else "",
                scaled(step.cost.flops, ""),
                scaled(step.cost.moved, "B"),
                scaled(step.cost.copied, "B"),
                scaled(step.cost.seconds, "s"),
            ]
            for step in self.steps
        ]
        totals = scaled(self.flops, ""), scaled(self.moved_bytes, "B"), scaled(self.copied_bytes, "B")
        rows.append(["", "total", "", "", "", *totals, scaled(self.seconds, "s")])
        lines += ["", *aligned(rows, left=5)]
        notes = [
            f"slot {step.slot}: operand {read} {words}"
            for step in self.steps
            for read, words in zip(step.reads, step.operands, strict=False)
        ]
        if self.slicing is not None:
            memory = self._memory(self.slicing)
            cuts = ", ".join(f"{label} by {extent}" for label, extent in memory["extents"].items())
            pieces = f"one of {memory['pieces']} pieces ({cuts}), {memory['flops_ratio']:.2f} times the FLOPs of one"
            notes.append(f"{pieces if cuts else 'in one piece'}; at most {scaled(memory['peak_bytes'], 'B')} at a time")
        if self.largest_intermediate:
            notes.append(f"largest intermediate: {scaled(self.largest_intermediate, 'B')}")
        return "\n".join([*lines, "", *notes]) if notes else "\n".join(lines)


def explanation_of(plan: Plan | Slicing) -> Explanation:
    """The plan, or that of a piece, step by step, in the caller's axis names."""
    if isinstance(plan, Slicing):
        return replace(explanation_of(plan.piece), slicing=plan)
    count = len(plan.operands)
    labels = list(plan.subscripts.inputs)
    reports = []
    for slot, (step, cost) in enumerate(zip(plan.steps, plan.costs, strict=True), start=count):
        inputs = [labels[read] for read in step.reads]
        reports.append(_report(plan, slot, step, cost, inputs))
        labels.append(step.labels)
    return Explanation(plan, tuple(reports))


def _report(plan: Plan, slot: int, step: Step, cost: StepCost, inputs: Iterable[str]) -> StepReport:
    spelled = [[str(plan.subscripts.spelling(label)) for label in term] for term in (*inputs, step.labels)]
    # One-letter names stand side by side, as in an equation; words are set apart.
    gap = "" if all(len(name) == 1 for term in spelled for name in term) else " "
    *terms, output = [gap.join(term) for term in spelled]
    gemm = None
    operands: tuple[str, ...] = ()
    if isinstance(step, Gemm):
        gemm = (prod(step.batch), step.m, step.n, step.k)
        operands = (
            _reading(step.left, step.transpose_left),
            _reading(step.right, step.transpose_right),
        )
    elif isinstance(step, Multiply):
        operands = (_reading(step.left), _reading(step.right))
    elif isinstance(step, View):
        operands = (_reading(step.how),)
    elif isinstance(step, Native):
        operands = (f"goes to the framework's own einsum: {step.reason}",)
    elif isinstance(step, Contraction):
        operands = ("goes to operators that hold for arrays of any size",)
    elif isinstance(step, Cast):
        operands = (f"is converted to {step.dtype}",)
    elif isinstance(step, Sum):
        operands = (f"is summed over axes {step.axes}",)
    elif isinstance(step, Fused):
        gemm = _roles(step)
        calls = " and ".join(type(each).__name__.lower() for each in step.library)
        kernel = "one kernel, product by product," if chain_of(step.loops) else "one kernel"
        words = f"is read with the strides it has, in {kernel} or by {calls}, whichever is faster"
        operands = (words,) * len(step.reads)
    kind = type(step).__name__.lower()
    equation = f"{','.join(terms)}->{output}"
    return StepReport(slot, kind, step.reads, equation, step.shape, gemm, operands, cost)


def _roles(step: Fused) -> tuple[int, int, int, int] | None:
    """Batch, rows, columns and contracted extent, where two operands are multiplied."""
    if len(step.reads) != 2:
        return None
    extents = {"batch": 1, "rows": 1, "columns": 1, "contracted": 1}
    for loop in step.loops:
        left, right = map(bool, loop.strides)
        role = "contracted" if not loop.kept else "batch" if left == right else "rows" if left else "columns"
        extents[role] *= loop.size
    return extents["batch"], extents["rows"], extents["columns"], extents["contracted"]


def _array(shape: tuple[int, ...], dtype: str) -> str:
    size = scaled(ITEM_SIZES[dtype] * prod(shape), "B") if dtype in ITEM_SIZES else dtype
    return f"{'×'.join(map(str, shape)) or 'scalar'}, {size}"


def _reading(how: Arrange, transposed: bool = False) -> str:
    words = f"is copied, because {how.moves}" if how.moves else "is read as it is"
    if how.perm is not None:
        words += f", axes taken as {how.perm}"
    if how.shape is not None:
        words += f", seen as {'×'.join(map(str, how.shape)) or 'scalar'}"
    return words + (", transposed by the GEMM" if transposed else "")


def scaled(value: float, unit: str) -> str:
    """A number with three digits and a prefix.

    >>> scaled(1440, ''), scaled(2.5e-6, 's'), scaled(0, 'B')
    ('1.44 k', '2.5 µs', '0 B')
    """
    if value == 0:
        return f"0 {unit}".strip()
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}".strip()
    return f"{value / 1e-9:.3g} n{unit}"
