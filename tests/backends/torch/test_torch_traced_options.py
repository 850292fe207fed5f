"""A traced call takes and refuses the same ``out``, ``dtype``, ``casting``, ``beta`` and sizes as an eager one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from python_process import run_python
from torch_operands import whole

from einops_fast import fast_einsum
from einops_fast.errors import OperandError

Tracer = Callable[..., Any]


def _compiled(function: Any, *arguments: Any) -> Any:
    return whole(function, "eager")(*arguments)


def _compiled_for_any_size(function: Any, *arguments: Any) -> Any:
    return whole(function, "eager", dynamic=True)(*arguments)


def _recorded(function: Any, *arguments: Any) -> Any:
    traced = torch.jit.trace(function, tuple(each.clone() for each in arguments), check_trace=False)
    return traced(*arguments)


def _written_down(function: Any, *arguments: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="symbolic")(*[each.clone() for each in arguments])(*arguments)


TRACERS = [_compiled, _compiled_for_any_size, _recorded, _written_down]

OUTS = {
    "its own": ((1, 5), "float64", {}),
    "narrower": ((1, 5), "float32", {}),
    "unsafe": ((1, 5), "int64", {"casting": "unsafe"}),
    "converted": ((1, 5), "float32", {"dtype": "int32", "casting": "unsafe"}),
    "added to": ((1, 5), "float64", {"beta": 3}),
}

REFUSED = {
    "a longer axis": ((3, 5), "float64", {}),
    "one more axis": ((2, 1, 5), "float64", {}),
    "another kind": ((1, 5), "int64", {}),
    "casting of operands": ((1, 5), "float32", {"dtype": "int32"}),
    "added to a longer axis": ((3, 5), "float64", {"beta": 1}),
}


def _call(shape: tuple[int, ...], dtype: str, options: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return a call that writes a product to an ``out`` of this shape and dtype, the operands and ``out``."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, dtype=torch.float64, generator=generator) * 4 for s in ((1, 4), (4, 5)))
    given = {name: getattr(torch, value) if name == "dtype" else value for name, value in options.items()}

    def call(a: Any, b: Any, out: Any) -> Any:
        return fast_einsum("ij,jk->ik", a, b, out=out, **given)

    return call, a, b, torch.ones(shape, dtype=getattr(torch, dtype))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", OUTS)
def test_a_traced_call_writes_what_an_eager_one_writes(name: str, tracer: Tracer) -> None:
    call, a, b, out = _call(*OUTS[name])
    wanted = call(a, b, out.clone())
    found = tracer(call, a, b, out)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(out, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "error::torch.jit.TracerWarning")
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_traced_call_refuses_what_an_eager_one_refuses(name: str, tracer: Tracer) -> None:
    call, a, b, out = _call(*REFUSED[name])
    with pytest.raises(OperandError) as eager:
        call(a, b, out)
    # torch.compile tells an error of its own around it.
    with pytest.raises((OperandError, torch._dynamo.exc.Unsupported)) as traced:
        tracer(call, a, b, out)
    assert tracer is _written_down or str(eager.value) in str(traced.value) or "OperandError" in str(traced.value)
    assert torch.equal(out, torch.ones_like(out))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_traced_view_is_copied_to_the_operand_that_it_is_of(tracer: Tracer) -> None:
    a = torch.arange(9.0).reshape(3, 3)
    wanted = a.T.clone()
    tracer(lambda a: fast_einsum("ij->ji", a, out=a), a)
    assert torch.equal(a, wanted)


def test_sizes_of_a_compiled_call_may_be_those_of_arrays() -> None:
    def product(x: Any, y: Any) -> Any:
        return fast_einsum("(i p), (i p) -> i p", x.flatten(), x.flatten(), p=y.shape[0])

    compiled = whole(product, "eager", dynamic=True)
    for rows in (2, 3, 1):
        x = torch.arange(12.0).reshape(rows, -1)
        assert torch.equal(compiled(x, x), (x * x).reshape(-1, rows))


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "float64"), ((1, 5), "int64")])
def test_a_compiled_call_of_numpy_refuses_what_an_eager_one_refuses(shape: Any, dtype: str) -> None:
    out = np.ones(shape, dtype)

    def call(a: Any, b: Any, out: Any) -> Any:
        return fast_einsum("ij,jk->ik", a, b, out=out)

    arrays = np.full((1, 4), 1.5), np.full((4, 5), 1.5)
    with pytest.raises(OperandError):
        call(*arrays, out)
    with pytest.raises(Exception, match=r"out|cast"):
        whole(call, "eager")(*arrays, out)
    assert (out == 1).all()


@pytest.mark.parametrize("options", ["out=out, beta=1", "dtype=torch.float64"])
def test_the_first_call_may_be_a_compiled_one(options: str) -> None:
    program = f"""
import einops_fast, torch
x, out = torch.ones(3, 4), torch.zeros(3, 4)
call = lambda x, out: einops_fast.fast_einsum("i (h d) -> i (h d)", x, h=2, {options})
found = torch.compile(call, backend="eager", fullgraph=True)(x, out)
assert torch.equal(found, x.to(found.dtype))
"""
    run_python("-c", program)
