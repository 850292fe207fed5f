"""Options that are arrays get an error of ours that names them: what their comparison raises says nothing."""

from inspect import signature

import numpy as np
import pytest

import einops_fast
from einops_fast import EinsumError, attention, contract_expression, explain, fast_einsum, scaled_dot_product_attention

torch = pytest.importorskip("torch")

from einops_fast import nn, ops  # noqa: E402

ARRAYS = {"numpy": np.array([1, 2]), "one text": np.array(["auto"]), "torch": torch.tensor([1.0, 2.0])}
OPERANDS = {"numpy": (np.ones((3, 4)), np.ones((4, 5))), "torch": (torch.ones(3, 4), torch.ones(4, 5))}
X, HEADS = torch.ones(2, 3, 4), torch.ones(1, 2, 8, 16)
LABELS = torch.zeros((2, 4), dtype=torch.int64)
ARGUMENTS = {"target": LABELS, "weight": torch.ones(5, 4), "normalized_shape": (4,), "dim": -1, "residual": X}


@pytest.fixture(params=ARRAYS)
def array(request):
    return ARRAYS[request.param]


@pytest.mark.parametrize("framework", OPERANDS)
@pytest.mark.parametrize("option", ["autotune", "precision", "order", "casting", "optimize", "memory_limit"])
def test_options_of_einsum(framework, option, array):
    for _ in range(3):  # also as calls of known shapes are
        fast_einsum("ij,jk->ik", *OPERANDS[framework])
        with pytest.raises(EinsumError, match=option):
            fast_einsum("ij,jk->ik", *OPERANDS[framework], **{option: array})


@pytest.mark.parametrize("framework", OPERANDS)
@pytest.mark.parametrize("option", ["autotune", "precision", "casting", "optimize"])
def test_options_of_expressions_and_explanations(framework, option, array):
    with pytest.raises(EinsumError, match=option):
        explain("ij,jk->ik", *OPERANDS[framework], **{option: array})
    with pytest.raises(EinsumError, match=option):
        contract_expression("ij,jk->ik", (3, 4), (4, 5), **{option: array})(*OPERANDS[framework])


def test_sizes_of_axes(array):
    with pytest.raises(EinsumError, match="'x'"):
        fast_einsum("(i x) j, j k -> i x k", *OPERANDS["numpy"], x=array)


OURS = "softcap", "scale", "dropout_p", "window", "return_lse", "deterministic", "max_seqlen_q", "max_seqlen_kv"
CALLS = {attention: OURS, scaled_dot_product_attention: ("dropout_p", "is_causal", "scale", "enable_gqa")}


@pytest.mark.parametrize(("call", "option"), [(call, option) for call, names in CALLS.items() for option in names])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_options_of_attention(call, framework, option, kind):
    pattern = ("b h i d, b h j d, b h j e -> b h i e",) if call is attention else ()
    q = HEADS if framework == "torch" else HEADS.numpy()
    with pytest.raises(EinsumError, match=option):
        call(*pattern, q, q, q, **{option: ARRAYS[kind]})


def _is_needed(parameter):
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


@pytest.mark.parametrize(
    ("function", "option"),
    [(ops.softmax, "temperature"), (ops.cross_entropy, "inplace_backward"), (ops.cross_entropy, "reduction"),
     (ops.dropout_add_layer_norm, "training"), (ops.dropout_add_layer_norm, "rms"), (ops.linear, "activation"),
     (ops.dropout_bias_activation, "activation"), (ops.dropout_bias_activation, "training"),
     (ops.layer_norm, "eps"), (ops.bias_gelu, "approximate")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_options_of_operators(function, option, kind):
    needed = [name for name, given in signature(function).parameters.items() if _is_needed(given)]
    arguments = {name: ARGUMENTS[name] for name in needed[1:]}
    with pytest.raises(EinsumError, match=option):
        function(X, **{**arguments, option: ARRAYS[kind]})


@pytest.mark.parametrize(
    ("module", "option"),
    [(nn.LayerNorm, "elementwise_affine"), (nn.LayerNorm, "bias"), (nn.RMSNorm, "elementwise_affine"),
     (nn.FusedLinear, "bias"), (nn.FusedLinear, "activation"), (nn.MultiHeadAttention, "bias"),
     (nn.QKVSelfAttention, "bias"), (nn.CausalSelfAttention, "bias")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_options_of_modules(module, option, kind):
    given = [each for name, each in signature(module.__init__).parameters.items() if name != "self"]
    sizes = {each.name: 2 if "head" in each.name else 16 for each in given if _is_needed(each)}
    with pytest.raises(EinsumError, match=option):
        module(**sizes, **{option: ARRAYS[kind]})


@pytest.mark.parametrize("then", [3, None, ARRAYS["numpy"], ARRAYS["torch"], ["inductor"]], ids=str)
def test_what_compiles_next_is_a_name_or_a_function(then):
    with pytest.raises(EinsumError, match=r"(?s)then is a backend .*'inductor'"):
        einops_fast.compile(torch.nn.Identity(), then=then)
