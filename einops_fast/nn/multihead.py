"""`MultiHeadAttention`: projections and attention along any axis of inputs in any axis order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from einops_fast.attention.attend import attention
from einops_fast.attention.options import count
from einops_fast.attention.pattern import checked_sequence
from einops_fast.attention.prepare import check_options
from einops_fast.errors import EinsumError, SubscriptsError
from einops_fast.nn.heads import check_features, head_dim_of
from einops_fast.ops.checks import check_values
from einops_fast.ops.self_attention import attention_or_zeros, head_counts
from einops_fast.vocabulary import names_of, renamed


class MultiHeadAttention(nn.Module):
    """Attention with projections of queries, keys, values and the result.

    Args:
        pattern: the axes of queries, of keys and values, and of the result, the features left out, which are the last
            axis of each: ``'b i, b j -> b i'``, ``'i b, j b -> i b'``, or along one axis of images
            ``'b row i, b row j -> b row i'``. Axes in the first and last term only are queries, those in the second
            only are keys. If no term has a blank, these are letters if that makes sense (``'ib, jb -> ib'``), else
            words (``'query, key -> query'``). The names ``head``, ``kv_head``, ``head_dim`` and ``v_head_dim`` are
            the module's own.
        embed_dim: features of the queries and the result.
        num_heads: number of heads.
        num_kv_heads: heads of keys and values, which divides ``num_heads``; the same if ``None``.
        head_dim: features per head; ``embed_dim // num_heads`` if ``None``.
        kv_dim: features of keys and values; ``embed_dim`` if ``None``.
        bias: whether the projections add a bias.
        dropout: probability of dropping weights while training; with 1 all are.
        sequence: names of the axes of the queries and of the keys, where the pattern leaves that open; what else is in
            its first and last term only are then batch axes of the queries.
        device, dtype: of the parameters.
        options: what else :func:`einops_fast.attention` takes, for every call: ``causal``, ``window``, ``softcap``, …

    Raises:
        SubscriptsError: the pattern isn't one.
        ShapeError: sizes don't divide.
        EinsumError: base of these; an option is wrong.
        TypeError: there is no such option.

    Example:
        >>> import torch
        >>> from einops_fast.nn import MultiHeadAttention
        >>> attend = MultiHeadAttention('i b, j b -> i b', embed_dim=32, num_heads=4, num_kv_heads=2, causal=True)
        >>> attend(torch.zeros(5, 2, 32)).shape
        torch.Size([5, 2, 32])
    """

    def __init__(
        self,
        pattern: str = "b i, b j -> b i",
        embed_dim: int = 512,
        num_heads: int = 8,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kv_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        sequence: tuple[str, str] | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_values(dropout=dropout, bias=bias)
        options = _checked_options(options)
        self.pattern, self.sequence = _with_heads(pattern, checked_sequence(sequence))
        num_heads, kv_heads = head_counts(num_heads, num_kv_heads)
        if head_dim is None:
            head_dim = head_dim_of(embed_dim, num_heads, ("embed_dim", "num_heads"))
        features = "a number of features, 1 or more"
        embed_dim = count("embed_dim", embed_dim, features)
        kv_dim = embed_dim if kv_dim is None else count("kv_dim", kv_dim, features)
        self.head_dim = count("head_dim", head_dim, features)
        self.num_heads, self.num_kv_heads = num_heads, kv_heads
        self.dropout, self.options = dropout, options
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, **made)
        self.k_proj = nn.Linear(kv_dim, kv_heads * self.head_dim, **made)
        self.v_proj = nn.Linear(kv_dim, kv_heads * self.head_dim, **made)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, **made)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **options: Any) -> Any:
        """Attention of ``query`` to ``key`` and ``value``.

        Args:
            query: axes of the first term of the pattern, and features.
            key: axes of the second term, and features; ``query`` if ``None``.
            value: the same as ``key`` if ``None``.
            options: as for :func:`einops_fast.attention`, beside those of the module: ``mask``, ``bias``, … Patterns of
                these may use the axes ``head``, ``kv_head`` and those of the module's pattern.

        Returns:
            Axes of the last term, and features. With ``return_lse`` a pair: the log of the denominator has axes of the
            last term, and heads.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_features("query", query, self.q_proj.in_features)
        check_features("key", key, self.k_proj.in_features)
        check_features("value", value, self.v_proj.in_features)
        q = self.q_proj(query).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_proj(key).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(value).unflatten(-1, (self.num_kv_heads, self.head_dim))
        dropout = self.dropout if self.training else 0.0
        found = {"sequence": self.sequence, "dropout_p": dropout, **self.options, **options}
        result = attention_or_zeros(self.pattern, q, k, v, **found)
        if not isinstance(result, tuple):
            return self.out_proj(result.flatten(-2))
        result, lse = result
        return self.out_proj(result.flatten(-2)), lse


_OWN_NAMES = ("head", "kv_head", "head_dim", "v_head_dim")


def _checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Raise unless they are what attention takes beside a pattern and arrays, and are right as far as can be seen."""
    options = renamed(MultiHeadAttention, options, [name for name in names_of(attention) if name != "dropout_p"])
    if "layout" in options:
        raise EinsumError("a pattern and a layout can't be given together")
    check_options(options)
    return options


def _with_heads(pattern: str, sequence: tuple[str, str] | None) -> tuple[str, tuple[str, str]]:
    """The pattern of attention with heads, and its axes of queries and keys."""
    inputs, arrow, result = pattern.partition("->") if isinstance(pattern, str) else ("", "", "")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2:
        raise SubscriptsError(
            f"the pattern of MultiHeadAttention, which comes first, is '<queries>, <keys> -> <result>', not {pattern!r}"
        )
    q, k, o, queries, keys = _read([*terms, result], pattern, sequence)
    for name in _OWN_NAMES:
        if name in (*q, *k, *o):
            raise SubscriptsError(
                f"axis {name!r} of {pattern!r} has the name of an axis that the module adds: rename it"
            )
    heads = " ".join([*q, "head", "head_dim"])
    kv = " ".join(k)
    text = f"{heads}, {kv} kv_head head_dim, {kv} kv_head v_head_dim -> {' '.join(o)} head v_head_dim"
    return text, (queries, keys)


def _read(
    terms: list[str], pattern: str, sequence: tuple[str, str] | None
) -> tuple[list[str], list[str], list[str], str, str]:
    """The axes of each term, that of the queries and that of the keys."""
    words = [term.split() for term in terms]
    letters = [list("".join(each)) for each in words]
    ways = [words] if any(len(each) > 1 for each in words) else [letters, words]
    for q, k, o in ways:
        queries = [name for name in q if name in o and name not in k]
        keys = [name for name in k if name not in q and name not in o]
        if sequence is not None:
            queries = [name for name in queries if name == sequence[0]]
            keys = [name for name in keys if name == sequence[1]]
        if len(keys) == len(queries) == 1 and all(len(set(term)) == len(term) for term in (q, k, o)):
            return q, k, o, queries[0], keys[0]
    if sequence is not None:
        raise SubscriptsError(f"{pattern!r} has no axes of queries and keys called {sequence[0]!r} and {sequence[1]!r}")
    raise SubscriptsError(
        f"{pattern!r} has to have one axis of queries and one of keys; say which with sequence=(queries, keys)"
    )
