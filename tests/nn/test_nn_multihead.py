"""`MultiHeadAttention` and `CausalSelfAttention`: patterns, logarithms, and what torch does with modules."""

import io
from typing import Any

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from torch_operands import whole

from einops_fast import nn
from einops_fast.errors import EinsumError, ShapeError, SubscriptsError
from einops_fast.nn import CausalSelfAttention, MultiHeadAttention

MODULES: dict[str, Any] = {
    "pattern": lambda: MultiHeadAttention("b i, b j -> b i", 32, 4, num_kv_heads=2, causal=True),
    "words": lambda: MultiHeadAttention("batch row query, batch row key -> row batch query", 32, 4, window=(2, 2)),
    "causal": lambda: CausalSelfAttention(4, 32, is_causal=True),
}
OTHERS: dict[str, Any] = {
    "qkv": lambda: nn.QKVSelfAttention(32, 4, num_kv_heads=2, is_causal=True),
    "bert": lambda: nn.BertSelfAttention(32, 4, 0.0),
    "gpt": lambda: nn.GPTAttention(32, 4, 0.0, 0.0),
    "dropout": lambda: nn.FusedDropoutBias(0.0, 32, "gelu"),
}


def made(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = {**MODULES, **OTHERS}[name]().eval()
    return module, torch.randn(*((2, 3, 6, 32) if name == "words" else (2, 6, 32)))


@pytest.mark.parametrize("pattern", ["i, i -> i", "b i, b j -> b j", "query, query -> query", "b i", "i j, k l -> i"])
def test_patterns_without_queries_or_keys(pattern: str) -> None:
    with pytest.raises(SubscriptsError):
        MultiHeadAttention(pattern, 32, 4)


def test_which_axes_are_the_sequence_can_be_said() -> None:
    torch.manual_seed(0)
    module, x = MultiHeadAttention("b r i, b j -> b r i", 32, 4, sequence=("i", "j")), torch.randn(2, 3, 6, 32)
    torch.manual_seed(0)
    usual = MultiHeadAttention("b i, b j -> b i", 32, 4)
    key = torch.randn(2, 5, 32)
    torch.testing.assert_close(module(x, key), torch.stack([usual(x[:, at], key) for at in range(3)], 1))
    for pattern, sequence in (("b r i, b j -> b r i", None), ("b i, b j -> b i", ("i", "b"))):
        with pytest.raises(SubscriptsError, match=r"ax[ie]s of queries"):
            MultiHeadAttention(pattern, 32, 4, sequence=sequence)
    with pytest.raises(SubscriptsError, match=r"'head' .*rename it"):
        MultiHeadAttention("head i, head j -> head i", 32, 4)


@pytest.mark.parametrize("pattern", ["b i, b j -> b i", "ib,jb->ib", "b row i, b row j -> row b i"])
def test_results(pattern: str) -> None:
    module = MultiHeadAttention(pattern, 24, 4, num_kv_heads=2, kv_dim=10, causal="bottom_right").eval()
    sizes = {"b": 2, "row": 3, "i": 5, "j": 7}
    terms = [term.split() if " " in term.strip() else list(term) for term in pattern.replace("->", ",").split(",")]
    x, y = (torch.randn(*(sizes[name] for name in term), size) for term, size in zip(terms, (24, 10), strict=False))

    def first(array: Any, term: list[str]) -> Any:
        """Batch axes first, positions next to the features."""
        order = [term.index(name) for name in ("b", "row") if name in term]
        return array.permute(*order, next(at for at, name in enumerate(term) if name in "ij"), len(term))

    q = module.q_proj(first(x, terms[0])).unflatten(-1, (4, 6)).transpose(-2, -3)
    k, v = (
        layer(first(y, terms[1])).unflatten(-1, (2, 6)).transpose(-2, -3).repeat_interleave(2, -3)
        for layer in (module.k_proj, module.v_proj)
    )
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    expected = module.out_proj(scaled_dot_product_attention(q, k, v, mask).transpose(-2, -3).flatten(-2))
    torch.testing.assert_close(first(module(x, y), terms[2]), expected)


def test_causal_self_attention_loads_weights_by_their_usual_names() -> None:
    block = CausalSelfAttention(num_heads=4, embed_dimension=32, bias=True, is_causal=True, dropout=0.5)
    assert set(block.state_dict()) == {"c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias"}
    block.load_state_dict({**block.state_dict(), "bias": torch.ones(1, 1, 8, 8)})
    x = torch.randn(2, 6, 32)
    block.eval()
    packed = linear(x, block.c_attn.weight, block.c_attn.bias)
    q, k, v = (each.view(2, 6, 4, 8).transpose(1, 2) for each in packed.split(32, -1))
    attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 32)
    expected = linear(attended, block.c_proj.weight, block.c_proj.bias)
    for run in (block, whole(block)):
        torch.testing.assert_close(run(x), expected)
    block.train()
    assert not torch.equal(block(x), block(x))
    with pytest.raises(ShapeError, match=r"x has three axes, .* not shape \(2, 32\)"):
        block(torch.ones(2, 32))


def test_options_are_checked_when_a_module_is_made() -> None:
    wrong: Any = {"dropout": 1.5, "window": -1, "softcap": "x", "causal": "no", "scale": "x", "layout": "bhsd"}
    for option in wrong.items():
        with pytest.raises(EinsumError):
            MultiHeadAttention("b i, b j -> b i", 32, 4, **dict([option]))
    with pytest.raises(TypeError, match="cuasal"):
        MultiHeadAttention("b i, b j -> b i", 32, 4, cuasal=True)
    for options in ({"dropout": -0.1}, {"is_causal": "no"}):
        with pytest.raises(EinsumError):
            CausalSelfAttention(4, 32, **options)


def test_logarithms_come_with_the_result() -> None:
    torch.manual_seed(0)
    module, x = MultiHeadAttention("b i, b j -> b i", 32, 4, return_lse=True), torch.randn(2, 6, 32)
    found, lse = module(x)
    torch.testing.assert_close(found, module(x, return_lse=False))
    q, k = (layer(x).unflatten(-1, (4, 8)) for layer in (module.q_proj, module.k_proj))
    torch.testing.assert_close(lse, (torch.einsum("bihd,bjhd->bihj", q, k) * 8**-0.5).logsumexp(-1))


@pytest.mark.parametrize("name", [*MODULES, *OTHERS])
def test_compiles_whole(name: str) -> None:
    module, x = made(name)
    x.requires_grad_()
    found, expected = whole(module)(x), module(x)
    torch.testing.assert_close(found, expected)
    if isinstance(found, tuple):
        found, expected = found[0], expected[0]
    parameters = [x, *module.parameters()]
    gradients = [torch.autograd.grad(each.square().sum(), parameters) for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_exports(name: str) -> None:
    module, x = made(name)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), module(x))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_checkpointing(name: str, reentrant: bool) -> None:
    module, x = made(name)
    module.train()
    module.dropout = 0.5
    x.requires_grad_()
    gradients = []
    for again in (False, True):
        torch.manual_seed(1)
        found = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=reentrant) if again else module(x)
        module.zero_grad()
        x.grad = None
        found.square().sum().backward()
        gradients.append([x.grad, *[each.grad for each in module.parameters()]])
    torch.testing.assert_close(*gradients)
