"""Libraries that contract call ours, by the lines of docs/tutorial/plugs.md, and give the results that they gave."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import einops_fast
from einops_fast import EinsumError, ShapeError, patched

CHAIN = "ij,jk,kl->il"
ARRAYS = [np.random.default_rng(0).random(shape) for shape in ((4, 5), (5, 6), (6, 7))]
TENSORS = [torch.tensor(array) for array in ARRAYS]
EXPECTED = np.linalg.multi_dot(ARRAYS)
BOTH = pytest.mark.parametrize("arrays", [ARRAYS, TENSORS], ids=["numpy", "torch"])


def check(call: Callable[[], Any], *patches: Any, expected: Any = EXPECTED) -> None:
    """Check that a call gives what it gives without us, and that our einsum was called."""
    with einops_fast.profile() as seen:
        if patches:
            with patched(*patches):
                found = call()
        else:
            found = call()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert type(found) is type(call())
    assert seen.rows


@BOTH
def test_opt_einsum_finds_us_by_name(arrays: Any) -> None:
    contract = pytest.importorskip("opt_einsum").contract
    check(lambda: contract(CHAIN, *arrays, backend="einops_fast"))
    result = np.einsum("aij,ajk,k->ia", *(each := [np.ones((2, 3, 4)), np.ones((2, 4, 5)), np.ones(5)]))
    check(lambda: contract("aij,ajk,k->ia", *each, backend="einops_fast"), expected=result)


@BOTH
def test_cotengra_finds_us_by_name(arrays: Any) -> None:
    einsum = pytest.importorskip("cotengra").einsum
    check(lambda: einsum(CHAIN, *arrays, backend="einops_fast"))
    ours = einops_fast.einsum, einops_fast.tensordot
    check(lambda: einsum(CHAIN, *arrays, implementation=ours))


@BOTH
def test_cotengra_joins_slices(arrays: Any) -> None:
    find = pytest.importorskip("cotengra").array_contract_tree
    tree = find(["ij", "jk", "kl"], "il", shapes=[each.shape for each in arrays]).slice(target_size=8)
    assert tree.nslices > 4  # of axes of the result, which are stacked, too
    check(lambda: tree.contract(arrays, backend="einops_fast"))


@BOTH
def test_quimb_finds_us_by_name(arrays: Any) -> None:
    tensors = pytest.importorskip("quimb.tensor")
    network = tensors.TensorNetwork(map(tensors.Tensor, arrays, ("ij", "jk", "kl")))
    check(lambda: network.contract(output_inds="il", backend="einops_fast").data)


@pytest.mark.parametrize(("name", "arrays"), [("numpy", ARRAYS), ("torch", TENSORS)])
def test_einops_and_einx_call_what_is_patched(name: str, arrays: Any) -> None:
    einops, einx = pytest.importorskip("einops"), pytest.importorskip("einx")
    check(lambda: einops.einsum(*arrays, "i j, j k, k l -> i l"), name)
    check(lambda: einx.dot("i [j], [j k], [k] l -> i l", *arrays), name)


def test_a_layer_of_einops_calls_what_is_patched() -> None:
    mix = pytest.importorskip("einops.layers.torch").EinMix("b i -> b o", weight_shape="i o", i=5, o=6)
    x = torch.rand(2, 5)
    with torch.no_grad():
        check(lambda: mix(x), "torch", expected=mix(x))


def test_tensorly_calls_what_is_patched_or_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorly = pytest.importorskip("tensorly")
    check(lambda: tensorly.einsum(CHAIN, *ARRAYS), "numpy")
    manager = tensorly.backend.BackendManager
    native = manager.current_backend().einsum
    manager.register_backend_method("einsum", einops_fast.fast_einsum)
    try:
        check(lambda: tensorly.einsum(CHAIN, *ARRAYS))
    finally:
        manager.register_backend_method("einsum", native)


def test_pyro_calls_what_is_patched() -> None:
    einsum = pytest.importorskip("pyro.ops.contract").einsum
    x, y, z = torch.rand(3, 4, 5), torch.rand(3, 5, 6), torch.rand(6)
    expected = torch.einsum("aij,ajk,k->ai", x, y, z)
    check(lambda: einsum("aij,ajk,k->ai", x, y, z, modulo_total=True)[0], "torch", expected=expected)


@pytest.mark.parametrize("axes", [0, 1, 2, ([0, 2], [1, 0]), ([-1], [0]), (2, 0), ((), ())], ids=str)
def test_tensordot_is_that_of_numpy(axes: Any) -> None:
    a, b = np.random.default_rng(1).random((3, 4, 4)), np.random.default_rng(2).random((4, 3, 5))
    if axes == 2:
        b = np.ascontiguousarray(b.reshape(3, 4, 5).repeat(2, 0)[:4])
    try:
        expected = np.tensordot(a, b, axes)
    except ValueError:
        with pytest.raises(ShapeError):
            einops_fast.tensordot(a, b, axes)
        return
    found = einops_fast.tensordot(torch.tensor(a), torch.tensor(b), axes)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    "axes", [([0, 1], [0]), ([0],), 4, ([0, 0], [0, 1]), ([0, 1], [1, 1]), ([5], [0]), "ab"], ids=str
)
def test_tensordot_refuses_axes_that_do_not_fit(axes: Any) -> None:
    with pytest.raises(EinsumError, match="axes of tensordot"):
        einops_fast.tensordot(np.ones((3, 4)), np.ones((3, 4)), axes)


def test_transpose_is_a_view() -> None:
    a = np.ones((2, 3, 4))
    found = einops_fast.transpose(a, (2, 0, 1))
    assert found.shape == (4, 2, 3)
    assert np.shares_memory(found, a)


def test_diffusers_calls_what_is_patched(device: str) -> None:
    """Its attention processors, and the native backend of its dispatcher, call torch's function: ours on a GPU."""
    diffusers: Any = pytest.importorskip("diffusers")
    blocks = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}
    widths = {"block_out_channels": (8,), "norm_num_groups": 4, "cross_attention_dim": 16, "attention_head_dim": 4}
    net = diffusers.UNet2DConditionModel(sample_size=8, layers_per_block=1, **blocks, **widths).eval().to(device)
    noise, text = torch.randn(1, 4, 8, 8, device=device), torch.randn(1, 5, 16, device=device)
    sizes = {"num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2, "axes_dims_rope": (2, 2, 4)}
    channels = {"in_channels": 4, "out_channels": 4, "joint_attention_dim": 8, "patch_size": 1}
    image = diffusers.QwenImageTransformer2DModel(**sizes, **channels).eval().to(device)
    given = {"encoder_hidden_states": text[..., :8], "timestep": torch.ones(1, device=device)}
    given |= {"hidden_states": noise.flatten(2)[..., :16].mT, "img_shapes": [[(1, 4, 4)]], "return_dict": False}
    given |= {"encoder_hidden_states_mask": torch.ones(1, 5, dtype=torch.int64, device=device)}
    for call in (lambda: net(noise, 1, text).sample, lambda: image(**given)[0]):
        expected = call()
        with einops_fast.profile() as seen, patched("torch.sdpa"):
            found = call()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        on_cpu = [row.calls for row in seen.native if row.reason == "its tensors aren't on a CUDA device"]
        assert seen.attention_calls if device == "cuda" else sum(on_cpu)
