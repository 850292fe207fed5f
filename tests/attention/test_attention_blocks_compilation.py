"""Blocks of attention_backend inside and around what torch.compile traces."""

import pytest

from einops_fast import attention, attention_backend
from einops_fast.attention.registry import allowed_names


def test_a_block_inside_what_is_compiled_counts_there_alone(torch):
    q = torch.ones(2, 5, 3, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def inner(q):
        before = attention(q, q, q, layout="bshd")
        with attention_backend("math"):
            with attention_backend("cpu"):
                by_torch = attention(q, q, q, layout="bshd")
            by_math = attention(q, q, q, layout="bshd")
        return before + by_torch + by_math

    def stops(q):
        with attention_backend("math"):
            torch._dynamo.graph_break()
            return attention(q, q, q, layout="bshd")

    expected = 3 * attention(q, q, q, layout="bshd")
    for outside, by_torch in (("cpu", 2), ("math", 1)):
        torch.compiler.reset()
        with attention_backend(outside):
            found = torch.compile(inner, fullgraph=True, backend=backend)(q)
            assert allowed_names() == (outside,)
        torch.testing.assert_close(found, expected)
        assert graphs.pop().count("= torch._C._nn.scaled_dot_product_attention") == by_torch
    # What stops in the middle of a block leaves nothing behind.
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(stops, fullgraph=True, backend=backend)(q)
    assert allowed_names() is None
    torch.compile(lambda q: attention(q, q, q, layout="bshd"), fullgraph=True, backend=backend)(q)
    assert "scaled_dot_product_attention" in graphs.pop()
    torch.testing.assert_close(torch.compile(stops, backend=backend)(q), expected / 3)
    with pytest.raises(Exception, match="no implementation of attention is called 'five'"):
        torch.compile(lambda q: with_backend("five", q), backend=backend)(q)


def with_backend(name, q):
    with attention_backend(name):
        return attention(q, q, q, layout="bshd")
