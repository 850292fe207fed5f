"""The kernels that have all positions of short attention at once, against float64 and with poisoned memory."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import DEVICE, FEATURES, Poisoned, attention, check, check_low_precision, randn, run, tiles

from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.attention.short import plan as short_plan
from einops_fast.backends.triton.launching.kernel_call import KernelCall


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[Any]]:
    """``'forward'`` for each such call; for a backward one, in how many parts the gradient of a bias was summed up."""
    found: list[Any] = []
    call = KernelCall.__call__

    def recorded(self: KernelCall, *arguments: Any) -> None:
        name = getattr(self.function, "__name__", "")
        if name.startswith("short"):
            found.append("forward" if "forward" in name else self.grid[1])
        call(self, *arguments)

    with (
        mock.patch.object(KernelCall, "__call__", recorded),
        # Errors show best where there is no rounding.
        mock.patch.object(short_plan, "_DTYPES", ("float16", "bfloat16", "float32")),
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_calls", {}),
    ):
        yield found


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str, ran: list[Any]) -> None:
    check(*attention(**FEATURES[name]))
    assert ran[0] == "forward"
    assert len(ran) == 2


@pytest.mark.parametrize("lengths", [(1, 1), (16, 17), (64, 3), (49, 49), (63, 64)])
@pytest.mark.parametrize("features", [(32, 32), (48, 5), (64, 48)])
def test_sizes(lengths: tuple[int, int], features: tuple[int, int], ran: list[Any]) -> None:
    """Features in two parts, too."""
    check(*attention((2,), *lengths, *features, causal=True))
    assert ran == ["forward", 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lengths", [(49, 49), (128, 100), (65, 30)])
def test_half_precision(dtype: str, lengths: tuple[int, int], ran: list[Any]) -> None:
    bias = None if max(lengths) > 64 else (1, 2, *lengths)
    check_low_precision(*attention((3, 2), *lengths, 32, dtype=dtype, bias=bias))
    assert ran == ["forward", 3 if bias else 1]


def test_layouts(ran: list[Any]) -> None:
    """Permuted, sliced and expanded operands, and operands that lack axes."""
    spec, inputs = attention((2, 3), 20, 30, q_batch=(2, 1), k_batch=(2, 3), v_batch=(1, 3))
    expected = run(spec, inputs)
    inputs.q = randn(16, 20, 2, 1).permute(2, 3, 1, 0).copy_(inputs.q)
    inputs.k = randn(2, 3, 30, 35)[..., 2:34:2].copy_(inputs.k)
    inputs.v = randn(2, 30, 16, 1, 3).permute(3, 4, 1, 2, 0)[..., 1].copy_(inputs.v)
    for name, value in run(spec, inputs).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6)
    inputs.k = inputs.k[:, :, :1].expand(2, 3, 30, 16)
    check(spec, inputs)
    assert len(ran) == 6


def test_dropout_has_the_mask_of_the_tiled_kernels(ran: list[Any]) -> None:
    spec, inputs = attention(dropout_p=0.3)
    inputs.seed = torch.tensor([5], device=DEVICE)
    found = run(spec, inputs)
    with tiles():
        expected = run(spec, inputs)
    assert ran == ["forward", 1]
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


def test_what_is_not_for_one_tile(ran: list[Any]) -> None:
    """Longer sequences, more than a few of them, many features; and the sum of gradients of a longer bias."""
    check(*attention((2,), 129, 30))
    check(*attention((2,), head_dim=80))
    with mock.patch.object(TorchMemory, "processors", return_value=((8, 0), 1)):
        check(*attention((5,), 65, 30))
        assert not ran
        check(*attention((3,), 65, 30))
        assert ran == [1]
        check(*attention((5,), 64, 30))
        assert ran == [1, "forward", 1]
    check(*attention((2, 2), 65, 30, bias=(1, 2, 65, 30)))
    assert ran == [1, "forward", 1, "forward"]
