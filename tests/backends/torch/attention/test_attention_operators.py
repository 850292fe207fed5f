"""The attention kernels in torch: dropout, determinism, gradients of gradients, torch.compile."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
from attention_problems import DEVICE, SMALL, attention, check, leaves, oracle, randn, run, tiles

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import call as torch_attention
from einops_fast.backends.torch.attention.implementations.triton import Triton
from einops_fast.backends.torch.attention.ops import attention_forward, constants
from einops_fast.backends.triton.attention.general.score import drawn
from einops_fast.backends.triton.attention.general.tilings import BackwardTilings, Tiling

tl = triton.language


@triton.jit
def _draw(out, seed, queries, keys, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * block + tl.arange(0, block)
    numbers = drawn(tl.load(seed), place // keys // queries, place // keys % queries, place % keys)
    tl.store(out + place, numbers, mask=place < count)


def kept_weights(spec: AttentionSpec, seed: Any) -> Any:
    """Which weights Philox keeps."""
    shape = (*spec.batch, spec.q_len, spec.kv_len)
    out = torch.empty(shape, device=DEVICE)
    _draw[(triton.cdiv(out.numel(), 256),)](out, seed, spec.q_len, spec.kv_len, out.numel(), 256)
    return (out >= spec.dropout_p).double()


@pytest.mark.parametrize("options", [{}, {"bias": (2, 1, 1, 21, 37), "causal": True}, {"dtype": "float64"}])
def test_dropout_is_the_same_in_every_kernel(options: dict[str, Any]) -> None:
    spec, inputs = attention((2, 1, 2), k_batch=(2, 1, 1), dropout_p=0.3, **options)
    inputs.seed = torch.tensor([(1 << 40) + 12345], device=DEVICE)
    kept = kept_weights(spec, inputs.seed)
    assert 0.6 < float(kept.mean()) < 0.8
    with tiles():
        check(spec, inputs, kept=kept)
    with tiles(replace(SMALL, packed=True, parts=2)):
        check(spec, inputs, kept=kept, gradients=False)
    inputs.seed = inputs.seed + 1
    with tiles():
        other = run(spec, inputs, gradients=False)["out"]
    with pytest.raises(AssertionError), tiles():
        check(spec, inputs, kept=kept, gradients=False)
    assert not other.isnan().any()


def test_tiles_do_not_matter() -> None:
    spec, inputs = attention((2,), bias=(1, 21, 37), mask=(2, 1, 37), window=(9, 12))
    for forward, own, other in (((32, 16), (16, 32), (64, 16)), ((16, 64), (64, 16), (16, 64))):
        backward = BackwardTilings(Tiling(*own, 4, 1), Tiling(*other, 4, 1), Tiling(*own, 4, 1))
        with tiles(Tiling(*forward, 4, 1), backward):
            check(spec, inputs)


def _twice(spec: AttentionSpec, inputs: AttentionInputs, way: Any) -> list[Any]:
    leaf = leaves(inputs)
    out, lse = way(spec, leaf)
    wanted = [leaf.q, leaf.k, leaf.v, leaf.bias]
    seeds = [randn(*out.shape, seed=5).to(out.dtype).requires_grad_(), randn(*lse.shape, seed=6).to(lse.dtype)]
    first = torch.autograd.grad([out, lse], wanted, seeds, create_graph=True)
    weights = [randn(*each.shape, seed=8).to(each.dtype) for each in first]
    return list(torch.autograd.grad(first, [*wanted, seeds[0]], weights))


def test_gradients_of_gradients() -> None:
    spec, inputs = attention((1, 2), 5, 7, head_dim=4, bias=(1, 2, 5, 7), softcap=3.0)
    seed = torch.zeros(1, dtype=torch.int64, device=inputs.q.device)
    dropped = replace(spec, dropout_p=0.5), replace(inputs, seed=seed)
    with tiles(), pytest.raises(NotImplementedError, match="attention_backend"):
        _twice(*dropped, torch_attention.triton_attention)
    doubles = AttentionInputs(inputs.q.double(), inputs.k.double(), inputs.v.double(), inputs.bias.double())
    expected = _twice(spec, doubles, oracle)
    with tiles():
        found = _twice(spec, inputs, torch_attention.triton_attention)
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-4)


def test_operators_are_well_formed() -> None:
    spec, inputs = attention((1, 2), 3, 5, head_dim=4, bias=(1, 1, 3, 5), order=(0, 2, 1, 3))
    leaf = leaves(inputs)
    with tiles():
        torch.library.opcheck(
            attention_forward,
            (*vars(leaf).values(), *constants(spec)),
            # Whatever differs from a second run differs in the interpreter's order, not in memory.
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_what_the_kernels_do_not_do() -> None:
    spec, _ = attention()
    assert Triton().lacks(spec) is None
    for changed, reason in (
        ({"head_dim": 257}, "257"),
        ({"v_head_dim": 300}, "300"),
        ({"transforms": True}, "forward mode"),
        ({"page_size": 16, "gradients": True}, "pages"),
    ):
        assert reason in str(Triton().lacks(replace(spec, **changed)))
