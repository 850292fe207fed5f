"""A small Llama on two ranks, compiled calls, and forms of attention: python sharded_training.py STORE."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sharded_attention
import torch
from ranks import agree, has_llama, placed, randoms, run_ranks, same, small_llama, spelled
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from einops_fast import OperandError, attention, fast_einsum, nn, ops, scaled_dot_product_attention

STEPS = 3


def losses(model: Any) -> list[float]:
    """Of some steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    ids = torch.randint(3, 32, (4, 7), generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return [float(each.full_tensor() if hasattr(each, "full_tensor") else each) for each in found]


def in_parallel(model: Any, mesh: Any) -> Any:
    """Heads, and features between the linear layers of an MLP, are split."""
    for layer in model.model.layers:
        plan: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
        plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
        plan |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    return model


def check_llama(mesh: Any) -> None:
    """The losses of one device without ours, with ours put in before or after the model is split."""
    wanted = losses(small_llama())
    for first in (True, False):
        model = small_llama()
        if first:
            nn.optimize(model)
        in_parallel(model, mesh)
        if not first:
            nn.optimize(model)
        found = losses(model)
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4, msg=f"{first}: {found} are not {wanted}")


def check_modules(mesh: Any) -> None:
    """Modules of ours whose parameters are DTensors, in a chain whose activations stay DTensors."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        nn.LayerNorm(8), nn.FusedLinear(8, 16, activation="gelu"), nn.FusedLinear(16, 8), nn.RMSNorm(8)
    )
    x = torch.randn(4, 3, 8)
    wanted = model(x)
    wanted.square().sum().backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    plan = {"0": "r", "1": "0", "2": "1", "3": "r"}
    for name, text in plan.items():
        for kind, each in list(model[int(name)].named_parameters()):
            text_of = "r" if each.ndim < 2 and text == "1" else text
            setattr(model[int(name)], kind, torch.nn.Parameter(placed(each, mesh, text_of).detach()))
    found = model(placed(x, mesh, "r"))
    same(found, wanted.detach(), 1e-4)
    found.square().sum().backward()
    for each, gradient in zip(model.parameters(), gradients, strict=True):
        assert each.grad.placements == each.placements
        same(each.grad, gradient, 1e-4)


def check_compiled(mesh: Any) -> None:
    """Calls that torch.compile traces are right, and so are their gradients; graphs end before them."""
    for run in (
        lambda q, k: fast_einsum("b h i d, b h j d -> b (h i) j", ops.softmax(q, -1), k) * 2,
        lambda q, k: attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, causal=True) * 2,
    ):
        torch._dynamo.reset()
        agree(mesh, torch.compile(run, backend="aot_eager"), randoms("2 4 3 5, 2 4 6 5"), "1, 1", "1", reference=run)


def check_operator(mesh: Any) -> None:
    """The operator of compiled einsums, on DTensors: by a rule that torch has of it, eagerly and compiled."""
    nn.register_operators()
    for equation, given, result in (
        ("bhid,bhjd->bhij", "0, 0", "0"), ("bhid,bhjd->bhij", "1, 1", "1"), ("bhid,bhjd->bhij", "2, r", "2"),
        ("bhid,bhjd->bhij", "3, 3", "p"), ("bhid,bhjd->bhji", "2, r", "3"), ("bhid,bhjd->bhij", "r, r", "r"),
        ("bhid,bhjd->ijd", "0, 0", "p"), ("bhid,bhjd->hbij", "r, 3", None),
    ):  # fmt: skip
        values = randoms("2 4 6 4, 2 4 8 4")

        def run(q: Any, k: Any, equation: str = equation) -> Any:
            return torch.ops.einops_fast.einsum([q, k], equation, "auto", None, None) * 2

        torch._dynamo.reset()
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        for call in (run, compiled) if result in ("3", "p") else (run,):
            arrays = [placed(each, mesh, text.strip()) for each, text in zip(values, given.split(","), strict=True)]
            found, wanted = call(*arrays), run(*values)
            assert result in (None, spelled(found)), (equation, given, spelled(found))
            same(found, wanted.detach())
            weight = torch.randn_like(wanted)
            gradients = torch.autograd.grad((wanted * weight).sum(), values)
            (found.full_tensor() * weight).sum().backward()
            for array, gradient in zip(arrays, gradients, strict=True):
                same(array.grad, gradient)


def check_block(mesh: Any, length: int, options: Any) -> None:
    """Calls inside torch's ``context_parallel`` block, of the parts that it gives ranks."""
    values, segments = randoms(", ".join([f"1 2 {length} 4"] * 3)), (torch.arange(length) > 5).long()[None]

    def run(q: Any, k: Any, v: Any, segments: Any) -> Any:
        by_segments = {"segment_ids": segments} if "scale" in options else {}
        return attention("b h i d, b h j d, b h j e -> b h i e", q, k, v, **options, **by_segments)

    wanted = run(*values, segments)
    weight = torch.randn_like(wanted)
    gradients = torch.autograd.grad((wanted * weight).sum(), values)
    *arrays, weights, ids = [each.detach().clone() for each in (*values, weight, segments)]
    with context_parallel(mesh, buffers=[*arrays, weights, ids], buffer_seq_dims=[2, 2, 2, 2, 1]):
        for _ in range(2):  # by what is kept, too
            leaves = [each.detach().requires_grad_() for each in arrays]
            found = run(*leaves, ids)
            found.backward(weights)
            parts = [found.detach(), *[each.grad for each in leaves]]
            wholes = context_parallel_unshard(mesh, parts, [2] * 4)
            for whole, expected in zip(wholes, (wanted, *gradients), strict=True):
                same(whole, expected.detach())
        if options == {"causal": True}:
            same(scaled_dot_product_attention(*arrays, is_causal=True), found.detach())
        mask = torch.ones(length, length).bool()
        with pytest.raises(OperandError, match="mask isn't for a context_parallel block"):
            attention("b h i d, b h j d, b h j e -> b h i e", *arrays, mask=mask)
    same(run(*values, segments), wanted.detach())


def cases() -> dict[str, Callable[[], None]]:
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Callable[[], None]] = {"modules": partial(check_modules, mesh)}
    if has_llama():
        found["llama by heads"] = partial(check_llama, mesh)
    for length in (16, 10):  # with early and late parts, and without
        for options in ({}, {"causal": True}, {"window": (3, 1)}, {"causal": True, "scale": 0.3}):
            found[f"{length} positions in a block, {options}"] = partial(check_block, mesh, length, options)
    found |= sharded_attention.forms(mesh, "s", sharded_attention.FORMS[1::2])
    return found | {"compiled": partial(check_compiled, mesh), "operator": partial(check_operator, mesh)}


if __name__ == "__main__":
    if has_llama():
        small_llama()  # imports it once
    run_ranks(2, sys.argv[1], cases)
