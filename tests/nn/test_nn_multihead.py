"""`MultiHeadAttention` and `CausalSelfAttention`: patterns, logarithms, and what torch does with modules."""

from __future__ import annotations

import io
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from einops_fast.errors import EinsumError, SubscriptsError  # noqa: E402
from einops_fast.nn import CausalSelfAttention, MultiHeadAttention  # noqa: E402

MODULES: dict[str, Any] = {
    "pattern": lambda: MultiHeadAttention("b i, b j -> b i", 32, 4, num_kv_heads=2, causal=True),
    "words": lambda: MultiHeadAttention("batch row query, batch row key -> row batch query", 32, 4, window=(2, 2)),
    "causal": lambda: CausalSelfAttention(4, 32, is_causal=True),
}


def made(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    return module, torch.randn(*((2, 3, 6, 32) if name == "words" else (2, 6, 32)))


@pytest.mark.parametrize(
    ("pattern", "shape"),
    [
        ("query, key -> query", (6, 32)),
        ("query,key->query", (6, 32)),
        ("src, tgt -> src", (6, 32)),
        ("i, j -> i", (6, 32)),
        ("bi, bj -> bi", (2, 6, 32)),
        ("b query, b key -> b query", (2, 6, 32)),
    ],
)
def test_letters_and_words(pattern: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(pattern, 32, 4)
    torch.manual_seed(0)
    usual = MultiHeadAttention("b i, b j -> b i", 32, 4)
    x = torch.randn(shape)
    torch.testing.assert_close(module(x), usual(x.reshape(-1, 6, 32)).reshape(shape))


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


def test_options_are_checked_when_a_module_is_made() -> None:
    wrong: Any = (
        {"dropout": 1.5},
        {"window": -1},
        {"softcap": "x"},
        {"causal": "no"},
        {"scale": "x"},
        {"layout": "bhsd"},
    )
    for options in wrong:
        with pytest.raises(EinsumError):
            MultiHeadAttention("b i, b j -> b i", 32, 4, **options)
    with pytest.raises(TypeError, match="cuasal"):
        MultiHeadAttention("b i, b j -> b i", 32, 4, cuasal=True)
    for heads, options in ((0, {}), (4, {"dropout": -0.1}), (4, {"is_causal": "no"})):
        with pytest.raises(EinsumError):
            CausalSelfAttention(heads, 32, **options)
    with pytest.raises(EinsumError, match="num_heads is a number of heads, 1 or more, not 0"):
        MultiHeadAttention("b i, b j -> b i", 32, 0)


def test_modules_take_what_those_of_torch_do() -> None:
    where: Any = {"device": "meta", "dtype": torch.float64}
    for module in (MultiHeadAttention("b i, b j -> b i", 32, 4, **where), CausalSelfAttention(4, 32, **where)):
        assert {(each.device.type, each.dtype) for each in module.parameters()} == {("meta", torch.float64)}
    x = torch.randn(2, 6, 32)
    module = MultiHeadAttention("b i, b j -> b i", 32, 4, dropout=1.0)
    torch.testing.assert_close(module(x), module.out_proj.bias.expand(2, 6, 32))
    assert not CausalSelfAttention(4, 32, dropout=1.0)(x).any()


def test_logarithms_come_with_the_result() -> None:
    torch.manual_seed(0)
    module, x = MultiHeadAttention("b i, b j -> b i", 32, 4, return_lse=True), torch.randn(2, 6, 32)
    found, lse = module(x)
    torch.testing.assert_close(found, module(x, return_lse=False))
    q, k = (layer(x).unflatten(-1, (4, 8)) for layer in (module.q_proj, module.k_proj))
    torch.testing.assert_close(lse, (torch.einsum("bihd,bjhd->bihj", q, k) * 8**-0.5).logsumexp(-1))


@pytest.mark.parametrize("name", MODULES)
def test_compiles_whole(name: str) -> None:
    module, x = made(name)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    found, expected = compiled(x), module(x)
    torch.testing.assert_close(found, expected)
    parameters = [x, *module.parameters()]
    gradients = [torch.autograd.grad(each.square().sum(), parameters) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_exports(name: str) -> None:
    module, x = made(name)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), module(x))


@pytest.mark.parametrize("name", MODULES)
def test_autocast(name: str) -> None:
    module, x = made(name)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), module(x), rtol=5e-2, atol=5e-2)
    found.float().square().sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in module.parameters())


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
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
