"""Attention on DTensors, against the same on one device: forward, backward, placements, collectives."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import Traffic, agree, placed, randoms, same
from torch.utils.checkpoint import checkpoint

from einops_fast import OperandError, attention, explain_attention
from einops_fast.backends.torch.sharding import attention as sharding
from einops_fast.backends.torch.sharding import sequence
from einops_fast.backends.torch.sharding.pieces import kept

GATHER = "all_gather_into_tensor"
PLAIN = "b h i d, b h j d, b h j e -> b h i e"
GROUPS = "b h i d, b g j d, b g j e -> b h i e"
LAST = "b i h d, b j g d, b j g e -> b i h e"
SHAPES = "4 4 6 8, 4 4 9 8, 4 4 9 5"
MANY = "2 8 6 8, 2 4 9 8, 2 4 9 5"

# Pattern, shapes of q, k, v, further arrays as name: (axes, placements), options, placements, those of the result,
# calls of gathering, or the form in which the sequence is shared.
Case = tuple[str, str, dict[str, tuple[str, str]], dict[str, Any], str, str | None, int | str]
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
    (PLAIN, "1 4 8 8, 1 4 8 8, 1 4 8 5", {}, {"window": (1, 0)}, "2, 2, 2", "2", "ring"),
    (PLAIN, "1 1 6 8, 1 1 9 8, 1 1 9 5", {}, {}, "2, 2, 2", "2", 2),
    (PLAIN, SHAPES, {}, {}, "2, 2, 2", "2", "heads"),
    (PLAIN, SHAPES, {"alibi_slopes": ("h", "r")}, {"causal": True}, "2, r, r", "r", 1),
    # Of causal attention, early queries are exchanged for late ones.
    (PLAIN, "2 3 16 8, 2 3 16 8, 2 3 16 5", {}, {"causal": True}, "2, r, r", "2", 0),
    (PLAIN, "2 3 8 8, 2 3 11 8, 2 3 11 5", {}, {"causal": True, "return_lse": True}, "2, r, r", "2", 0),
    (GROUPS, "2 6 24 8, 2 2 30 8, 2 2 30 5", {"sinks": ("h", "r")}, {"causal": "bottom_right"}, "2, r, r", "2", 0),
    (PLAIN, "2 3 16 8, 2 3 16 8, 2 3 16 5", {}, {"causal": True}, "2, 2, 2", "2", 2),
    (PLAIN, "2 3 16 8, 2 3 16 8, 2 3 16 5", {"bias": ("h i j", "1")}, {"causal": True}, "2, r, r", "2", 0),
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

# Sequences that ranks share, by each of these forms: as before, but for placements of the further arrays alone; those
# of q, k, v and the result are by queries and keys.
EACH, RUNS = "gather ring heads", "gather ring"
FORMS: list[tuple[str, str, dict[str, tuple[str, str]], dict[str, Any], str]] = [
    *[
        (PLAIN, "1 4 10 4, 1 4 13 4, 1 4 13 3", {}, {"causal": causal, "window": window, "return_lse": True}, form)
        for causal, window, form in (
            (True, None, RUNS), ("bottom_right", (2, 1), RUNS), (False, (2, 1), EACH), (False, (None, 3), RUNS),
            (True, (9, 0), "ring"), (False, (0, 20), "ring"),
        )
    ],
    (PLAIN, "1 4 13 4, 1 4 5 4, 1 4 5 3", {}, {"causal": "bottom_right", "return_lse": True}, EACH),  # keys of none
    (PLAIN, "1 4 5 4, 1 4 16 4, 1 4 16 3", {}, {"alignment": "bottom_right", "window": (1, 3)}, EACH),
    (PLAIN, "1 4 2 4, 1 4 3 4, 1 4 3 3", {}, {"causal": True}, EACH),  # and empty shards
    # Of causal attention, early queries are exchanged for late ones.
    (PLAIN, "1 4 16 4, 1 4 16 4, 1 4 16 3", {}, {"causal": True, "return_lse": True}, EACH),
    (PLAIN, "1 4 8 4, 1 4 24 4, 1 4 24 3", {"bias": ("h i j", "1")}, {"causal": "bottom_right"}, EACH),
    (GROUPS, "1 8 16 4, 1 4 16 4, 1 4 16 3", {"mask": ("i j", "0"), "sinks": ("h", "r")}, {"causal": True}, EACH),
    # Groups of heads, of which ranks have parts, and one head of keys.
    (GROUPS, "1 8 7 4, 1 2 9 4, 1 2 9 3", {"bias": ("h 1 j", "2")}, {"softcap": 2.0}, EACH),
    (GROUPS, "1 4 7 4, 1 1 9 4, 1 1 9 3", {"mask": ("1 j", "1")}, {"window": (3, 2)}, EACH),
    (LAST, "1 7 8 4, 1 9 4 4, 1 9 4 3", {"bias": ("h i j", "r")}, {"scale": 0.3}, EACH),
    # Heads that ranks can't share, and batches that they can.
    (PLAIN, "1 3 7 4, 1 3 9 4, 1 3 9 3", {"bias": ("h i j", "2")}, {}, RUNS),
    (PLAIN, "4 3 7 4, 4 3 9 4, 4 3 9 3", {"bias": ("b h i j", "r")}, {"causal": True}, EACH),
    (PLAIN, "4 3 7 4, 4 3 9 4, 4 3 9 3", {"segment_ids": ("b i, b j", "1")}, {}, EACH),
    # Some ranks see nothing, and take part in adding up the gradients of what others see.
    (PLAIN, "1 3 9 4, 1 3 1 4, 1 3 1 4", {"bias": ("h i j", "1")}, {"window": (3, None)}, RUNS),
    # Slopes say something about positions of the whole sequence.
    (PLAIN, "1 4 7 4, 1 4 9 4, 1 4 9 3", {"alibi_slopes": ("h", "r")}, {"causal": True, "window": 3}, "heads"),
]  # fmt: skip


def check_form(mesh: Any, form: str, dims: str, case: Any) -> None:
    """A call by one form, whatever it costs."""
    pattern, shapes, further, options, _ = case
    axis = next(at for at, word in enumerate(pattern.split(",")[0].split()) if word == "i")
    given = dims.replace("s", str(axis))
    spread = {
        name: (axes, "".join([text if each == "s" else "r" for each in dims])) for name, (axes, text) in further.items()
    }
    with mock.patch.object(sharding, "cheapest", return_value=form):
        try:
            check(mesh, (pattern, shapes, spread, options, f"{given}, {given}, {given}", None, 0))
        except Exception as error:
            raise AssertionError(f"{form} at {dims} of {case}") from error
    (call,) = sharding._calls.values()
    assert call.form == form, call.form
    sharding._calls.clear()


def forms(mesh: Any, dims: str, cases: Any) -> dict[str, Callable[[], None]]:
    """All forms of these cases, by name."""
    return {
        f"attention by {form} at {dims}: {case}": partial(check_form, mesh, form, dims, case)
        for case in cases
        for form in case[-1].split()
    }


def check_dropout(four: Any, square: Any) -> None:
    """The weights that are dropped depend on the seed and their positions, whatever the mesh and the form."""
    q, k, v = values = randoms("2 8 6 4, 2 4 9 4, 2 4 9 3")
    mask, weight = torch.rand(6, 9) < 0.8, torch.randn(2, 8, 6, 3, dtype=torch.float64)
    torch.manual_seed(1)
    keeps = kept(torch.randint(2**31, (1,)), [torch.arange(size) for size in (2, 8, 6, 9)], 0.4)
    assert 0.5 < keeps.double().mean() < 0.7
    scores = (q @ k.repeat_interleave(2, 1).mT / 2).masked_fill(~(mask & torch.ones(6, 9).tril().bool()), -torch.inf)
    wanted = (scores.softmax(-1).nan_to_num() * keeps / 0.6) @ v.repeat_interleave(2, 1)
    gradients = torch.autograd.grad((wanted * weight).sum(), values)
    for mesh, text, form in (
        (four, "r", "gather"), (four, "2", "gather"), (four, "2", "ring"), (four, "2", "heads"), (four, "1", "gather"),
        (square, "12", "heads"), (square, "21", "ring"), (square, "22", "gather"), (square, "02", "ring"),
    ):  # fmt: skip
        sharding._calls.clear()
        torch.manual_seed(1 + dist.get_rank())  # that of the first rank counts
        arrays = [placed(value, mesh, text) for value in values]
        whole = "r" * mesh.ndim
        with mock.patch.object(sharding, "cheapest", return_value=form):
            out = attention(GROUPS, *arrays, dropout_p=0.4, causal=True, mask=("i j", placed(mask, mesh, whole)))
        same(out, wanted.detach())
        (out * placed(weight, mesh, whole)).sum().backward()
        for array, gradient in zip(arrays, gradients, strict=True):
            same(array.grad, gradient)


def check(mesh: Any, case: Case) -> None:
    """One call and its gradients."""
    pattern, shapes, further, options, given, result, gathered = case
    sharding._calls.clear()
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

    found = agree(mesh, run, values, given, result, tolerance=1e-9).calls
    if result is not None:
        form = gathered if isinstance(gathered, str) else "gather"
        (call,) = sharding._calls.values()
        assert call.form == form, call.form
        exchanged = found.pop("alltoall_base_", 0)
        whole_runs = sizes["i"] % (2 * mesh.size(0)) == 0 and result == str(pattern.split("->")[1].split().index("i"))
        evens = whole_runs and bool(options.get("causal")) and not options.get("window")
        assert bool(exchanged) == (evens or form != "gather"), exchanged
        assert found == ({GATHER: gathered} if form == "gather" and gathered else {}), found


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
    """Packed sequences of several lengths, whose heads or tokens are sharded, and a cache."""
    ends, others = (torch.tensor(each, dtype=torch.int32) for each in ([0, 4, 4, 9, 10], [0, 3, 5, 9, 9]))
    values = *randoms("11 8 4, 11 4 4, 11 4 3"), ends, ends
    apart = *values[:3], ends, others
    for options, known, form, result in (
        ({"causal": True}, values, "gather", "0"), ({"causal": "bottom_right"}, values, "heads", "0"),
        ({"window": (2, 0)}, values, "gather", "0"), ({}, values, "heads", "0"), ({}, apart, "gather", "0"),
        ({"causal": True}, apart, "gather", "r"), ({"window": (2, 1)}, values, "gather", "r"),
        ({"causal": True, "window": 1}, apart, "heads", "0"),
    ):  # fmt: skip
        sharding._calls.clear()

        def run(q: Any, k: Any, v: Any, ends: Any, others: Any, known: Any = known, options: Any = options) -> Any:
            keys = {} if known is values else {"cu_seqlens_kv": others}
            lengths = {"cu_seqlens_q": ends, "max_seqlen_q": 5, "max_seqlen_kv": 5}
            return attention(q, k, v, layout="thd", **lengths, **keys, **options)

        with mock.patch.object(sharding, "cheapest", return_value=form):
            agree(mesh, run, known, "0, 0, 0, r, r", result)
            if options in ({}, {"causal": True}):
                agree(mesh, run, known, "1, 1, 1, r, r", "1")
                agree(mesh, run, known, "0, r, r, r, r")
    q, k, lengths = torch.randn(4, 8, 1, 4), torch.randn(4, 4, 7, 4), torch.tensor([3, 7, 1, 2])
    wanted = attention(GROUPS, q, k, k, cache_seqlens=lengths)
    for texts in ("1, 1, r", "0, 0, 0"):
        one, other, places = (
            placed(each, mesh, text) for each, text in zip((q, k, lengths), texts.split(", "), strict=True)
        )
        same(attention(GROUPS, one, other, other, cache_seqlens=places), wanted, 1e-5)


def check_overlap(mesh: Any) -> None:
    """What the next block needs is on its way before this one's kernel is launched, gradients too."""
    events: list[str] = []
    exchange, attend = dist.all_to_all_single, sequence.attend

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any) -> Any:
            return q.view_as(q)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            events.append("gradient")
            return gradient

    def sent(*arguments: Any, **options: Any) -> Any:
        events.append("send")
        return exchange(*arguments, **options)

    def launched(request: Any, arrays: Any) -> Any:
        events.append("attend")
        return attend(request, {**arrays, "q": Seen.apply(arrays["q"])})

    arrays = [placed(each, mesh, "2") for each in randoms("1 1 8 4, 1 1 8 4, 1 1 8 4")]
    with (
        mock.patch.object(sharding, "cheapest", return_value="ring"), mock.patch.object(sequence, "attend", launched),
        mock.patch.object(dist, "all_to_all_single", sent),
    ):  # fmt: skip
        found = attention(PLAIN, *arrays)
        assert events == ["send", "send", "attend"] * 3 + ["attend"], events  # of k and v
        events.clear()
        found.sum().backward()
        assert events == ["gradient"] + ["send", "send", "gradient"] * 3, events


def check_sent(mesh: Any) -> None:
    """Each form is chosen by the bytes that ranks receive in it; a ring sends no block that nobody sees."""
    arrays = [placed(each.detach(), mesh, "2") for each in randoms("1 8 16 4, 1 4 32 4, 1 4 32 3")]
    for options in ({}, {"window": (3, 0)}, {"causal": True}):
        for form, counted in (("gather", 0.75), ("ring", 1.0), ("heads", 0.75)):  # a rank's own part isn't received
            sharding._calls.clear()
            with mock.patch.object(sharding, "cheapest", return_value=form) as chooser:
                attention(GROUPS, *arrays, **options)
            ((received, _), _) = chooser.call_args
            with Traffic() as traffic:
                attention(GROUPS, *arrays, **options)
            most = torch.tensor(traffic.bytes)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            if "causal" not in options:
                assert most * counted == received[form], (options, form, most, received)
            elif form != "heads":  # queries and results that are exchanged count whole
                assert 0.75 * received[form] <= most <= 4 / 3 * received[form], (form, most, received)


def check_calls(mesh: Any, form: str) -> None:
    """Gradients of gradients and of some arrays, kept graphs, checkpoints, low precision, calls without gradients."""
    values = randoms("1 4 8 4, 1 4 8 4, 1 4 8 3")
    run = partial(attention, PLAIN, causal=True)
    sharding._calls.clear()
    with mock.patch.object(sharding, "cheapest", return_value=form):
        seconds = []
        for arrays in (values, [placed(each, mesh, "2") for each in values]):
            total = run(*arrays).square().sum()
            firsts = torch.autograd.grad(total, arrays, create_graph=True)
            again = torch.autograd.grad(total, arrays, retain_graph=True)
            for first, other in zip(firsts, again, strict=True):
                same(first, other.full_tensor() if arrays is not values else other)
            seconds.append(torch.autograd.grad(sum(each.square().sum() for each in firsts), arrays))
        for found, wanted in zip(seconds[1], seconds[0], strict=True):
            same(found, wanted, 1e-8)
        for needed in ("q", "k", "kv"):
            some = [each.detach().requires_grad_(name in needed) for each, name in zip(values, "qkv", strict=True)]
            agree(mesh, run, some, "2, 2, 2", "2")
        dropping = partial(run, dropout_p=0.3)
        kept_ones, gradients = partial(checkpoint, dropping, use_reentrant=False), []
        for call in (dropping, kept_ones):
            torch.manual_seed(5)
            arrays = [placed(each, mesh, "2") for each in values]
            gradients.append(torch.autograd.grad(call(*arrays).sum(), arrays))
        for found, wanted in zip(*gradients, strict=True):
            same(found, wanted.full_tensor())
        low = run(*[placed(each.detach().bfloat16(), mesh, "2") for each in values])
        assert low.dtype == torch.bfloat16
        same(low.double(), run(*values).detach(), 2e-2)
        with torch.inference_mode():
            same(run(*[placed(each.detach(), mesh, "2") for each in values]), run(*values))


def check_errors(mesh: Any) -> None:
    """One sentence each."""
    q = torch.randn(4, 4, 6, 8)
    one = placed(q, mesh, "0")
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
    found |= forms(four, "s", [*FORMS[::2], *FORMS[-2:]])
    for dims in ("1s", "s1", "0s"):
        found |= forms(square, dims, FORMS[1::7])
    found["dropout of attention"] = partial(check_dropout, four, square)
    for form in ("gather", "ring", "heads"):
        found[f"calls of attention by {form}"] = partial(check_calls, four, form)
    found["bytes of attention"] = partial(check_sent, four)
    found["overlap of attention"] = partial(check_overlap, four)
    found["packed attention"] = partial(check_packed, four)
    found["errors of attention"] = partial(check_errors, four)
    return found
