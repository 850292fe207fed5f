"""Arguments are taken by their other spellings, too; an error for what is none names the right one."""

import inspect
from typing import Any, NoReturn, get_type_hints

import numpy as np
import pytest

import einops_fast
from einops_fast import EinsumError, attention, contract_expression, explain_attention, fast_einsum, ops
from einops_fast import scaled_dot_product_attention as sdpa

A = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
MATRIX = A[0, 0]
SEEN = MATRIX > -1


def _attention(**options: Any) -> Any:
    return attention(A, A, A, layout="bhsd", **options)


def _explained(**options: Any) -> Any:
    return str(explain_attention(A, A, A, layout="bhsd", **options))


def _cross_entropy(**options: Any) -> Any:
    return ops.cross_entropy(MATRIX, np.arange(4), **options)


def _contracted(**options: Any) -> Any:
    return contract_expression("ij,jk->ik", (4, 4), (4, 4), **options)(MATRIX, MATRIX)


def _sdpa(**options: Any) -> Any:
    return sdpa(A, A, A, **options)


def _normed(**options: Any) -> Any:
    return ops.layer_norm(A, **options)


@pytest.mark.parametrize(
    ("call", "theirs", "ours"),
    [
        (_attention, {"is_causal": True}, {"causal": True}),
        (_attention, {"attn_mask": SEEN}, {"mask": SEEN}),
        (_attention, {"attention_mask": SEEN, "bias": MATRIX}, {"mask": SEEN, "bias": MATRIX}),
        (_attention, {"attn_mask": MATRIX}, {"bias": MATRIX}),
        (_attention, {"attn_mask": None, "p": 0.0}, {}),
        (_attention, {"causal": False, "is_causal": True}, {"causal": True}),
        (_attention, {"mask": None, "attn_mask": SEEN}, {"mask": SEEN}),
        (_attention, {"softmax_scale": 0.3}, {"scale": 0.3}),
        (_attention, {"window_size": (1, -1)}, {"window": (1, None)}),
        (_attention, {"window_size": 1, "causal": True}, {"window": 1, "causal": True}),
        (_attention, {"s_aux": ("h", A[0, :, 0, 0])}, {"sinks": ("h", A[0, :, 0, 0])}),
        (_explained, {"is_causal": True}, {"causal": True}),
        (_sdpa, {"causal": True}, {"is_causal": True}),
        (_sdpa, {"mask": SEEN, "scaling": 0.3}, {"attn_mask": SEEN, "scale": 0.3}),
        (_sdpa, {"attn_bias": MATRIX}, {"attn_mask": MATRIX}),
        (_contracted, {"optimise": "greedy"}, {"optimize": "greedy"}),
        (lambda **options: ops.softmax(A, **options), {"axis": 1, "attn_mask": SEEN}, {"dim": 1, "mask": SEEN}),
        (lambda **options: ops.log_softmax(A, **options), {"is_causal": True}, {"causal": True}),
        (_normed, {"gamma": A[0, 0, 0], "beta": A[0, 0, 1], "epsilon": 0.1},
         {"weight": A[0, 0, 0], "bias": A[0, 0, 1], "eps": 0.1}),
        (_normed, {"normalized_shape": 4, "layer_norm_eps": 0.1}, {"normalized_shape": 4, "eps": 0.1}),
        (_cross_entropy, {"axis": 1}, {"dim": 1}),
    ],
)  # fmt: skip
def test_functions_take_both(call: Any, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    found, expected = call(**theirs), call(**ours)
    assert found == expected if isinstance(found, str) else np.allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("made", "same"),
    [
        ("CausalSelfAttention(2, embed_dim=8)", "CausalSelfAttention(2, 8)"),
        ("QKVSelfAttention(hidden_size=8, num_attention_heads=2)", "QKVSelfAttention(8, 2)"),
        ("QKVSelfAttention(8, 2, causal=True, window_size=(1, -1))",
         "QKVSelfAttention(8, 2, is_causal=True, window=(1, None))"),
        ("MultiHeadAttention(hidden_size=8, nhead=2, is_causal=True, p=0.1)",
         "MultiHeadAttention(embed_dim=8, num_heads=2, causal=True, dropout=0.1)"),
        ("GPTAttention(8, 2, dropout=0.2)", "GPTAttention(8, 2, attn_pdrop=0.2)"),
        ("BertSelfAttention(embed_dim=8, num_heads=2, dropout_p=0.2)", "BertSelfAttention(8, 2, 0.2)"),
        ("LayerNorm(8, epsilon=1.0)", "LayerNorm(8, eps=1.0)"),
        ("RMSNorm(hidden_size=8, variance_epsilon=1.0)", "RMSNorm(8, eps=1.0)"),
        ("DropoutAddLayerNorm(8, dropout=0.2, epsilon=1.0)", "DropoutAddLayerNorm(8, 0.2, eps=1.0)"),
        ("Softmax(axis=1, is_causal=True)", "Softmax(dim=1, causal=True)"),
    ],
)  # fmt: skip
def test_modules_take_both(made: str, same: str) -> None:
    pytest.importorskip("torch")
    taken, ours = (eval(f"nn.{text}", {"nn": einops_fast.nn}) for text in (made, same))
    assert repr(taken) == repr(ours)
    plain, own = (
        {name: value for name, value in vars(module).items() if isinstance(value, (bool, int, float, str, tuple, dict))}
        for module in (taken, ours)
    )
    assert {**plain, "_parameters": 0, "_modules": 0} == {**own, "_parameters": 0, "_modules": 0}
    assert {name: each.shape for name, each in taken.state_dict().items()} == {
        name: each.shape for name, each in ours.state_dict().items()
    }


def test_projected_attention_takes_both() -> None:
    torch = pytest.importorskip("torch")
    x, weight, seen = torch.randn(2, 5, 8), torch.randn(24, 8), torch.rand(5, 5) > 0.2
    found = ops.qkv_self_attention(x, 2, weight, mask=seen, causal=True, window_size=(2, 0))
    assert torch.equal(found, ops.qkv_self_attention(x, 2, weight, None, seen, is_causal=True, window=(2, 0)))


def test_compiled_programs_take_both() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 5, 2, 4)
    whole = torch.__version__ >= "2.13"  # older ones break the graph at locals()
    compiled = torch.compile(
        lambda x: attention(x, x, x, layout="bshd", is_causal=True), backend="eager", fullgraph=whole
    )
    assert torch.equal(compiled(x), attention(x, x, x, layout="bshd", causal=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _attention(causal=True, is_causal=True), "was given 'causal' and 'is_causal', which are"),
        (lambda: _attention(scaling=1.0, softmax_scale=1.0), "given 'scaling' and 'softmax_scale', .*: give 'scale'"),
        (lambda: _attention(attn_mask=MATRIX, bias=MATRIX), "'bias' and 'attn_mask', which are one: give 'bias'"),
        (lambda: sdpa(A, A, A, MATRIX, mask=MATRIX), "'attn_mask' and 'mask'"),
        (lambda: ops.layer_norm(A, 4, MATRIX[0], gamma=MATRIX[0]), "'weight' and 'gamma'"),
        (lambda: einops_fast.nn.QKVSelfAttention(8, 2, hidden_size=8), "'embed_dim' and 'hidden_size'"),
        (lambda: einops_fast.nn.LayerNorm(8, eps=1.0, epsilon=1.0), "'eps' and 'epsilon'"),
        (lambda: _attention(sliding_window=2), "no 'sliding_window'; it is window, with values of its own"),
        (lambda: sdpa(A, A, A, bias=MATRIX), "no 'bias'; it is attn_mask, with values of its own"),
        (lambda: _attention(softcapp=1.0), "no 'softcapp'; did you mean 'softcap'?"),
        (lambda: _attention(foo=1), "no 'foo'; it has layout, causal, window, mask"),
        (lambda: fast_einsum("ij->i", MATRIX, optimise=True), "no 'optimise', and 'ij->i' no such axis; it is opt"),
        (lambda: einops_fast.nn.QKVSelfAttention(8, 2, windw=1), "no 'windw'; did you mean 'window'?"),
        (lambda: einops_fast.nn.MultiHeadAttention(8, 2), "the pattern of MultiHeadAttention, which comes first"),
        (lambda: einops_fast.nn.CausalSelfAttention(8, 2), "are they in each other's place?"),
        (lambda: einops_fast.nn.MultiHeadAttention(kdim=8), "no 'kdim'; it is kv_dim, with values of its own"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(EinsumError, match=message.replace("() has", r"\(\) has").replace("?", r"\?")) as raised:
        call()
    assert isinstance(raised.value, TypeError) == ("no '" in message or "' and '" in message), "as of any function"


def test_other_errors_of_modules_are_their_own() -> None:
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'normalized_shape'"):
        einops_fast.nn.LayerNorm()


def test_every_function_tells() -> None:
    """None leaves it to Python to refuse a name, but those whose arguments have no names that others have, too."""
    public = [getattr(ops, name) for name in ops.__all__]
    public += [attention, contract_expression, sdpa, fast_einsum, explain_attention]
    for function in public:
        named = inspect.signature(function).parameters.values()
        more = next(each.name for each in named if each.kind is each.VAR_KEYWORD)
        if more == "unknown":
            assert get_type_hints(function)["unknown"] is NoReturn, "a type checker finds it"
            given = [None for each in named if each.kind is each.POSITIONAL_OR_KEYWORD]
            with pytest.raises(EinsumError, match=rf"{function.__name__}\(\) has no 'foo'; it has"):
                function(*given, foo=1)
