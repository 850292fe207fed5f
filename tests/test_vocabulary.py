"""An argument that a function doesn't have: the error names the one that it has."""

import inspect
from typing import Any, NoReturn, get_type_hints

import numpy as np
import pytest

import einops_fast
from einops_fast import EinsumError, attention, contract_expression, explain_attention, fast_einsum, ops
from einops_fast import scaled_dot_product_attention as sdpa

A = np.ones((2, 3, 4, 5))
MATRIX = A[0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attention(A, A, A, layout="bhsd", is_causal=True),
            "attention() has no 'is_causal'; it is causal=True",
        ),
        (lambda: attention(A, A, A, layout="bhsd", attn_mask=None), "attention() has no 'attn_mask'; it is mask=None"),
        (lambda: attention(A, A, A, layout="bhsd", p=0.1), "attention() has no 'p'; it is dropout_p=0.1"),
        (lambda: attention(A, A, A, layout="bhsd", window_size=(1, 0)), "no 'window_size'; it is window=..."),
        (lambda: attention(A, A, A, layout="bhsd", softcapp=1.0), "no 'softcapp'; did you mean 'softcap'?"),
        (lambda: attention(A, A, A, layout="bhsd", foo=1), "no 'foo'; it has layout, causal, window, mask"),
        (lambda: explain_attention(A, A, A, layout="bhsd", is_causal=True), "no 'is_causal'; it is causal=True"),
        (lambda: sdpa(A, A, A, causal=True), "scaled_dot_product_attention() has no 'causal'; it is is_causal=True"),
        (lambda: sdpa(A, A, A, mask=A), "scaled_dot_product_attention() has no 'mask'; it is attn_mask=..."),
        (
            lambda: fast_einsum("ij->i", MATRIX, optimise=True),
            "no 'optimise', and 'ij->i' no such axis; it is optimize=",
        ),
        (lambda: contract_expression("ij->i", (2, 2), optimise=True), "no 'optimise'; it is optimize=True"),
        (lambda: ops.softmax(A, axis=-1), "softmax() has no 'axis'; it is dim=-1"),
        (lambda: ops.log_softmax(A, is_causal=True), "log_softmax() has no 'is_causal'; it is causal=True"),
        (lambda: ops.layer_norm(A, epsilon=1e-6), "layer_norm() has no 'epsilon'; it is eps=1e-06"),
        (lambda: ops.dropout_add_layer_norm(A, A, dropout_p=0.1), "no 'dropout_p'; it is p=0.1"),
    ],
)
def test_functions(call: Any, message: str) -> None:
    with pytest.raises(EinsumError) as raised:
        call()
    assert message in str(raised.value)
    assert isinstance(raised.value, TypeError), "as of any function"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("nn.CausalSelfAttention(2, embed_dim=8)", "CausalSelfAttention() has no 'embed_dim'; it is embed_dimension=8"),
        ("nn.QKVSelfAttention(hidden_size=8, num_heads=2)", "no 'hidden_size'; it is embed_dim=8"),
        ("nn.QKVSelfAttention(8, 2, causal=True)", "QKVSelfAttention() has no 'causal'; it is is_causal=True"),
        ("nn.QKVSelfAttention(8, 2, windw=1)", "no 'windw'; did you mean 'window'?"),
        ("nn.MultiHeadAttention(embed_dim=8, num_heads=2, is_causal=True)", "no 'is_causal'; it is causal=True"),
        ("nn.MultiHeadAttention(embed_dim=8, num_heads=2, dropout_p=0.1)", "no 'dropout_p'; it is dropout=0.1"),
        ("nn.MultiHeadAttention(8, 2)", "the pattern of MultiHeadAttention, which comes first"),
        ("nn.CausalSelfAttention(8, 2)", "are they in each other's place?"),
        ("nn.GPTAttention(8, 2, dropout=0.1)", "GPTAttention() has no 'dropout'; it is attn_pdrop=0.1"),
        ("nn.LayerNorm(8, epsilon=1)", "LayerNorm() has no 'epsilon'; it is eps=1"),
        ("nn.DropoutAddLayerNorm(8, dropout=0.1)", "DropoutAddLayerNorm() has no 'dropout'; it is p=0.1"),
        ("nn.Softmax(axis=1)", "Softmax() has no 'axis'; it is dim=1"),
    ],
)
def test_modules(made: str, message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(EinsumError) as raised:
        eval(made, {"nn": einops_fast.nn})
    assert message in str(raised.value)


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
