"""How the results of a patched einsum of torch lie in memory."""

import torch
from equations import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast import patched


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_result_in_c_order_stays_in_it(data: st.DataObject) -> None:
    """Code that calls ``view`` on it relies on that."""
    case = data.draw(cases(max_operands=3, max_size=5))
    operands = [torch.ones(shape).requires_grad_(data.draw(st.booleans())) for shape in case.shapes]
    native = torch.einsum(case.letters, *operands)
    with patched("torch"):
        result = torch.einsum(case.letters, *operands)
    assert result.is_contiguous() or not native.is_contiguous()


def test_the_order_of_torch_depends_on_sizes() -> None:
    """Of three operands opt_einsum chooses the first pair by their sizes, and with it the order of the result."""
    operands = torch.ones(()), torch.ones(2, 3, 1), torch.ones(2, 1, 2)
    native = torch.einsum(",abf,ade->bdef", *operands)
    with patched("torch"):
        result = torch.einsum(",abf,ade->bdef", *operands)
    assert native.is_contiguous()
    assert result.is_contiguous()
