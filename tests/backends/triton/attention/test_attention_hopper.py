"""What Hopper's attention kernels compute: on such a GPU, or their sources executed by NumPy where there is none."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import attention, hide_ends, randn, run, whole_calls
from hopper_attention import MARKS, ON_GPU, check_hopper, hopper_kernels, kernels_of

from einops_fast import attention as whole_attention
from einops_fast import attention_backend
from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.triton.attention.around import copyable, mask_bounds
from einops_fast.backends.triton.attention.hopper import tilings as hopper_tilings
from einops_fast.runtime.plan_cache import clear_plans

pytestmark = MARKS

on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a Hopper GPU")


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[str]]:
    with hopper_kernels() as names:
        yield names


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

ON_GPU_ONLY: dict[str, dict[str, Any]] = {
    "odd": {"q_len": 129, "kv_len": 1023},
    "many keys": {"q_len": 1100, "kv_len": 2049},
    "longer": {"batch": (1, 3), "q_len": 2100, "kv_len": 2049},
    "short": {"q_len": 17, "kv_len": 1},
    "causal": {"q_len": 513, "kv_len": 513, "causal": True},
    "causal, fewer queries": {"q_len": 100, "kv_len": 700, "causal": True, "alignment": "bottom_right"},
    "causal, fewer keys": {"q_len": 700, "kv_len": 100, "causal": True, "alignment": "bottom_right"},
    "window to the left": {"q_len": 400, "kv_len": 900, "window": (128, None), "alignment": "bottom_right"},
    "window, causal": {"q_len": 900, "kv_len": 900, "window": (63, None), "causal": True},
    "empty window": {"q_len": 300, "kv_len": 300, "window": (0, 0)},
    "one number": {"bias": (1, 1, 1, 1)},
    "both, softcap": {"kv_len": 208, "bias": (1, 2, 140, 208), "mask": (2, 1, 140, 208), "softcap": 5.0},
    "bias, many keys, softcap": {"kv_len": 2056, "bias": (2, 2, 140, 2056), "softcap": 5.0, "causal": True},
    "both, long": {"q_len": 1100, "kv_len": 1040, "bias": (2, 2, 1100, 1040), "mask": (2, 1, 1100, 1040)},
    # Many tiles of few keys.
    "tiles": {"batch": (4, 70), "q_len": 180, "kv_len": 200},
    "tiles, halves of blocks": {"batch": (4, 70), "q_len": 180, "kv_len": 321},
    "tiles, more keys": {"batch": (4, 70), "q_len": 180, "kv_len": 700},
    "tiles, causal": {"batch": (4, 70), "q_len": 180, "kv_len": 380, "causal": True},
    "tiles, keys that none sees": {"batch": (8, 40), "q_len": 200, "kv_len": 700, "causal": True},
    "tiles, grouped": {"batch": (3, 20, 5), "k_batch": (3, 20, 1), "q_len": 180, "kv_len": 144},
    "tiles, bias": {"batch": (4, 70), "q_len": 180, "kv_len": 256, "bias": (4, 70, 180, 256)},
    "tiles, shared bias": {"batch": (4, 70), "q_len": 180, "kv_len": 176, "bias": (1, 70, 180, 176), "causal": True},
    "tiles, softcap": {"batch": (4, 70), "q_len": 180, "kv_len": 200, "softcap": 5.0},
    "tiles, window": {"batch": (4, 70), "q_len": 180, "kv_len": 500, "window": (60, 40)},
    "tiles, both": {
        "batch": (4, 70), "q_len": 180, "kv_len": 184, "bias": (1, 70, 180, 184), "mask": (4, 1, 180, 184),
    },
}  # fmt: skip

NARROW, WIDE = [(32, 32), (64, 64), (128, 128), (16, 24), (80, 40), (96, 128)], [(256, 256), (192, 128), (72, 200)]


def with_features(cases: dict[str, dict[str, Any]]) -> list[Any]:
    """Cases as they are, and on a GPU with heads of these features, too: of wide ones without a bias and a mask."""
    found: list[Any] = [(options, None) for options in cases.values()]
    for options in cases.values() if ON_GPU else ():
        wide = [] if {"bias", "mask"} & {*options} else WIDE
        found += [(options, features) for features in (*NARROW, *wide)]
    return found


def problem(options: dict[str, Any], features: tuple[int, int] | None = None, **others: Any) -> tuple[Any, Any]:
    given = {"q_len": 140, "kv_len": 200, "head_dim": 16, "dtype": "float16", **options, **others}
    if features:
        given |= {"head_dim": features[0], "v_head_dim": features[1]}
        given["dtype"] = "bfloat16" if features[0] in (128, 192) else "float16"
    return attention(**given)


@pytest.mark.parametrize(("options", "features"), with_features(CASES | ON_GPU_ONLY if ON_GPU else CASES), ids=str)
def test_results_and_gradients(options: dict[str, Any], features: tuple[int, int] | None, ran: list[str]) -> None:
    spec, inputs = problem(options, features)
    if spec.mask is not None and 1 not in spec.mask[-2:]:
        # Rows without keys, and a whole tile of them.
        inputs.mask[..., :130, :] = False
    if spec.bias is not None and spec.bias[-1] > 1:
        inputs.bias[..., 3::7] = -math.inf
    check_hopper(spec, inputs)
    assert ran == kernels_of(spec)


APART: dict[str, dict[str, Any]] = {
    "plain": {"batch": (2, 1, 3), "k_batch": (2, 1, 1), "causal": True},
    "one head of keys": {"batch": (2, 3), "k_batch": (2, 1), "q_len": 100, "kv_len": 300, "causal": True},
    "wide": {"batch": (1, 3), "k_batch": (1, 1), "head_dim": 136, "v_head_dim": 72, "q_len": 70, "kv_len": 70},
    "odd rows": {"batch": (2, 3), "k_batch": (2, 1), "head_dim": 13, "v_head_dim": 21, "order": (0, 2, 1, 3)},
    "added": {
        "batch": (2, 1, 3), "k_batch": (2, 1, 1), "kv_len": 208, "bias": (1, 1, 3, 140, 208), "mask": (2, 1, 1, 1, 208),
    },
    "keys for the whole batch": {"batch": (2, 3), "k_batch": (1, 3)},
    "values for all heads": {"batch": (2, 3), "k_batch": (2, 3), "v_batch": (2, 1), "window": (100, None)},
}  # fmt: skip


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


@pytest.mark.parametrize(("options", "features"), with_features(MASKS), ids=str)
def test_what_a_mask_hides_at_both_ends_is_left_out(
    options: dict[str, Any], features: tuple[int, int] | None, ran: list[str]
) -> None:
    spec, inputs = problem({"q_len": 300, "kv_len": 400, **options}, features)
    hide_ends(inputs.mask)
    with mock.patch.object(mask_bounds, "_WORTH", 0):
        check_hopper(spec, inputs)
    assert ran == kernels_of(spec)


def several_groups(long: int) -> AbstractContextManager[Any]:
    """As where sequences of so many positions are long."""
    return mock.patch.multiple(hopper_tilings, _LONG=long, _forward_alone=lambda *_: [])


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
    spec, inputs = problem({"batch": (1, 2), "q_len": 260, **options}, head_dim=head_dim)
    with several_groups(70):
        check_hopper(spec, inputs, gradients=head_dim > 64)
    assert ran == kernels_of(spec, gradients=head_dim > 64)


@pytest.mark.parametrize("features", [(75, 53), (33, 130), (64, 250)] if ON_GPU else [(21, 13)])
@pytest.mark.parametrize("moved", ["", "k", "v"])
def test_copies_of_rows_at_odd_places(moved: str, features: tuple[int, int], ran: list[str]) -> None:
    """Some of them because an array's features aren't contiguous, or rows have gaps; and of short arrays none."""
    features = (24, 16) if moved == "k" else features
    spec, inputs = problem({"batch": (1, 3), "order": (0, 2, 1, 3), "causal": True}, features)
    if moved == "k":
        inputs.k = inputs.k.mT.contiguous().mT
    elif moved:
        inputs.v = randn(*inputs.v.shape[:-1], 300, dtype=spec.dtype, seed=2)[..., 1 : 1 + features[1]]
    check_hopper(spec, inputs)
    assert ran == []
    clear_plans()
    with mock.patch.object(copyable, "_LENGTH", 100), mock.patch.object(torch_attention_runs, "_calls", {}):
        check_hopper(spec, inputs)
    assert ran == kernels_of(spec)


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


@pytest.mark.parametrize("dtype", ["float16", "float32"] if ON_GPU else ["float16"])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("case", ADDED)
def test_copies_of_biases_and_masks_at_odd_places(case: str, moved: bool, dtype: str, ran: list[str]) -> None:
    spec, inputs = problem({"batch": (2, 2, 2), "q_len": 100, "kv_len": 131, **ADDED[case]})
    if inputs.mask is not None:
        inputs.mask[..., :, 120:] = False
        inputs.mask[..., 17, :] = False
    if inputs.bias is not None:
        inputs.bias = inputs.bias.to(getattr(torch, dtype))
    for name in ("bias", "mask") if moved else ():
        if (array := getattr(inputs, name)) is not None:
            setattr(inputs, name, array.mT.contiguous().mT)
    with mock.patch.object(copyable, "_SCORES", 0), mock.patch.object(copyable, "_LENGTH", 100):
        check_hopper(spec, inputs)
    assert ran == kernels_of(spec)


SUMMED: dict[str, dict[str, Any]] = {
    "over batch": {"batch": (5, 2), "bias": (1, 2, 140, 72)},
    "over heads": {"batch": (2, 7), "bias": (2, 1, 140, 72), "causal": True},
    "between": {"batch": (2, 5, 3), "bias": (2, 1, 3, 70, 72), "q_len": 70, "softcap": 3.0},
    "odd rows": {"batch": (3, 3), "bias": (1, 3, 140, 71), "kv_len": 71, "mask": (3, 1, 140, 71)},
    "wide": {"batch": (5, 1), "bias": (1, 1, 140, 72), "head_dim": 72},
}


@pytest.mark.skipif(ON_GPU, reason="calls as a whole run the general kernels there")
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
    (gradient,) = torch.autograd.grad(found, packed, given)
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"]
    assert gradient.is_contiguous()
    assert torch.allclose(gradient.double(), *torch.autograd.grad(expected, exact, given.double()), atol=3e-3)


def test_any_order_of_axes_and_slices(ran: list[str]) -> None:
    """The same bits, whatever the strides that the hardware can copy."""
    spec, inputs = problem({"batch": (2, 3), "causal": True, "order": (0, 2, 1, 3)})
    expected = run(spec, inputs)
    memory = randn(2, 3, 250, 40, dtype="float16")
    memory[:, :, 8:208, 8:24] = inputs.k
    others = [("k", memory[:, :, 8:208, 8:24])]
    for axes in (0, 2, 1, 3), (2, 0, 1, 3), (1, 2, 0, 3):
        back = [axes.index(at) for at in range(4)]
        others += [(name, getattr(inputs, name).permute(axes).contiguous().permute(back)) for name in ("q", "k", "v")]
    for name, moved in others if ON_GPU else others[::3]:
        found = run(spec, AttentionInputs(**{**vars(inputs), name: moved}))
        assert all(torch.equal(found[each], value) for each, value in expected.items())
    assert expected["out"].permute(spec.order).is_contiguous()
    assert all(ran)


@on_gpu
@pytest.mark.parametrize("name", ["v", "mask"])
def test_odd_addresses_take_the_other_kernels(name: str, ran: list[str]) -> None:
    spec, inputs = problem({"batch": (2, 3), "kv_len": 208, "mask": (2, 3, 140, 208)}, (64, 64))
    expected = run(spec, inputs)
    given = getattr(inputs, name)
    odd = torch.empty(given.numel() + 1, dtype=given.dtype, device="cuda")[1:].view_as(given).copy_(given)
    found = run(spec, AttentionInputs(**{**vars(inputs), name: odd}))
    refused = ran[len(kernels_of(spec)) :]
    assert refused
    assert not any(refused)
    for each, value in expected.items():
        torch.testing.assert_close(found[each], value, atol=4e-3, rtol=4e-3)


@on_gpu
@pytest.mark.parametrize("added", [{}, {"bias": (1, 4, 1008, 1008), "mask": (4, 1, 1008, 1008)}])
@pytest.mark.parametrize("head_dim", [128, 192])
def test_the_same_bits_again(head_dim: int, added: dict[str, Any]) -> None:
    spec, inputs = attention((4, 4), 1008, 1008, head_dim, dtype="bfloat16", causal=True, **added)
    first = run(spec, inputs)
    for _ in range(3):
        again = run(spec, inputs)
        assert all(torch.equal(again[name], value) for name, value in first.items())
