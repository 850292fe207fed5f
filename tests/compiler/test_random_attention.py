"""Attention in drawn spellings, some of them disturbed: values and gradients are right, whether or not it is fused."""

from collections.abc import Callable
from typing import Any

import torch
from fused_programs import check, random_operands
from hypothesis import given, settings
from hypothesis import strategies as st

DISTINCT = {"b": 2, "h": 3, "i": 5, "j": 4, "d": 6, "e": 7}

EQUAL = dict.fromkeys("bhijde", 4)
"""Where axes are mistaken for one another, shapes don't tell."""

Step = Callable[[Any], Any]


def orders(labels: str) -> st.SearchStrategy[str]:
    return st.permutations(labels).map("".join)


def permuted(x: Any, own: str, wanted: str) -> Any:
    return x.permute([own.index(label) for label in wanted])


@st.composite
def products(draw: Any, left: str, right: str, output: str) -> Callable[[Any, Any], Any]:
    """A contraction of two tensors of these axes, by one of torch's functions."""
    shared = [label for label in left if label in right and label not in output]
    batch = [label for label in output if label in left and label in right]
    rows = [label for label in output if label not in right]
    columns = [label for label in output if label not in left]
    one, two = "".join([*batch, *rows, *shared]), "".join([*batch, *shared, *columns])
    made = "".join([*batch, *rows, *columns])
    kind = draw(st.sampled_from(["einsum", "matmul", "bmm", "swapped", "sum"]))
    if kind == "einsum":
        return lambda x, y: torch.einsum(f"{left},{right}->{output}", x, y)
    if kind == "swapped":
        return lambda x, y: torch.einsum(f"{right},{left}->{output}", y, x)
    if kind == "sum":
        full = output + shared[0]

        def with_axes(x: Any, own: str) -> Any:
            x = permuted(x, own, "".join([label for label in full if label in own]))
            for at, label in enumerate(full):
                x = x if label in own else x.unsqueeze(at)
            return x

        return lambda x, y: (with_axes(x, left) * with_axes(y, right)).sum(-1)

    def product(x: Any, y: Any) -> Any:
        x, y = permuted(x, left, one), permuted(y, right, two)
        if kind == "matmul":
            found = x @ y
        else:
            lead = x.shape[: len(batch)]
            found = torch.bmm(x.flatten(0, len(batch) - 1), y.flatten(0, len(batch) - 1)).unflatten(0, lead)
        return permuted(found, made, output)

    return product


FILLS = (float("-inf"), -1e9)


@st.composite
def changes(draw: Any, scores: str, fill: float, sizes: dict[str, int]) -> tuple[Step, str]:
    """What is done to scores of these axes before the softmax, and what that is called."""
    finite = fill > float("-inf")
    kinds = (
        "scale divide gain mask where where_filled ahead added bias cast view nothing clamp part mask_that_is_written"
    )
    kind = draw(st.sampled_from([*kinds.split(), *(["gate"] if finite else [])]))
    some = "".join(draw(st.sets(st.sampled_from(scores))))
    shape = [sizes[label] if label in some else 1 for label in scores]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    mask = torch.rand(shape, generator=generator) < 0.7
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    last = scores.index("j")
    mask = mask | (torch.arange(shape[last]) == 0).view([-1 if at == last else 1 for at in range(len(scores))])
    gain = bias.narrow(last, 0, 1)
    number, far = draw(st.sampled_from([0.25, 2.0])), draw(st.integers(0, 3))

    def along(label: str, x: Any) -> Any:
        count = x.shape[scores.index(label)]
        return torch.arange(count).view([-1 if own == label else 1 for own in scores])

    def ahead(x: Any) -> Any:
        return along("j", x) - along("i", x) <= far

    def written(x: Any) -> Any:
        shown = ahead(x)
        shown.select(scores.index("i"), -1).fill_(True)
        return shown

    def gated(x: Any) -> Any:
        gate = (mask & ahead(x) if far else mask).to(x.dtype)
        return x * gate + fill * (1 - gate)

    steps: dict[str, Step] = {
        "scale": lambda x: x * number,
        "divide": lambda x: x / 3,
        "gain": lambda x: x * gain.to(x.dtype) if far else x / gain.to(x.dtype),
        "mask": lambda x: x.masked_fill(~mask, fill),
        "where": lambda x: torch.where(mask, x, fill),
        "where_filled": lambda x: torch.where(~mask, torch.full_like(x, fill), x),
        "ahead": lambda x: x.masked_fill(~ahead(x), fill),
        "added": lambda x: x + torch.zeros_like(ahead(x), dtype=x.dtype).masked_fill(~ahead(x), fill),
        "mask_that_is_written": lambda x: x.masked_fill(~written(x), fill),
        "gate": gated,
        "bias": lambda x: bias.to(x.dtype) + x,
        "cast": lambda x: x.double().to(x.dtype),
        "view": lambda x: x.flatten(0, 1).unflatten(0, x.shape[:2]),
        "clamp": lambda x: x.clamp(min=-2),
        "part": lambda x: x.narrow(last, 0, 3),
        "nothing": lambda x: x,
    }
    return steps[kind], kind


UNABLE = ("clamp", "part")
"""What attention doesn't do."""

PLAIN = {"scale", "divide", "gain", "cast", "view", "nothing"}
"""What may be done to scores before a tensor multiplies them."""


WAYS = ("name", "by_hand", "late", "late_without_max", "by_logs")
DISTURBANCES = ("weights_returned", "detached", "shifted_total", "bias_written", "without_gradient", "gated_weights")


SUMS = ("", "", "scaled", "gated", "zeroed", "difference", "difference_of_halves")
"""What is done to weights: most of it multiplies those of a row, or adds those of another softmax."""


@st.composite
def programs(draw: Any) -> tuple[Callable[..., Any], bool | None, list[list[int]]]:
    """A program of q, k and v, whether it can be fused (``None`` if it may be), and the shapes of its operands."""
    sizes = draw(st.sampled_from([DISTINCT, EQUAL, *[{**DISTINCT, label: 1} for label in "bhi"]]))
    axes = {name: draw(orders(labels)) for name, labels in (("q", "bhid"), ("k", "bhjd"), ("v", "bhje"))}
    scores, result = draw(orders("bhij")), draw(orders("bhie"))
    first, second = draw(products(axes["q"], axes["k"], scores)), draw(products(scores, axes["v"], result))
    fill = draw(st.sampled_from(FILLS))
    steps = draw(st.lists(changes(scores, fill, sizes), max_size=3))
    steps.sort(key=lambda step: step[1] in UNABLE)  # what leaves less of the scores goes last
    steps = [step for at, step in enumerate(steps) if step[1] not in UNABLE or at == len(steps) - 1]
    way = draw(st.sampled_from(WAYS))
    disturbed = draw(st.sampled_from(DISTURBANCES)) if draw(st.integers(0, 3)) == 0 else ""
    with_log = draw(st.integers(0, 2)) == 0
    axis = scores.index("j")
    in_blocks = draw(st.integers(0, 3)) == 0
    summed = draw(st.sampled_from(SUMS))
    gate = torch.randn([1 if label == "j" else sizes[label] for label in scores], dtype=torch.float64)
    rows = scores.replace("j", "")
    of_result = "".join([label for label in result if label != "e"])

    def program(q: Any, k: Any, v: Any) -> Any:
        x = first(q, k)
        if in_blocks:
            at = axes["k"].index("j")
            x = torch.cat([first(q, each) for each in k.split(2, at)], axis)
        written = torch.linspace(-1, 1, x.shape[axis], dtype=x.dtype).view(
            [-1 if label == "j" else 1 for label in scores]
        )
        if disturbed == "bias_written":
            x = x + written
        for step, _ in steps:
            x = step(x)
        if disturbed == "bias_written":
            written.mul_(2)
        if disturbed == "without_gradient":
            with torch.no_grad():
                x = x * 1
        largest, total, log = None, None, None
        if way == "name":
            weights = x.softmax(axis)
        elif way == "by_logs":
            log = x.logsumexp(axis, keepdim=True)
            weights = (x - log).exp()
        else:
            largest = None if way == "late_without_max" else x.amax(axis, keepdim=True)
            weights = (x if largest is None else x - largest).exp()
            total = weights.sum(axis, keepdim=True)
            if disturbed == "shifted_total":
                total = total + 0.5
        if way == "by_hand":
            weights = weights / total
        if disturbed == "detached":
            weights = weights.detach()
        if disturbed == "gated_weights":
            weights = weights * (torch.arange(weights.shape[axis]) != 1).view(
                [-1 if label == "j" else 1 for label in scores]
            )
        if summed == "scaled":
            weights = -(weights / 3)
        elif summed == "gated":
            weights = weights * gate.to(x.dtype)
        elif summed == "zeroed":
            weights = weights.masked_fill(gate < 0, 0.0)
        elif summed == "difference":
            other = first(q, k.sin()).softmax(axis)
            weights = weights - gate.to(x.dtype) * (other if other.shape == weights.shape else other.narrow(axis, 0, 3))
        elif summed == "difference_of_halves":
            both = torch.stack([first(q, k.sin()), first(q.cos(), k)]).softmax(axis + 1)
            one, other = both.unbind(0)
            weights = weights * 0.5 if one.shape != weights.shape else one - other * gate.to(x.dtype)
        used = weights if weights.shape[axis] == sizes["j"] else torch.cat([weights, weights.narrow(axis, 0, 1)], axis)
        made = second(used, v)
        if way.startswith("late"):
            made = made / permuted(total.squeeze(axis), rows, of_result).unsqueeze(result.index("e"))
        results = [made]
        if with_log:
            if total is not None:
                found = total.log() if largest is None else largest + total.log()
            else:
                found = x.logsumexp(axis, keepdim=True) if log is None else log
            results.append(found.squeeze(axis))
        if disturbed == "weights_returned":
            results.append(weights)
        return tuple(results)

    kinds = {kind for _, kind in steps}
    gains = [at for at, (_, kind) in enumerate(steps) if kind == "gain"]
    below = {kind for _, kind in steps[: gains[-1]]} if gains else set()
    # Several large numbers hide by different ones once they are scaled, and logarithms of them say too little.
    vague = fill > float("-inf") and (way == "by_logs" or kinds & {"scale", "divide"})
    fused = None if disturbed or with_log or vague else kinds.isdisjoint(UNABLE) and below <= PLAIN
    if summed and (way.startswith("late") or summed.startswith("difference")):
        fused = None
    if 1 in sizes.values():
        fused = None
    return program, fused, [[sizes[label] for label in labels] for labels in axes.values()]


@settings(max_examples=25)
@given(drawn=programs(), dynamic=st.booleans())
def test_a_drawn_program_has_its_own_values(drawn: Any, dynamic: bool) -> None:
    program, fused, shapes = drawn
    log = check(program, random_operands(*shapes), close=1e-3, dynamic=dynamic)
    if fused and not dynamic:
        assert len(log.fused) == 1, str(log)
