"""Every feature of attention against NumPy in float64, on NumPy arrays and on torch tensors, in pieces and whole."""

import numpy as np
import pytest
from attention_arrays import FRAMEWORKS, arrays_of, numbers
from attention_reference import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast import attention, attention_backend
from einops_fast.attention.memory import score_memory

PATTERN = "b h i d, b g j d, b g j e -> b h i e"
B, H, G, Q, J, D, E = 2, 4, 2, 5, 7, 6, 3


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def operands(q_len=Q, kv_len=J, heads=H, kv_heads=G, head_dim=D, v_head_dim=E):
    return (
        random(B, heads, q_len, head_dim, seed=1),
        random(B, kv_heads, kv_len, head_dim, seed=2),
        random(B, kv_heads, kv_len, v_head_dim, seed=3),
    )


MASK = random(B, H, Q, J, seed=4) > 0
MASK[0, 1, 2] = False
Q_IDS, KV_IDS = np.array([[0, 0, 1, 1, 5], [2, 2, 2, 0, 0]]), np.array([[0, 0, 0, 1, 1, 1, 2], [2, 0, 0, 0, 0, 2, 1]])

# name -> (arguments of attention, arguments of the reference)
CASES = {
    "plain": ({}, {}),
    "scale": ({"scale": -0.7}, {"scale": -0.7}),
    "softcap": ({"softcap": 0.8}, {"softcap": 0.8}),
    "causal": ({"causal": True}, {"causal": True}),
    "top_left": ({"causal": "top_left"}, {"causal": True}),
    "bottom_right": ({"causal": "bottom_right"}, {"causal": True, "alignment": "bottom_right"}),
    "window": ({"window": (1, 2)}, {"window": (1, 2)}),
    "window-aligned": (
        {"window": (1, 0), "alignment": "bottom_right"},
        {"window": (1, 0), "alignment": "bottom_right"},
    ),
    "mask": ({"mask": MASK}, {"mask": MASK}),
    "mask-2": ({"mask": MASK[0, 0]}, {"mask": MASK[0, 0]}),
    "mask-keys": ({"mask": ("b j", MASK[:, 0, 0])}, {"mask": MASK[:, :1, :1]}),
    "mask-queries": ({"mask": ("i", MASK[0, 0, :, 0])}, {"mask": MASK[0, 0, :, :1]}),
    "bias": ({"bias": random(B, H, Q, J)}, {"bias": random(B, H, Q, J)}),
    "bias-heads": ({"bias": ("h i j", random(H, Q, J))}, {"bias": random(H, Q, J)}),
    "bias-groups": ({"bias": ("g i j", random(G, Q, J))}, {"bias": random(G, Q, J).repeat(2, axis=0)}),
    "bias-permuted": ({"bias": ("j i h", random(J, Q, H))}, {"bias": random(J, Q, H).transpose(2, 1, 0)}),
    "bias-one": ({"bias": ("b j", random(1, J))}, {"bias": random(1, J)}),
    "alibi": ({"alibi_slopes": random(H)}, {"slopes": random(H)}),
    "alibi-batch": (
        {"alibi_slopes": ("h b", random(H, B)), "causal": "bottom_right"},
        {"slopes": random(H, B).T, "causal": True, "alignment": "bottom_right"},
    ),
    "sinks": ({"sinks": ("h", random(H)), "mask": MASK}, {"sinks": random(H), "mask": MASK}),
    "segments": ({"segment_ids": (Q_IDS, KV_IDS)}, {"q_segments": Q_IDS, "kv_segments": KV_IDS}),
    "segments-far": (
        {"segment_ids": (Q_IDS << 32, KV_IDS << 32)}, {"q_segments": Q_IDS, "kv_segments": KV_IDS}
    ),
    "segments-of-two-kinds": (
        {"segment_ids": (Q_IDS.astype("int8"), KV_IDS)}, {"q_segments": Q_IDS, "kv_segments": KV_IDS}
    ),
    "segments-named": (
        {"segment_ids": (("i", Q_IDS[0]), ("j b", KV_IDS.T)), "causal": True},
        {"q_segments": Q_IDS[0], "kv_segments": KV_IDS, "causal": True},
    ),
    "cache": ({"cache_seqlens": np.array([3, 7])}, {"lengths": [3, 7], "alignment": "bottom_right"}),
    "cache-causal": (
        {"cache_seqlens": np.array([6, 0]), "causal": True, "window": (3, None)},
        {"lengths": [6, 0], "causal": True, "alignment": "bottom_right", "window": (3, None)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["pieces", "whole"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", CASES)
def test_feature(case, framework, memory):
    ours, theirs = CASES[case]
    q, k, v = operands()
    expected, lse = naive(q, k, v, **theirs)
    with attention_backend("math"), score_memory(memory):
        found, found_lse = attention(
            PATTERN, *arrays_of(framework, (q, k, v)), **arrays_of(framework, ours), return_lse=True
        )
    tolerance = 1e-6 if "alibi" in case or "sinks" in case else 1e-12  # slopes and sinks become float32
    np.testing.assert_allclose(numbers(found), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(numbers(found_lse), lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", [case for case in CASES if case.split("-")[0] not in ("softcap", "sinks", "cache")])
def test_library_of_the_cpu(case):
    ours, theirs = CASES[case]
    q, k, v = operands()
    with attention_backend("cpu"):
        found = attention(PATTERN, *arrays_of("torch", (q, k, v)), **arrays_of("torch", ours))
    with attention_backend("cpu", "math"):  # an older torch gives no log of the denominator
        beside, lse = attention(PATTERN, *arrays_of("torch", (q, k, v)), **arrays_of("torch", ours), return_lse=True)
    tolerance = 1e-6 if "alibi" in case else 1e-12
    expected = naive(q, k, v, **theirs)
    for each, right in ((found, expected[0]), (beside, expected[0]), (lse, expected[1])):
        np.testing.assert_allclose(np.asarray(each), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 9), (3, 1), (3, 3), (0, 4), (4, 0), (0, 0)])
@pytest.mark.parametrize("causal", [False, "top_left", "bottom_right"])
@pytest.mark.parametrize("name", ["math", "cpu"])
def test_short_and_empty_lengths(lengths, causal, name):
    q, k, v = operands(*lengths)
    alignment = causal or "top_left"
    expected, lse = naive(q, k, v, causal=bool(causal), alignment=alignment)
    with attention_backend(name):
        found = attention(PATTERN, *arrays_of("torch", (q, k, v)), causal=causal)
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12, atol=1e-12)
    _, found_lse = attention(PATTERN, q, k, v, causal=causal, return_lse=True)
    np.testing.assert_allclose(found_lse, lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_is_computed_in_float32(dtype, torch):
    q, k, v = (each.to(getattr(torch, dtype)) for each in arrays_of("torch", operands(33, 65)))
    exact, _ = naive(*(each.double().numpy() for each in (q, k, v)), causal=True)
    with attention_backend("math"):
        found, lse = attention(PATTERN, q, k, v, causal=True, return_lse=True)
    assert found.dtype == q.dtype
    assert lse.dtype == torch.float32
    rounded = torch.from_numpy(exact).to(q.dtype).double()
    worst = float((rounded - torch.from_numpy(exact)).abs().max())  # what rounding the exact result costs
    assert float((found.double() - torch.from_numpy(exact)).abs().max()) <= 2 * worst + 1e-6


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["pieces", "whole"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": (2, None)}, {"softcap": 1.0}])
def test_packed_sequences(options, framework, memory):
    q_lengths, kv_lengths = [3, 0, 1, 5], [4, 2, 0, 5]
    q, k, v = random(9, H, D, seed=1), random(11, G, D, seed=2), random(11, G, E, seed=3)
    q_ends, kv_ends = np.cumsum([0, *q_lengths]), np.cumsum([0, *kv_lengths])
    bias, slopes, sinks = random(4, H, 5, 5), random(H), random(H)
    loop = {name: value for name, value in options.items() if name != "causal"}
    if "causal" in options:
        loop |= {"causal": True, "alignment": "bottom_right"}
    arguments = {"cu_seqlens_q": q_ends, "cu_seqlens_kv": kv_ends, "bias": bias, "alibi_slopes": slopes, "sinks": sinks}
    own, operands = arrays_of(framework, arguments), arrays_of(framework, (q, k, v))
    with score_memory(memory):
        found, lse = attention(
            "i h d, j g d, j g e -> i h e", *operands, **own, **options, max_seqlen_q=5, return_lse=True
        )
    for at, (q_len, kv_len) in enumerate(zip(q_lengths, kv_lengths, strict=True)):
        q_part, kv_part = slice(q_ends[at], q_ends[at + 1]), slice(kv_ends[at], kv_ends[at + 1])
        expected, expected_lse = naive(
            *(each.transpose(1, 0, 2)[None] for each in (q[q_part], k[kv_part], v[kv_part])),
            bias=bias[at, :, :q_len, :kv_len],
            slopes=slopes,
            sinks=sinks,
            **loop,
        )
        np.testing.assert_allclose(numbers(found)[q_part], expected[0].transpose(1, 0, 2), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(numbers(lse)[q_part], expected_lse[0].T, rtol=1e-5, atol=1e-6)


def test_places_after_the_last_packed_sequence_are_zero():
    q = random(6, 2, 4)
    found, lse = attention(q, q, q, layout="thd", cu_seqlens_q=np.array([0, 3, 4]), return_lse=True)
    assert not found[4:].any()
    assert np.isneginf(lse[4:]).all()
    np.testing.assert_array_equal(found[3], q[3])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("pattern", ["b i h d, page j g d, page j g e -> b i h e", "layout"])
def test_pages_against_the_same_keys_side_by_side(framework, pattern):
    q = random(2, 3, H, D)
    k_pages, v_pages = random(5, 4, G, D, seed=1), random(5, 4, G, E, seed=2)
    table, lengths = np.array([[4, 1], [0, 2]]), np.array([7, 2])
    expected, _ = naive(
        q.transpose(0, 2, 1, 3),
        k_pages[table].reshape(2, 8, G, D).transpose(0, 2, 1, 3),
        v_pages[table].reshape(2, 8, G, E).transpose(0, 2, 1, 3),
        lengths=lengths,
        causal=True,
        alignment="bottom_right",
    )
    arguments = arrays_of(framework, {"cache_seqlens": lengths, "block_table": table})
    own = arrays_of(framework, (q, k_pages, v_pages))
    if pattern == "layout":
        found = attention(*own, layout="bshd", causal=True, **arguments)
    else:
        found = attention(pattern, *own, causal=True, **arguments)
    np.testing.assert_allclose(numbers(found), expected.transpose(0, 2, 1, 3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dropout_drops_weights_and_scales_the_others(framework):
    arrays = arrays_of(framework, (np.zeros((400, 4)), np.zeros((100, 4)), np.eye(100)))
    with attention_backend("math"):
        found, again = (numbers(attention("i d, j d, j e -> i e", *arrays, dropout_p=0.25)) for _ in range(2))
    assert abs((found == 0).mean() - 0.25) < 0.02
    np.testing.assert_allclose(found[found != 0], 0.01 / 0.75)
    assert not np.array_equal(found, again)


def _single(given):
    """A bias in float32, alone or beside its axes."""
    if isinstance(given, tuple):
        return given[0], _single(given[1])
    return given.float() if given.is_floating_point() else given


@given(st.data())
@settings(max_examples=40)
def test_any_mixture(data):
    """Random sizes and modifiers, against the reference."""
    batch, groups, share = (data.draw(st.integers(1, 2)) for _ in range(3))
    q_len, kv_len, *features = (data.draw(st.integers(1, 5) | st.just(33)) for _ in range(4))
    heads = groups * share
    q, k, v = operands(q_len, kv_len, heads, groups, *features)
    q, k, v = q[:batch], k[:batch], v[:batch]
    causal = data.draw(st.sampled_from([False, "top_left", "bottom_right"]))
    side = st.none() | st.integers(0, 4)
    ours = {
        "causal": causal,
        "window": data.draw(st.tuples(side, side)),
        "softcap": data.draw(st.sampled_from([0.0, 0.9])),
    }
    theirs = {**ours, "causal": bool(causal), "alignment": causal or "top_left"}
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in (batch, heads, q_len, kv_len))
    for name, array, wanted in (
        ("bias", random(*shape), "bias"), ("mask", random(*shape, seed=3) > 0, "mask"),
        ("alibi_slopes", random(*shape[:2]).astype("f"), "slopes"), ("sinks", random(*shape[:2]).astype("f"), "sinks"),
    ):  # fmt: skip
        if data.draw(st.booleans()):
            ours[name] = theirs[wanted] = array
    with score_memory(data.draw(st.sampled_from([1, 1 << 12, 1 << 20]))):
        found, lse = attention(PATTERN, q, k, v, **ours, return_lse=True)
    expected, expected_lse = naive(q, k, v, **theirs)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-10, atol=1e-10)
