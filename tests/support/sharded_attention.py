"""Attention on DTensors, against the same on one device: forward, backward, placements, collectives."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ranks import agree, placed, randoms, same, spelled

from einops_fast import OperandError, attention, explain_attention

GATHER = "all_gather_into_tensor"
PLAIN = "b h i d, b h j d, b h j e -> b h i e"
GROUPS = "b h i d, b g j d, b g j e -> b h i e"
LAST = "b i h d, b j g d, b j g e -> b i h e"
SHAPES = "4 4 6 8, 4 4 9 8, 4 4 9 5"
MANY = "2 8 6 8, 2 4 9 8, 2 4 9 5"

# Pattern, shapes of q, k, v, further arrays as name: (axes, placements), options, placements, those of the result,
# calls of gathering.
Case = tuple[str, str, dict[str, tuple[str, str]], dict[str, Any], str, str | None, int]
ON_FOUR: list[Case] = [
    # By batch and heads, nothing is sent.
    (PLAIN, SHAPES, {}, {}, "0, 0, 0", "0", 0),
    (PLAIN, SHAPES, {}, {"causal": True}, "1, 1, 1", "1", 0),
    (PLAIN, SHAPES, {}, {"causal": "bottom_right", "return_lse": True}, "1, 1, 1", "1", 0),
    (PLAIN, SHAPES, {}, {}, "r, r, r", "r", 0),
    (PLAIN, "3 6 6 8, 3 6 9 8, 3 6 9 5", {}, {}, "0, 0, 0", "0", 0),
    (PLAIN, SHAPES, {"mask": ("b 1 i j", "0"), "bias": ("h i j", "r")}, {}, "0, 0, 0", "0", 0),
    (PLAIN, SHAPES, {"mask": ("i j", "r"), "bias": ("h i j", "0")}, {}, "1, 1, 1", "1", 0),
    (PLAIN, SHAPES, {"alibi_slopes": ("h", "0"), "sinks": ("h", "0")}, {"causal": True}, "1, 1, 1", "1", 0),
    # Groups of heads.
    (GROUPS, MANY, {}, {"causal": True}, "1, 1, 1", "1", 0),
    (GROUPS, MANY, {}, {"causal": True}, "1, r, r", "1", 0),
    (GROUPS, "2 8 6 8, 2 2 9 8, 2 2 9 5", {}, {}, "1, r, r", "1", 0),
    (GROUPS, "2 8 6 8, 2 2 9 8, 2 2 9 5", {}, {}, "1, 1, 1", "1", 2),
    (GROUPS, "2 6 6 8, 2 3 9 8, 2 3 9 5", {"bias": ("h i j", "0")}, {}, "1, r, r", "1", 0),
    (LAST, "2 6 8 8, 2 9 4 8, 2 9 4 5", {"sinks": ("h", "0")}, {"causal": True}, "2, 2, 2", "2", 0),
    # By queries, with all keys.
    (PLAIN, SHAPES, {}, {}, "2, r, r", "2", 0),
    *[
        (PLAIN, "2 3 9 8, 2 3 11 8, 2 3 11 5", {}, {"causal": causal, "window": window, "return_lse": True},
         "2, r, r", "2", 0)
        for causal in (False, True, "bottom_right") for window in (None, (2, 1), (None, 3))
    ],
    (PLAIN, "2 3 9 8, 2 3 5 8, 2 3 5 5", {"mask": ("b i j", "1")}, {"causal": "bottom_right"}, "2, r, r", "2", 0),
    (PLAIN, SHAPES, {"mask": ("j i", "r"), "bias": ("h i j", "1")}, {"window": 2}, "2, r, r", "2", 0),
    (GROUPS, MANY, {"bias": ("h 1 j", "r")}, {"causal": True}, "2, r, r", "2", 0),
    (PLAIN, SHAPES, {}, {"causal": True}, "2, 2, 2", "2", 2),
    (PLAIN, SHAPES, {"alibi_slopes": ("h", "r")}, {"causal": True}, "2, r, r", "r", 1),
    # Of causal attention, early queries are exchanged for late ones.
    (PLAIN, "2 3 16 8, 2 3 16 8, 2 3 16 5", {}, {"causal": True}, "2, r, r", "2", 0),
    (PLAIN, "2 3 8 8, 2 3 11 8, 2 3 11 5", {}, {"causal": True, "return_lse": True}, "2, r, r", "2", 0),
    (GROUPS, "2 6 24 8, 2 2 30 8, 2 2 30 5", {"sinks": ("h", "r")}, {"causal": "bottom_right"}, "2, r, r", "2", 0),
    (PLAIN, "2 3 16 8, 2 3 16 8, 2 3 16 5", {}, {"causal": True}, "2, 2, 2", "2", 2),
    # Otherwise what isn't whole is gathered.
    (PLAIN, SHAPES, {}, {}, "r, 2, 2", "r", 2),
    (PLAIN, SHAPES, {}, {}, "3, 3, r", "r", 2),
    (PLAIN, SHAPES, {}, {}, "r, r, 3", "3", 0),
    (PLAIN, SHAPES, {}, {"return_lse": True}, "r, r, 3", "r", 1),
    (PLAIN, SHAPES, {"segment_ids": ("b i, b j", "0")}, {}, "0, 0, 0", "0", 0),
    (PLAIN, SHAPES, {"segment_ids": ("b i, b j", "r")}, {"causal": True}, "2, r, r", "2", 0),
]  # fmt: skip

ON_TWO_BY_TWO: list[Case] = [
    (GROUPS, MANY, {}, {"causal": True}, "01, 01, 01", "01", 0),
    (GROUPS, MANY, {"mask": ("b 1 i j", "0r")}, {"return_lse": True}, "02, 0r, 0r", "02", 0),
    (GROUPS, "2 6 5 8, 2 2 9 8, 2 2 9 5", {}, {"causal": True}, "12, 1r, 1r", "12", 0),
    (PLAIN, "2 3 9 8, 2 3 11 8, 2 3 11 5", {}, {"causal": True}, "22, rr, rr", "22", 0),
]


def check(mesh: Any, case: Case) -> None:
    """One call and its gradients."""
    pattern, shapes, further, options, given, result, gathered = case
    values, names, sizes = randoms(shapes), list[tuple[str, str | None]](), {"1": 1}
    for term, value in zip(pattern.split("->")[0].split(","), values, strict=True):
        sizes |= dict(zip(term.split(), value.shape, strict=True))
    for name, (axes, text) in further.items():
        for axis in axes.split(","):
            value = torch.randn([sizes[each] for each in axis.split()], dtype=torch.float64)
            if name in ("mask", "segment_ids"):
                value = value > -0.8 if name == "mask" else (value > 0).long()
            values.append(value.requires_grad_(name in ("bias", "sinks")))
            given += f", {text}"
            names.append((name, axis.strip() if "1" not in axis and name not in ("alibi_slopes", "sinks") else None))

    def run(q: Any, k: Any, v: Any, *others: Any) -> Any:
        arguments: dict[str, Any] = dict(options)
        for (name, axes), array in zip(names, others, strict=True):
            each = array if axes is None else (axes, array)
            arguments[name] = (arguments[name], each) if name in arguments else each
        return attention(pattern, q, k, v, **arguments)

    calls = agree(mesh, run, values, given, result, tolerance=1e-9).calls
    if result is not None:
        exchanged = calls.pop("alltoall_base_", 0)
        whole_runs = sizes["i"] % (2 * mesh.size(0)) == 0 and result == str(pattern.split("->")[1].split().index("i"))
        assert bool(exchanged) == (whole_runs and bool(options.get("causal")) and not options.get("window")), exchanged
        assert calls == ({GATHER: gathered} if gathered else {}), calls


def check_any(mesh: Any, seed: int) -> None:
    """Random sizes, placements, masks and options: the value is right, wherever it is."""
    chance = random.Random(seed)
    pattern, heads = chance.choice([PLAIN, GROUPS, LAST]), chance.choice([1, 2, 3, 4, 6, 8])
    groups = heads if pattern == PLAIN else chance.choice([each for each in range(1, heads + 1) if heads % each == 0])
    sizes = {"b": chance.randint(1, 4), "h": heads, "g": groups, "i": chance.choice([1, 3, 4, 6, 9]), "d": 4}
    sizes |= {"j": chance.choice([1, 3, 5, 8]), "e": chance.choice([4, 5])}
    terms = [term.split() for term in pattern.split("->")[0].split(",")]
    shapes = ", ".join(" ".join(str(sizes[label]) for label in term) for term in terms)
    given = ", ".join("".join(chance.choice("0123rr") for _ in range(mesh.ndim)) for _ in terms)
    further = {}
    for name, known in (("mask", ["b i j", "i j", "j i"]), ("bias", ["h i j", "b h i j", "i h j"]), ("sinks", ["h"])):
        axes = chance.choice(known)
        text = "".join(chance.choice([*map(str, range(len(axes.split()))), "r"]) for _ in range(mesh.ndim))
        further |= {name: (axes, text)} if chance.random() < 0.4 else {}
    options: dict[str, Any] = {"causal": chance.choice([False, True, "bottom_right"])}
    options["return_lse"] = chance.random() < 0.5
    options |= {"window": chance.choice([1, (2, 0), (None, 1), (3, None)])} if chance.random() < 0.3 else {}
    case = pattern, shapes, further, options, given, None, 0
    try:
        check(mesh, case)
    except Exception as error:
        raise AssertionError(f"{case}") from error


def check_packed(mesh: Any) -> None:
    """Packed sequences and a cache whose heads are sharded."""
    q, k = torch.randn(9, 8, 4), torch.randn(9, 4, 4)
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    wanted = attention(q, k, k, layout="thd", causal=True, cu_seqlens_q=ends)
    for texts, result in (("1, 1", "1"), ("0, 0", "r")):
        one, other = (placed(each, mesh, text) for each, text in zip((q, k), texts.split(", "), strict=True))
        starts = placed(ends, mesh, "r")
        found = attention(one, other, other, layout="thd", causal=True, cu_seqlens_q=starts, max_seqlen_q=5)
        assert spelled(found) == result
        same(found, wanted, 1e-5)
    q, k, lengths = torch.randn(4, 8, 1, 4), torch.randn(4, 4, 7, 4), torch.tensor([3, 7, 1, 2])
    wanted = attention(GROUPS, q, k, k, cache_seqlens=lengths)
    for texts in ("1, 1, r", "0, 0, 0"):
        one, other, places = (
            placed(each, mesh, text) for each, text in zip((q, k, lengths), texts.split(", "), strict=True)
        )
        same(attention(GROUPS, one, other, other, cache_seqlens=places), wanted, 1e-5)


def check_errors(mesh: Any) -> None:
    """One sentence each."""
    q = torch.randn(4, 4, 6, 8)
    one = placed(q, mesh, "0")
    with pytest.raises(OperandError, match="dropout_p isn't for DTensors"):
        attention(PLAIN, one, one, one, dropout_p=0.1)
    with pytest.raises(OperandError, match="q and k are of two frameworks, DTensor and torch"):
        attention(PLAIN, one, q, q)
    with pytest.raises(OperandError, match="q and k are of two frameworks, torch and DTensor"):
        attention(PLAIN, q, one, one)
    with pytest.raises(OperandError, match="not a DTensor of all"):
        explain_attention(PLAIN, one, one, one)


def cases(four: Any, square: Any) -> dict[str, Callable[[], None]]:
    """All, by name."""
    found: dict[str, Callable[[], None]] = {}
    for mesh, table in ((four, ON_FOUR), (square, ON_TWO_BY_TWO)):
        for case in table:
            _, shapes, further, options, given, _, _ = case
            found[f"attention of {shapes} with {[*further, options]} at {given}"] = partial(check, mesh, case)
    for seed in range(30):
        found[f"attention of random operands {seed}"] = partial(check_any, (four, square)[seed % 2], seed)
    found["packed attention"] = partial(check_packed, four)
    found["errors of attention"] = partial(check_errors, four)
    return found
