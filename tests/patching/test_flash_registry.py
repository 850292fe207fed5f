"""torch's registry of flash implementations knows ours by its name, and puts torch's own back."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
import torch.nn.attention as registry
from torch.nn import functional

import einops_fast
from einops_fast import EinsumError, nn

needs_registry = pytest.mark.skipif(
    not hasattr(registry, "register_flash_attention_impl"), reason="torch has no registry of flash implementations"
)


def runs_ours(device: str, way: Callable[..., None], *arguments: str) -> bool:
    q = torch.randn(2, 3, 16, 8, device=device, dtype=torch.float16)
    with einops_fast.profile() as seen:
        way(*arguments)
        found = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    wide = q.float()
    expected = functional.scaled_dot_product_attention(wide, wide, wide, is_causal=True)
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
    return bool(seen.attention_calls or seen.native)


@needs_registry
def test_activated_and_restored(device: str) -> None:
    nn.register_flash_attention()
    for _ in range(2):  # activated again, the first is undone
        assert runs_ours(device, registry.activate_flash_attention_impl, "einops_fast")
        assert registry.current_flash_attention_impl() == "einops_fast"
    with ExitStack() as block:  # which still holds when what was activated is undone
        assert runs_ours(device, lambda: block.enter_context(einops_fast.patched("torch.sdpa")))
        assert runs_ours(device, registry.restore_flash_attention_impl)
    assert not runs_ours(device, lambda: None)
    assert registry.current_flash_attention_impl() is None


def test_an_older_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "register_flash_attention_impl", None, raising=False)
    with pytest.raises(EinsumError, match="no registry of flash implementations"):
        nn.register_flash_attention()
