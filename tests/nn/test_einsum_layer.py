"""`nn.Einsum` is `fast_einsum` of an input and a weight of the sizes that are given."""

import copy
import pickle
from typing import Any

import pytest
import torch

from einops_fast import EinsumError, ShapeError, SubscriptsError
from einops_fast.nn import Einsum

HEADS = "b i d, d (h e) -> b h i e"


def layer(**options: Any) -> Any:
    torch.manual_seed(0)
    return Einsum(HEADS, **{"bias": True, "d": 12, "h": 3, "e": 4, **options})


def expected(made: Any, x: Any) -> Any:
    return (x @ made.weight).unflatten(-1, (3, 4)).transpose(1, 2) + made.bias


def test_a_weight_has_the_axes_of_its_term() -> None:
    made, x = layer(), torch.randn(2, 5, 12)
    assert {name: each.shape for name, each in made.named_parameters()} == {"weight": (12, 12), "bias": (3, 1, 4)}
    torch.testing.assert_close(made(x), expected(made, x))
    made(x).sum().backward()
    torch.testing.assert_close(made.bias.grad, torch.full((3, 1, 4), 10.0))


@pytest.mark.parametrize("equation", ["...i,oi->...o", "... i, o i -> ... o", "... i, out i -> ... out"])
def test_it_may_be_a_linear_layer(equation: str) -> None:
    linear = torch.nn.Linear(4, 3)
    made = Einsum(equation, bias=True, i=4, **{"out" if "out" in equation else "o": 3})
    made.load_state_dict(linear.state_dict())
    for shape in ((4,), (2, 5, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(made(x), linear(x))


def test_parameters_begin_as_those_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    made = Einsum("b i j, i j o -> b o", bias="o", i=10, j=40, o=500)
    for parameter in made.parameters():
        assert 0.045 < parameter.abs().max() <= 400**-0.5 == 0.05
    before = made.weight.clone()
    made.reset_parameters()
    assert not made.weight.equal(before)


def test_a_bias_may_have_any_axes_of_the_result_in_order() -> None:
    made = Einsum("b i, i (h e) -> b (h e)", bias="(h e)", i=4, h=2, e=3)
    assert made.bias.shape == (6,)
    assert Einsum("b c i, c o -> b c o i", bias="c o", c=2, o=3).bias.shape == (2, 3, 1)
    assert Einsum("b d, d -> b d", bias="d", d=3, dtype=torch.float64).bias.dtype == torch.float64
    assert Einsum("b d, d -> b d", d=3).bias is None


def test_it_is_copied_pickled_compiled_traced_and_exported() -> None:
    made, x = layer(), torch.randn(2, 5, 12)
    others = {
        "copy": copy.deepcopy(made),
        "pickle": pickle.loads(pickle.dumps(made)),
        "compile": torch.compile(made, backend="aot_eager", fullgraph=True),
        "fx": torch.fx.symbolic_trace(made),
        "export": torch.export.export(made, (x,)).module(),
    }
    for name, other in others.items():
        torch.testing.assert_close(other(x), expected(made, x), msg=name)
    assert repr(made) == "Einsum('b i d, d (h e) -> b h i e', bias=True, d=12, h=3, e=4)"


@pytest.mark.parametrize(
    ("arguments", "sizes", "error", "message"),
    [
        (("b i, i o -> b o",), {"i": 3}, ShapeError, "axis 'o' of the weight"),
        (("b i, i o -> b o", "b o"), {"i": 3, "o": 2}, ShapeError, "axis 'b' of the bias"),
        (("b i, i o -> b o",), {"i": 3, "o": 2, "z": 1}, EinsumError, "no axis 'z'"),
        (("b i, i o -> b o",), {"i": 3, "o": -2}, EinsumError, "the size of 'o' is a whole number"),
        (("b i -> b",), {}, SubscriptsError, "'<input>, <weight> -> <result>'"),
        (("b i, i j, j -> b",), {}, SubscriptsError, "'<input>, <weight> -> <result>'"),
        (("b i, i o",), {"i": 3, "o": 2}, SubscriptsError, "'<input>, <weight> -> <result>'"),
        (("b i, i o -> b o", "o b"), {"i": 3, "o": 2}, SubscriptsError, "in its order.*not 'o b'"),
        (("b i, i o -> b o", "z"), {"i": 3, "o": 2}, SubscriptsError, "axis 'z', which no operand has"),
        (("b d, d -> b d", True), {"d": 2}, SubscriptsError, "with True those that only the weight has"),
        (("b i, ... i -> b",), {"i": 3}, SubscriptsError, "can't have an ellipsis"),
        ((3,), {}, SubscriptsError, "not of type int"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: Any, sizes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Einsum(*arguments, **sizes)


def test_an_input_of_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="11"):
        layer()(torch.ones(2, 5, 11))
