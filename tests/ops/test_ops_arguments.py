"""Arguments of another framework than the input's, or of none: errors that name them."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from einops_fast import EinsumError, OperandError, ShapeError, SubscriptsError, ops

X, MATRIX, VECTOR, TARGET = torch.ones(2, 4), torch.ones(4, 4), torch.ones(4), torch.zeros(2, dtype=torch.long)

CALLS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "mask": (lambda it: ops.softmax(X, mask=it), VECTOR),
    "weight": (lambda it: ops.layer_norm(X, weight=it), VECTOR),
    "bias": (lambda it: ops.rms_norm(X, bias=it), VECTOR),
    "residual": (lambda it: ops.dropout_add_layer_norm(X, it), X),
    "target": (lambda it: ops.cross_entropy(X, it), TARGET),
    "weight of classes": (lambda it: ops.cross_entropy(X, TARGET, it), VECTOR),
    "linear_weight": (lambda it: ops.linear_cross_entropy(X, it, TARGET), MATRIX),
    "bias of an activation": (lambda it: ops.bias_gelu(X, it), VECTOR),
    "weight of a layer": (lambda it: ops.linear(X, it), MATRIX),
    "in_proj_weight": (lambda it: ops.qkv_self_attention(X, 1, it), torch.ones(12, 4)),
    "attn_mask": (lambda it: ops.qkv_self_attention(X, 1, torch.ones(12, 4), attn_mask=it), torch.ones(2, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_names(name: str) -> None:
    call, array = CALLS[name]
    call(array)
    for other, kind in ((array.numpy(), "ndarray"), (array.tolist(), "list")):
        with pytest.raises(OperandError, match=f"^{name.split()[0]} is of type {kind}; .* array of torch"):
            call(other)


def test_nested_tensors() -> None:
    parts = [torch.ones(2, 4), torch.ones(3, 4)]
    assert ops.layer_norm(torch.nested.nested_tensor(parts, layout=torch.jagged)).shape[-1] == 4
    with pytest.raises(OperandError, match=r"layout=torch.jagged"):
        ops.softmax(torch.nested.nested_tensor(parts))


def test_sparse_tensors() -> None:
    for sparse in (X.to_sparse(), X.to_sparse_csr()):
        with pytest.raises(OperandError, match=rf"^the input is a tensor of layout {sparse.layout}; rms_norm takes"):
            ops.rms_norm(sparse)
        with pytest.raises(OperandError, match=r"cross_entropy takes dense ones"):
            ops.cross_entropy(sparse, TARGET)
    row = torch.ones(X.shape[-1]).to_sparse()
    for name, call in {
        "weight": lambda: ops.layer_norm(X, X.shape[-1], row),
        "bias": lambda: ops.bias_gelu(X, row),
        "residual": lambda: ops.dropout_add_layer_norm(X, X.to_sparse()),
        "mask": lambda: ops.softmax(X, mask=torch.ones_like(X).to_sparse()),
        "target": lambda: ops.cross_entropy(X, TARGET.to_sparse()),
    }.items():
        with pytest.raises(OperandError, match=rf"^{name} is a tensor of layout torch\.sparse_coo; .* dense ones"):
            call()
        assert torch.equal(ops.linear(sparse, MATRIX), torch.full((2, 4), 4.0))
    assert torch.equal(ops.softmax(X.to_mkldnn()).to_dense(), torch.full((2, 4), 0.25))


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
    "layer_norm": ops.layer_norm,
    "rms_norm": ops.rms_norm,
    "dropout_add_layer_norm": ops.dropout_add_layer_norm,
    "bias_gelu": ops.bias_gelu,
    "dropout_bias_activation": ops.dropout_bias_activation,
    "cross_entropy": lambda x: ops.cross_entropy(x, TARGET),
    "linear": lambda x: ops.linear(x, MATRIX),
    "linear_cross_entropy": lambda x: ops.linear_cross_entropy(x, MATRIX, TARGET),
    "qkv_self_attention": lambda x: ops.qkv_self_attention(x, 1, torch.ones(12, 4)),
}


def test_dtypes() -> None:
    """What no operator is for is refused by its name, before any framework gets it."""
    for name, call in OPERATORS.items():
        for dtype in (torch.int64, torch.bool, torch.complex64):
            with pytest.raises(OperandError, match=f"^input has dtype {str(dtype)[6:]}; {name} takes float16"):
                call(X.to(dtype))
        with pytest.raises(OperandError, match=f"^{name} needs an input"):
            call(None)
    with pytest.raises(OperandError, match=r"^weight has dtype int64; layer_norm takes"):
        ops.layer_norm(X, weight=VECTOR.long())
    with pytest.raises(OperandError, match=r"^input has dtype complex128; softmax takes real numbers"):
        ops.softmax(np.ones(3, complex))
    np.testing.assert_allclose(ops.softmax([0, 0]), 0.5)


WRONG: dict[str, Callable[[Any], Any]] = {
    "complex numbers": lambda x: ops.softmax(x.to(torch.complex64)),
    "integers": lambda x: ops.layer_norm(x.long()),
    "residual of integers": lambda x: ops.dropout_add_layer_norm(x, x.long()),
    "weight of another dtype": lambda x: ops.linear(x, MATRIX.double()),
    "boolean target": lambda x: ops.cross_entropy(x, TARGET.bool()),
    "another device": lambda x: ops.softmax(x, mask=torch.ones(4, device="meta")),
    "array of NumPy": lambda x: ops.bias_gelu(x, VECTOR.numpy()),
    "list": lambda x: ops.softmax(x, mask=[1.0, 2.0, 3.0, 4.0]),
    "no target": lambda x: ops.cross_entropy(x, None),
    "no input": lambda x: ops.softmax(None),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_while_torch_compiles(name: str) -> None:
    """They are those of other calls, inside of the compiler's own: nothing is computed from what isn't meant."""
    with pytest.raises(OperandError) as eager:
        WRONG[name](X)
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="OperandError.*" + re.escape(str(eager.value))):
        torch.compile(WRONG[name], fullgraph=True, backend="eager")(X)


ARRAY, TWO, CLASSES = np.ones((2, 3)), np.ones(2), np.array([0, 1])
HIDDEN, SEEN = torch.ones(2, 3), torch.ones(3, dtype=torch.bool)


def differ(name: str, axis: int, size: int, of: int, other: int = 3) -> str:
    return rf"^axis {axis} of {name} .*size {size}, but axis {of} of input .*size {other}"


ERRORS: list[tuple[type[EinsumError], str, Callable[[], Any]]] = [
    # what is missing, or no number
    (EinsumError, "^linear needs weight,", lambda: ops.linear(X, None)),
    (EinsumError, "^cross_entropy needs target,", lambda: ops.cross_entropy(X, None)),
    (EinsumError, "^p is a", lambda: ops.dropout_bias_activation(X, p="some")),
    (EinsumError, "^ignore_index is", lambda: ops.cross_entropy(X, TARGET, ignore_index=1.5)),
    (EinsumError, "^label_smoothing is", lambda: ops.cross_entropy(X, TARGET, label_smoothing="some")),
    (EinsumError, "^z_loss is", lambda: ops.cross_entropy(X, TARGET, z_loss=float("nan"))),
    (EinsumError, "reduction", lambda: ops.cross_entropy(ARRAY, CLASSES, reduction="max")),
    (EinsumError, "eps is a number", lambda: ops.layer_norm(ARRAY, eps="small")),
    (EinsumError, "probability", lambda: ops.dropout_add_layer_norm(torch.ones(2), p=2)),
    (EinsumError, "'tanh'", lambda: ops.linear(HIDDEN, torch.ones(4, 3), activation="tanh")),
    *[
        (EinsumError, f"chunk .* not {chunk}", partial(ops.linear_cross_entropy, X, MATRIX, TARGET, chunk=chunk))
        for chunk in (0, 1.5)
    ],
    # axes and their names
    (SubscriptsError, "no axis 'k'", lambda: ops.softmax(ARRAY, "k", pattern="ij")),
    (SubscriptsError, "pattern", lambda: ops.softmax(ARRAY, "k")),
    (EinsumError, "pattern has the names", lambda: ops.softmax(ARRAY, pattern=3)),
    (EinsumError, "dim is the number of an axis", lambda: ops.softmax(ARRAY, dim=1.0)),
    (ShapeError, "axis 2 of an array with 2 axes", lambda: ops.softmax(ARRAY, 2)),
    (ShapeError, "causal", lambda: ops.softmax(ARRAY[0], causal=True)),
    (EinsumError, "together", lambda: ops.layer_norm(ARRAY, 3, dim=1)),
    (EinsumError, r"normalized_shape .* not 3\.0", lambda: ops.rms_norm(ARRAY, 3.0)),
    (ShapeError, "input has no axis", lambda: ops.linear_cross_entropy(torch.tensor(1.0), MATRIX, torch.tensor(0))),
    # options of softmax
    (EinsumError, "causal is True", lambda: ops.softmax(X, causal=torch.ones(2))),
    (EinsumError, "temperature is a positive number", lambda: ops.softmax(ARRAY, temperature=0)),
    (EinsumError, "temperature is a positive number", lambda: ops.softmax(X, temperature=10**400)),
    (EinsumError, "temperature is a number", lambda: ops.softmax(X, temperature=torch.tensor(2.0))),
    (EinsumError, "dtype is a floating-point type", lambda: ops.softmax(X, dtype=torch.int32)),
    (OperandError, "mask is boolean or has floating-point", lambda: ops.softmax(X, mask=VECTOR.long())),
    (OperandError, "mask is on meta, the input on cpu", lambda: ops.softmax(X, mask=VECTOR.to("meta"))),
    # two sizes
    (ShapeError, differ("mask", 1, 2, 1), lambda: ops.softmax(ARRAY, mask=np.ones((2, 2), bool))),
    (ShapeError, differ("weight", 0, 2, 1), lambda: ops.layer_norm(ARRAY, weight=TWO)),
    (ShapeError, differ("weight", 0, 2, 1), lambda: ops.cross_entropy(ARRAY, CLASSES, weight=TWO)),
    (ShapeError, differ("weight", 1, 2, 1), lambda: ops.linear(HIDDEN, torch.ones(4, 2))),
    (ShapeError, differ("bias", 0, 2, 1), lambda: ops.bias_gelu(HIDDEN, torch.ones(2))),
    (ShapeError, differ("residual", 0, 2, 1), lambda: ops.dropout_add_layer_norm(HIDDEN, torch.ones(2))),
    (ShapeError, differ("linear_weight", 1, 4, 1), lambda: ops.linear_cross_entropy(HIDDEN, torch.ones(5, 4), TARGET)),
    (ShapeError, differ("target", 0, 3, 0, 2), lambda: ops.cross_entropy(ARRAY, np.array([0, 1, 2]))),
    (ShapeError, differ("target", 0, 3, 0, 2), lambda: ops.cross_entropy(HIDDEN, torch.ones(3, 3))),
    (ShapeError, differ("target", 0, 3, 0, 2), lambda: ops.linear_cross_entropy(X, MATRIX, torch.zeros(3).long())),
    (ShapeError, r"^mask .* 1 axes, more than the 0 of input", lambda: ops.softmax(torch.tensor(2.0), mask=SEEN)),
    (ShapeError, r"normalized_shape .* size 2 in axis 1, .* size 3", lambda: ops.rms_norm(ARRAY, (2, 2))),
    (ShapeError, r"^target .*axis 1.* needs .* \(2,\)", lambda: ops.cross_entropy(ARRAY, np.zeros((2, 3), int))),
    (ShapeError, r"^target .*probabilities in float32.* needs", lambda: ops.cross_entropy(HIDDEN, torch.ones(2))),
    # what operators aren't there for
    (OperandError, r"^target has .* integers, not bool", lambda: ops.cross_entropy(ARRAY, CLASSES > 0)),
    (OperandError, r"^target .* not bool", lambda: ops.linear_cross_entropy(X, MATRIX, TARGET.bool())),
    (OperandError, r"^bias_gelu .* torch", lambda: ops.bias_gelu(ARRAY)),
    (OperandError, r"^dropout_add_layer_norm .* torch", lambda: ops.dropout_add_layer_norm(ARRAY)),
    (OperandError, r"target .* not float32", lambda: ops.linear_cross_entropy(X, MATRIX, torch.zeros(2))),
    (OperandError, "^linear_weight .* float64, input", lambda: ops.linear_cross_entropy(X, MATRIX.double(), TARGET)),
]


@pytest.mark.parametrize(("error", "message", "call"), ERRORS, ids=[message for _, message, _ in ERRORS])
def test_errors(error: type[EinsumError], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        call()
