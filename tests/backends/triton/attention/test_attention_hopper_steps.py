"""What Hopper's attention kernels compute, without such a GPU: their sources are executed by NumPy, step by step."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import DEVICE, Poisoned, attention, check, hide_ends, randn, whole_calls
from gluon_on_cpu import functions_on_cpu, hopper_on_cpu

from einops_fast import attention as whole_attention
from einops_fast import attention_backend
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention import gradients as torch_attention_gradients
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.triton.attention.around import copyable, mask_bounds
from einops_fast.backends.triton.attention.hopper import plan as hopper_plan
from einops_fast.backends.triton.attention.hopper import positions as hopper_positions
from einops_fast.backends.triton.attention.hopper import tiles as hopper_tiles
from einops_fast.backends.triton.attention.hopper import tilings as hopper_tilings
from einops_fast.backends.triton.attention.hopper.call import numbers_of, programs_of
from einops_fast.backends.triton.attention.problem import Layout, problem
from einops_fast.planning.layout import contiguous_in_order, contiguous_strides

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="is for where there is no GPU")

PROGRAMS = 4
"""So few that each has several tiles."""


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[str]]:
    with (
        hopper_on_cpu() as found,
        mock.patch.object(torch_attention_runs, "_device", return_value=((9, 0), PROGRAMS)),
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_calls", {}),
    ):
        yield found


CASES: dict[str, dict[str, Any]] = {
    "plain": {"q_len": 140, "kv_len": 200},
    "long": {"batch": (), "q_len": 1030, "kv_len": 70},
    "causal, keys that none sees": {"q_len": 100, "kv_len": 300, "causal": True},
    "few keys": {"kv_len": 256, "head_dim": 64, "v_head_dim": 32},
    "few keys, narrow": {"kv_len": 140, "head_dim": 32, "v_head_dim": 32, "causal": True},
    "few keys, wide": {"kv_len": 140, "head_dim": 72, "v_head_dim": 40},
    "few keys, bias": {"kv_len": 136, "head_dim": 32, "v_head_dim": 32, "bias": (1, 2, 140, 136)},
    "few keys, softcap": {"kv_len": 140, "head_dim": 64, "v_head_dim": 64, "softcap": 3.0},
    "narrow window": {"q_len": 200, "head_dim": 32, "v_head_dim": 64, "window": (40, 30)},
    "more keys": {"kv_len": 500, "head_dim": 64, "v_head_dim": 64, "mask": (2, 1, 140, 500)},
    "window": {"q_len": 200, "kv_len": 200, "window": (40, 30), "softcap": 3.0},
    "wide": {"head_dim": 80, "causal": True},
    "wide values": {"v_head_dim": 72},
    "three quarters": {"head_dim": 96, "v_head_dim": 80},
    "widest": {"head_dim": 256, "v_head_dim": 200, "causal": True, "q_len": 100},
    "widest, three quarters": {"head_dim": 192, "v_head_dim": 136, "kv_len": 100},
    "widest keys": {"head_dim": 136, "causal": True, "q_len": 100, "kv_len": 200},
    "widest values": {"v_head_dim": 256, "window": (40, 30), "softcap": 3.0},
    "widest, grouped": {
        "batch": (2, 1, 3), "k_batch": (2, 1, 1), "head_dim": 136, "v_head_dim": 136, "q_len": 70, "kv_len": 70,
    },
    "bias": {"bias": (2, 2, 140, 200)},
    "bias over batch": {"bias": (1, 2, 140, 200), "causal": True, "softcap": 3.0},
    "bias over heads": {"bias": (2, 1, 140, 208), "kv_len": 208, "mask": (1, 2, 140, 208), "window": (70, 30)},
    "one bias": {"bias": (1, 1, 140, 200)},
    "by key and by query": {"bias": (1, 2, 1, 200), "mask": (2, 1, 140, 1)},
    "grouped": {
        "batch": (2, 1, 3), "k_batch": (2, 1, 1), "kv_len": 208, "bias": (1, 1, 3, 140, 208), "mask": (2, 1, 1, 1, 208),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case: str, ran: list[str]) -> None:
    options = {"q_len": 140, "kv_len": 200, "head_dim": 16, **CASES[case]}
    spec, inputs = attention(dtype="float16", **options)
    if spec.mask is not None and spec.mask[-2:] == (140, 208):
        inputs.mask[..., :130, :] = False
    check(spec, inputs, tolerance=3e-3)
    wide = max(spec.head_dim, spec.v_head_dim) > 128
    shared = spec.bias is not None and spec.bias[:-2] != spec.batch and spec.bias[-2] > 1
    gradients = ["hopper_values_kernel"] * wide + ["hopper_keys_kernel", "hopper_queries_kernel"]
    assert ran == ["hopper_kernel", *gradients] + ["hopper_bias_kernel"] * shared


APART: dict[str, dict[str, Any]] = {
    "plain": {"batch": (2, 1, 3), "k_batch": (2, 1, 1), "causal": True},
    "one head of keys": {"batch": (2, 3), "k_batch": (2, 1), "q_len": 100, "kv_len": 300, "causal": True},
    "wide": {"batch": (1, 3), "k_batch": (1, 1), "head_dim": 136, "v_head_dim": 72, "q_len": 70, "kv_len": 70},
    "odd rows": {"batch": (2, 3), "k_batch": (2, 1), "head_dim": 13, "v_head_dim": 21},
    "added": {
        "batch": (2, 1, 3), "k_batch": (2, 1, 1), "kv_len": 208, "bias": (1, 1, 3, 140, 208), "mask": (2, 1, 1, 1, 208),
    },
    "keys for the whole batch": {"batch": (2, 3), "k_batch": (1, 3)},
    "values for all heads": {"batch": (2, 3), "k_batch": (2, 3), "v_batch": (2, 1)},
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_gradients_of_shared_keys_are_summed_up_afterwards(
    case: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention_gradients, "pays_apart", lambda spec, units: True)
    monkeypatch.setattr(copyable, "_LENGTH", 100)
    options = {"q_len": 140, "kv_len": 200, "head_dim": 16, **APART[case]}
    spec, inputs = attention(dtype="float16", **options)
    check(spec, inputs, tolerance=3e-3)
    assert {"hopper_keys_kernel", "hopper_queries_kernel"} <= {*ran}


MASKS: dict[str, dict[str, Any]] = {
    "by key": {"mask": (2, 1, 1, 400)},
    "by query": {"mask": (1, 2, 300, 1)},
    "both": {"mask": (2, 1, 300, 400), "q_len": 300, "kv_len": 400},
    "causal": {"mask": (1, 1, 1, 400), "causal": True, "alignment": "bottom_right"},
    "grouped": {"batch": (2, 1, 3), "k_batch": (2, 1, 1), "mask": (2, 1, 3, 1, 400)},
    "bias": {"mask": (2, 2, 1, 400), "bias": (2, 2, 300, 400)},
    "shared bias": {"mask": (2, 1, 300, 400), "bias": (1, 2, 300, 400)},
    "wide": {"mask": (2, 1, 300, 400), "head_dim": 72},
}


@pytest.mark.parametrize("case", MASKS)
def test_what_a_mask_hides_at_both_ends_is_left_out(case: str, ran: list[str]) -> None:
    options = {"batch": (2, 2), "q_len": 300, "kv_len": 400, "head_dim": 16, **MASKS[case]}
    spec, inputs = attention(dtype="float16", **options)
    hide_ends(inputs.mask)
    with mock.patch.object(mask_bounds, "_WORTH", 0):
        check(spec, inputs, tolerance=3e-3)
    assert "hopper_kernel" in ran


def several_groups(long: int) -> AbstractContextManager[Any]:
    """As where sequences of so many positions are long."""
    return mock.patch.multiple(hopper_tilings, _LONG=long, _forward_alone=lambda *_: [])


@pytest.mark.parametrize("case", ["plain", "causal, keys that none sees", "bias", "one bias"])
@pytest.mark.parametrize("head_dim", [16, 40, 72])
def test_groups_that_take_turns(head_dim: int, case: str, ran: list[str]) -> None:
    options = {"q_len": 140, "kv_len": 200, "head_dim": head_dim, "softcap": 3.0 * (case == "bias"), **CASES[case]}
    spec, inputs = attention(dtype="float16", **options)
    with several_groups(50):
        check(spec, inputs, gradients=False, tolerance=3e-3)
    assert ran == ["hopper_kernel"]


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"causal": True, "q_len": 330, "alignment": "bottom_right"},
        {"window": (120, 40), "q_len": 300, "kv_len": 330},
        {"window": (130, None), "kv_len": 300},
        {"causal": True, "batch": (1, 3), "k_batch": (1, 1)},
    ],
    ids=["causal", "none seen", "window", "left", "grouped"],
)
@pytest.mark.parametrize("head_dim", [40, 72, 136])
def test_groups_that_leave_blocks_out(head_dim: int, options: dict[str, Any], ran: list[str]) -> None:
    spec, inputs = attention(
        dtype="float16", head_dim=head_dim, **{"batch": (1, 2), "q_len": 260, "kv_len": 200, **options}
    )
    with several_groups(70):
        check(spec, inputs, gradients=head_dim > 64, tolerance=3e-3)
    assert ran[0] == "hopper_kernel"


@pytest.mark.parametrize("moved", ["", "k", "v"])
def test_copies_of_rows_at_odd_places(moved: str, ran: list[str]) -> None:
    """Some of them because an array's features aren't contiguous; and of short arrays none."""
    head_dim, v_head_dim = (24, 16) if moved else (21, 13)
    spec, inputs = attention((1, 3), 100, 130, head_dim, v_head_dim, "float16", order=(0, 2, 1, 3), causal=True)
    if moved:
        setattr(inputs, moved, getattr(inputs, moved).mT.contiguous().mT)
    check(spec, inputs, tolerance=3e-3)
    assert ran == []
    with (
        mock.patch.object(copyable, "_LENGTH", 100),
        mock.patch.object(torch_attention_runs, "_calls", {}),
    ):
        check(spec, inputs, tolerance=3e-3)
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"]


ADDED: dict[str, dict[str, Any]] = {
    "bias": {"bias": (1, 1, 2, 100, 131)},
    "bias beside causality": {"bias": (1, 2, 1, 100, 131), "causal": True},
    "mask": {"mask": (1, 2, 1, 100, 131)},
    "bias and mask": {"bias": (1, 1, 1, 100, 131), "mask": (1, 1, 2, 100, 131)},
    "everything": {"bias": (2, 1, 1, 100, 131), "mask": (1, 1, 2, 100, 131), "head_dim": 13, "v_head_dim": 21},
    "shared keys": {"bias": (1, 1, 2, 100, 131), "k_batch": (2, 2, 1)},
    "bias of each": {"bias": (2, 2, 2, 100, 131), "mask": (2, 2, 2, 100, 131)},
    "bias of each beside causality": {"bias": (2, 2, 2, 100, 131), "causal": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "moved"),
    [*((case, False) for case in ADDED), *((case, True) for case in ("mask", "everything", "bias of each"))],
)
def test_copies_of_biases_and_masks_at_odd_places(case: str, moved: bool, ran: list[str]) -> None:
    options = {"batch": (2, 2, 2), "q_len": 100, "kv_len": 131, "head_dim": 16, **ADDED[case]}
    spec, inputs = attention(dtype="float16", **options)
    if inputs.mask is not None:
        inputs.mask[..., :, 120:] = False
        inputs.mask[..., 17, :] = False
    if moved:
        for name in ("bias", "mask"):
            if (array := getattr(inputs, name)) is not None:
                setattr(inputs, name, array.mT.contiguous().mT)
    with (
        mock.patch.object(copyable, "_SCORES", 0),
        mock.patch.object(copyable, "_LENGTH", 100),
    ):
        check(spec, inputs, tolerance=3e-3)
    shared = inputs.bias is not None and inputs.bias.shape[:-2] != spec.batch
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"] + ["hopper_bias_kernel"] * shared


@pytest.mark.parametrize(("scores", "size"), [(1 << 20, 1 << 30), (0, 1 << 10)])
def test_no_copies_of_few_scores_or_of_many_bytes(scores: int, size: int, ran: list[str]) -> None:
    spec, inputs = attention((1, 2), 40, 131, dtype="float16", bias=(1, 1, 40, 131))
    with mock.patch.object(copyable, "_SCORES", scores), mock.patch.object(copyable, "_MOST_BYTES", size):
        check(spec, inputs, tolerance=3e-3)
    assert ran == []


SUMMED: dict[str, dict[str, Any]] = {
    "over batch": {"batch": (5, 2), "bias": (1, 2, 140, 72)},
    "over heads": {"batch": (2, 7), "bias": (2, 1, 140, 72), "causal": True},
    "between": {"batch": (2, 5, 3), "bias": (2, 1, 3, 70, 72), "q_len": 70, "softcap": 3.0},
    "odd rows": {"batch": (3, 3), "bias": (1, 3, 140, 71), "kv_len": 71, "mask": (3, 1, 140, 71)},
    "wide": {"batch": (5, 1), "bias": (1, 1, 140, 72), "head_dim": 72},
}


@pytest.mark.parametrize(("case", "parts"), [*((case, 2) for case in SUMMED), ("over batch", 3), ("over heads", 3)])
def test_parts_of_the_gradient_of_a_bias(case: str, parts: int, ran: list[str]) -> None:
    spec, inputs = attention(dtype="float16", **{"q_len": 140, "kv_len": 72, "head_dim": 16, **SUMMED[case]})
    with mock.patch.object(hopper_plan, "parts_of_sums", return_value=parts), mock.patch.object(copyable, "_SCORES", 0):
        check(spec, inputs, tolerance=3e-3)
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel", "hopper_bias_kernel"]


@pytest.mark.parametrize(
    ("tiles", "sharers", "least", "most"),
    [(16, 256, 6, 9), (128, 64, 1, 1), (2000, 8, 1, 1), (1, 2048, 40, 132), (3, 2, 1, 2), (200, 1000, 1, 3)],
)
def test_in_how_many_parts_a_gradient_is_summed_up(tiles: int, sharers: int, least: int, most: int) -> None:
    """A few tiles that many elements share keep the device busy only in parts."""
    assert least <= hopper_tilings.parts_of_sums(tiles, sharers, 132) <= most


@pytest.mark.parametrize(("length", "copied"), [(1 << 22, True), (1 << 24, False)])
def test_no_copies_of_what_takes_64_bits_inside_a_tile(length: int, copied: bool) -> None:
    """Where features lie that far apart, the general kernels read the arrays as they lie."""
    spec = AttentionSpec((2,), (2,), (2,), (2,), length, length, 128, 128, "float16", 0.1)
    shape = (2, length, 128)
    apart, beside = contiguous_in_order(shape, (0, 2, 1)), contiguous_strides(shape)
    layouts = {
        "q": Layout(shape, apart, "float16"),
        **dict.fromkeys(("k", "v", "out"), Layout(shape, beside, "float16")),
        "lse": Layout(shape[:2], (length, 1)),
    }
    given = problem(spec, layouts, ((9, 0), 132))
    found, copies = copyable.on_copies(given, ("q", "k", "v", "out"), lambda _: True)
    copied_names = set(copies.strides) if copies else set()
    assert (copied_names, found.features.wide) == (({"q"}, False) if copied else (set(), True))


@pytest.mark.parametrize("layout", ["bs3hd", "3bhsd"])
def test_gradients_of_parts_of_one_array(layout: str, ran: list[str]) -> None:
    sizes = {"b": 2, "s": 140, "3": 3, "h": 2, "d": 16}
    packed = randn(*map(sizes.__getitem__, layout), dtype="float16").requires_grad_()
    exact = packed.detach().double().requires_grad_()
    with whole_calls():
        with attention_backend("triton"):
            found = whole_attention(packed, layout=layout, causal=True)
        with attention_backend("math"):
            expected = whole_attention(exact, layout=layout, causal=True)
    given = randn(*found.shape, dtype="float16", seed=1)
    with mock.patch.object(torch, "stack", side_effect=AssertionError("the gradients are put together")):
        (gradient,) = torch.autograd.grad(found, packed, given)
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"]
    assert gradient.is_contiguous()
    assert torch.allclose(gradient.double(), *torch.autograd.grad(expected, exact, given.double()), atol=3e-3)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("heads", "length", "units", "most"),
    [(128, 2048, 132, 1.02), (32, 4096, 132, 1.03), (16, 1024, 4, 1.01), (33, 700, 10, 1.15), (2, 500, 132, 30.0)],
)
def test_causal_tiles_are_dealt_out_evenly(heads: int, length: int, units: int, most: float, turned: bool) -> None:
    """Each tile once, and no program has ``most`` times as many blocks as there are on average."""
    spec = AttentionSpec((heads,), (heads,), (heads,), (heads,), length, length, 64, 64, "float16", 0.1, causal=True)
    shape = (heads, length, 64)
    strides = contiguous_strides(shape)
    given = problem(spec, dict.fromkeys(("q", "k", "v", "out"), Layout(shape, strides)), ((9, 0), units))
    tiling = hopper_tiles.HopperTiling(2, 64, 2, 64, 64, ((True,) * 3,) * 7, right=True, turned=turned)
    numbers = numbers_of(given, tiling, heads, length)
    programs = programs_of(given, tiling, heads, length)
    deal = functions_on_cpu(hopper_positions.__name__, programs=programs)["tile_of"]
    seen: list[tuple[int, int]] = []
    blocks = [0] * programs
    for turn in range(numbers.turns):
        element, start, first, *_, end = map(int, deal(turn, numbers, tiling))
        assert 0 <= element < heads
        blocks[turn % programs] += max(0, end - first)
        if start < length:
            seen.append((element, start))
        else:
            assert end <= first
    assert sorted(seen) == [(head, start) for head in range(heads) for start in range(0, length, 128)]
    assert max(blocks) <= most * sum(blocks) / units
