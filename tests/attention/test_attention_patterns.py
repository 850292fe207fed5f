"""Patterns and layouts of attention: which axis is what, any order of axes, any strides, and what is refused."""

import numpy as np
import pytest
from attention_arrays import FRAMEWORKS, arrays_of, numbers
from attention_reference import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast import (
    EinsumError,
    OperandError,
    ShapeError,
    SubscriptsError,
    attention,
    attention_backend,
)

WORDS = {"b": "batch", "h": "heads", "g": "kv_heads", "i": "q_len", "j": "kv_len", "d": "head_dim", "e": "v_head_dim"}


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


Q, K, V = random(2, 4, 3, 6, seed=1), random(2, 2, 5, 6, seed=2), random(2, 2, 5, 7, seed=3)
EXPECTED, LSE = naive(Q, K, V, causal=True, alignment="bottom_right")


def ordered(array, axes, order):
    """The array with its axes in another order, and its memory too."""
    return np.ascontiguousarray(array.transpose([axes.index(axis) for axis in order]))


# ---- which axis is what


def test_sequence_is_found_by_the_axes_of_the_bias():
    pattern = "b u o d, b z w d, b z w e -> b u o e"
    q, k, v = random(2, 4, 3, 6, seed=1), random(2, 2, 5, 6, seed=2), random(2, 2, 5, 7, seed=3)
    bias = random(3, 5)
    with pytest.raises(SubscriptsError, match=r"'z' and 'w'.*sequence="):
        attention(pattern, q, k, v)
    found = attention(pattern, q, k, v, bias=("o w", bias))
    np.testing.assert_allclose(found, naive(q, k, v, bias=bias)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("pattern", "order"),
    [
        ("i d, j d, c j e -> c i e", (0, 1, 2)),
        ("i d, j d, j c e -> i e c", (1, 0, 2)),
        ("i d, j d, e j c -> i e c", (2, 1, 0)),
        ("i d, j d, e c j -> i c e", (2, 0, 1)),
    ],
)
def test_values_with_a_batch_of_their_own(framework, pattern, order):
    q, k, v = random(3, 4), random(5, 4, seed=1), random(2, 5, 6, seed=2)
    expected = np.stack([attention("i d, j d, j e -> i e", q, k, each) for each in v])
    result = pattern.split("-> ")[1].split()
    expected = expected.transpose(["cie".index(axis) for axis in result])
    found = attention(pattern, *arrays_of(framework, (q, k, v.transpose(order))))
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("b i h d, b j h d, b j h d -> b i h d", "give the features of v and the result a name of their own"),
        ("b i h d, b j h d -> b i h d", "three terms"),
        ("b i h d, b j h d, b j h e", "three terms"),
        ("b i h d, b j h d, b j h e -> b i e", "'h' is in q and k and v, but not in the result"),
        ("b i h d, b j h c, b j h e -> b i h e", "'d' is in q, but not in the result"),
        ("b i h d, b h d d, b j h e -> b i h e", "'d' is twice in the term of k"),
        ("b i h d, b j h d, b j h d -> b i h e", "which no operand has"),
        ("b i h d, b i h d, b i h e -> b i h e", "no axis is in k and v alone"),
        ("b i h d, b j g d, b j a e -> b i h e", "'a' is in v"),
        ("b i c d, b j c d, b j c e -> b i c e f", "which no operand has"),
    ],
)
def test_malformed_patterns(pattern, message):
    with pytest.raises(SubscriptsError, match=message):
        attention(pattern, random(2, 3, 4, 6), random(2, 5, 4, 6), random(2, 5, 4, 7))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 4, 6), (2, 5, 4, 5), (2, 5, 4, 7)), r"'d' has size 5 in k \(axis 3 of shape .*\) but size 6 in q"),
        (((2, 3, 4, 6), (2, 5, 4, 6), (2, 4, 4, 7)), r"'j' has size 4 in v .* but size 5 in k"),
        (((2, 3, 4, 6), (3, 5, 4, 6), (3, 5, 4, 7)), r"'b' has size 3 in k .* but size 2 in q"),
        (((2, 3, 4, 6), (2, 5, 3, 6), (2, 5, 3, 7)), r"'h' has size 3 in k .* but size 4 in q"),
        (((2, 3, 4, 6), (2, 5, 4, 6), (2, 1, 4, 7)), r"'j' has size 1 in v"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(shapes, message):
    with pytest.raises(ShapeError, match=message):
        attention("b i h d, b j h d, b j h e -> b i h e", *(np.ones(shape) for shape in shapes))


P = "b i h d, b j g d, b j g e -> b i h e"


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ShapeError, "isn't a multiple of axis 'g'", {"k": np.ones((2, 5, 3, 6)), "v": np.ones((2, 5, 3, 7))}),
        (ShapeError, r"axis 1 \('i'\) of bias .* has size 2, but 'i' has", {"bias": ("h i j", np.ones((4, 2, 5)))}),
        (ShapeError, r"axis 0 \('h'\) of mask", {"mask": np.ones((3, 3, 5), bool)}),
        (ShapeError, "bias has 2 axes, but its pattern 'h i j' names 3", {"bias": ("h i j", np.ones((3, 5)))}),
        (SubscriptsError, "'x', which none of q, k and v has", {"bias": ("x i j", np.ones((4, 3, 5)))}),
        (SubscriptsError, "can't have axis 'd'", {"bias": ("d j", np.ones((6, 5)))}),
        (SubscriptsError, "both 'h' and 'g'", {"bias": ("h g i j", np.ones((4, 2, 3, 5)))}),
        (ShapeError, "more axes", {"alibi_slopes": np.ones((2, 4, 1))}),
        (OperandError, "mask has dtype float64.*is a bias", {"mask": np.ones((3, 5))}),
        (OperandError, "bias has dtype bool", {"bias": np.ones((3, 5), bool)}),
        (OperandError, "k has dtype float32, but q has float64", {"k": np.ones((2, 5, 2, 6), "f")}),
        (OperandError, "q has dtype int64", {"q": np.ones((2, 3, 4, 6), int)}),
        (EinsumError, "causal is", {"causal": "left"}),
        (EinsumError, "alignment is", {"alignment": "left"}),
        (EinsumError, "contradicts", {"causal": "top_left", "alignment": "bottom_right"}),
        (EinsumError, "window is", {"window": (1, 2, 3)}),
        (EinsumError, "window is", {"window": -1}),
        (EinsumError, "softcap is", {"softcap": -1.0}),
        (EinsumError, "dropout_p is", {"dropout_p": 1.0}),
        (EinsumError, "names of two axes", {"sequence": "ij"}),
        (SubscriptsError, "'k' as the queries", {"sequence": ("k", "j")}),
        (ShapeError, "cache_seqlens has shape", {"cache_seqlens": np.array([1, 2, 3])}),
        (EinsumError, "counts pages; call it 'page'", {"block_table": np.zeros((2, 1), int)}),
        (EinsumError, "alignment is 'bottom_right'", {"cache_seqlens": np.array([1, 2]), "causal": "top_left"}),
        (EinsumError, "are two, for queries and keys", {"segment_ids": ("i", np.zeros(3, int))}),
        (EinsumError, "needs cu_seqlens_q", {"cu_seqlens_kv": np.array([0, 5])}),
        (EinsumError, "max_seqlen_q is of packed sequences", {"max_seqlen_q": 3}),
        (EinsumError, "max_seqlen_kv is of packed sequences", {"max_seqlen_kv": 3}),
        (EinsumError, "causal is", {"causal": np.array([True, False])}),
        (EinsumError, "alignment is", {"alignment": np.ones(2)}),
    ],
)  # fmt: skip
def test_bad_arguments(error, message, arguments):
    arrays = {"q": np.ones((2, 3, 4, 6)), "k": np.ones((2, 5, 2, 6)), "v": np.ones((2, 5, 2, 7))}
    operands = [arguments.get(name, array) for name, array in arrays.items()]
    with pytest.raises(error, match=message):
        attention(P, *operands, **{name: value for name, value in arguments.items() if name not in arrays})


@pytest.mark.parametrize(
    ("operands", "layout", "message"),
    [
        ((Q, K, V), None, "takes a pattern first"),
        ((P, Q, K), None, "three arrays"),
        ((P, Q, K, V), "bhsd", "together"),
        ((Q, K, V), ["b", "h", "s", "d"], "layout is a text"),
        ((Q, K), "bhsd", "three arrays"),
        ((Q, K, V), "bhxd", "layout 'bhxd' is none"),
        ((Q, K, V), "bths", "is none"),
        ((Q, K, V), "bhtd", "is none"),
        ((Q, Q, Q), "bs3hd", "takes one array"),
        ((Q,), "bs3hd", "of 5 axes"),
        (([1],), "bs3hd", "is of an array, not of a list"),
        ((Q[0], K[0], V[0]), "thd", "needs cu_seqlens_q"),
    ],
)
def test_bad_operands(operands, layout, message):
    with pytest.raises(EinsumError, match=message):
        attention(*operands, layout=layout)


def test_arrays_of_two_frameworks_are_named(torch):
    with pytest.raises(OperandError, match=r"q and v are of two frameworks, numpy and torch"):
        attention("b h i d, b g j d, b g j e -> b h i e", Q, K, torch.from_numpy(V))
    with pytest.raises(OperandError, match=r"bias is on meta"):
        attention(
            "i d, j d, j e -> i e", *(torch.ones(2, 3),) * 3, bias=torch.ones(2, 2, device="meta")
        )  # fmt: skip


def test_tensors_that_cannot_be_read_are_named(torch):
    q, pattern = torch.ones(2, 3), "i d, j d, j e -> i e"
    for _ in range(2):  # whatever is remembered of dense ones
        with pytest.raises(OperandError, match=r"^q is a tensor of layout torch.sparse_coo; attention takes dense"):
            attention(pattern, q.to_sparse(), q, q)
        with pytest.raises(OperandError, match=r"^mask is a tensor of layout torch.sparse_csr"):
            attention(pattern, q, q, q, mask=torch.ones(2, 2).bool().to_sparse_csr())
        attention(pattern, q, q, q)
    ends = torch.tensor([0, 2], dtype=torch.int32, device="meta")
    with pytest.raises(OperandError, match=r"^cu_seqlens_q is on meta.*give max_seqlen_q"):
        attention(q[:, None], q[:, None], q[:, None], layout="thd", cu_seqlens_q=ends)


# ---- any order, any strides


@given(
    st.permutations("bhid"), st.permutations("bgjd"), st.permutations("bgje"), st.permutations("bhie"), st.booleans()
)
@settings(max_examples=25)
def test_any_order_of_axes(q_order, k_order, v_order, result_order, words):
    terms = [
        (" " if words else "").join(WORDS[axis] if words else axis for axis in order)
        for order in (q_order, k_order, v_order, result_order)
    ]
    found, lse = attention(
        f"{', '.join(terms[:3])} -> {terms[3]}",
        ordered(Q, "bhid", q_order),
        ordered(K, "bgjd", k_order),
        ordered(V, "bgje", v_order),
        causal="bottom_right",
        return_lse=True,
    )
    np.testing.assert_allclose(found, ordered(EXPECTED, "bhie", result_order), rtol=1e-12, atol=1e-12)
    without = [axis for axis in result_order if axis != "e"]
    np.testing.assert_allclose(lse, ordered(LSE, "bhi", without), rtol=1e-12, atol=1e-12)
    assert found.flags.c_contiguous


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["math", "cpu"])
def test_any_strides(framework, name):
    if (framework, name) == ("numpy", "cpu"):
        pytest.skip("it takes tensors")
    if framework == "torch":
        torch = pytest.importorskip("torch")
        sliced = torch.full((2, 8, 3, 12), float("nan"), dtype=torch.float64)[:, ::2, :, 3:9]
        sliced.copy_(torch.from_numpy(Q))
        expanded = torch.from_numpy(K)[:, :1].expand(K.shape)
        backwards = torch.from_numpy(np.ascontiguousarray(V.T)).permute(3, 2, 1, 0)
    else:
        sliced = np.full((2, 8, 3, 12), np.nan)[:, ::2, :, 3:9]
        sliced[...] = Q
        expanded = np.broadcast_to(K[:, :1], K.shape)
        backwards = V[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    with attention_backend(name):
        found = attention("b h i d, b g j d, b g j e -> b h i e", sliced, expanded, backwards)
    np.testing.assert_allclose(np.asarray(found), naive(Q, np.asarray(expanded), V)[0], rtol=1e-12, atol=1e-12)


def test_shared_keys_of_all_kinds():
    expected, _ = naive(Q, K, V)
    grouped = Q.reshape(2, 2, 2, 3, 6)
    found = attention("b g r i d, b g j d, b g j e -> b g r i e", grouped, K, V)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)
    for pattern, q, k, v, same in (
        ("b h i d, b j d, b j e -> b h i e", Q, K[:, 0], V[:, 0], (Q, K[:, :1], V[:, :1])),
        ("b h i d, b g j d, b g j e -> b h i e", Q, K[:, :1], V[:, :1], (Q, K[:, :1], V[:, :1])),
        ("b h i d, b h j d, b h j e -> b h i e", Q, K[:, :1], V[:, :1], (Q, K[:, :1], V[:, :1])),
        ("h i d, b g j d, b g j e -> b h i e", Q[0], K, V, (Q[[0, 0]], K, V)),
        ("b h i d, b g j d, j e -> b h i e", Q, K, V[0, 0], (Q, K, np.broadcast_to(V[0, 0], V.shape))),
        ("b h i d, g j d, b j e -> b h i e", Q, K[0], V[:, 0], (Q, K[[0, 0]], V[:, [0, 0]])),
    ):
        np.testing.assert_allclose(attention(pattern, q, k, v), naive(*same)[0], rtol=1e-12, atol=1e-12)
    found = attention("b h d, b g j d, b g j e -> b h e", Q[:, :, 0], K, V)
    np.testing.assert_allclose(found, naive(Q[:, :, :1], K, V)[0][:, :, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "hbsd", "dhsb", "hsd", "sd"])
def test_layouts(layout):
    q, k, v = Q, K, V
    names = {"b": "b", "h": "h", "s": "i", "d": "d"}
    for axis in "bh":
        if axis not in layout:
            q, k, v = (each[:1] if axis == "b" else each[:, :1] for each in (q, k, v))
    expected, _ = naive(q, k, v, causal=True)

    def arrange(array, axes):
        if "b" not in layout:
            array, axes = array[0], axes.replace("b", "")
        if "h" not in layout:
            array, axes = array[0], axes.replace("h", "")
        return ordered(array, axes, "".join(names[axis] for axis in layout))

    found = attention(*(arrange(array, "bhid") for array in (q, k, v)), layout=layout, causal=True)
    np.testing.assert_allclose(found, arrange(expected, "bhid"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["bs3hd", "sb3hd", "3bhsd", "t3hd"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packed_layouts(layout, framework):
    qkv = random(3, 2, 4, 5, 6)  # 3 b h s d
    packed = ordered(qkv, "3bhsd", layout) if layout != "t3hd" else ordered(qkv[:, 0], "3htd", layout)
    options = {"cu_seqlens_q": np.array([0, 5])} if layout == "t3hd" else {}
    found = numbers(attention(arrays_of(framework, packed), layout=layout, **arrays_of(framework, options)))
    expected, _ = naive(*qkv)
    if layout == "t3hd":
        np.testing.assert_allclose(found, expected[0].transpose(1, 0, 2), rtol=1e-12, atol=1e-12)
    else:
        order = layout.replace("3", "")
        np.testing.assert_allclose(found, ordered(expected, "bhsd", order), rtol=1e-12, atol=1e-12)
