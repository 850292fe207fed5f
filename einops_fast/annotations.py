"""Types of the arguments and results of public functions, for type checkers and editors."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict, TypeVar


class Array(Protocol):
    """An array of any framework."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)
"""The type of a call's arrays, which its result has, too."""

Nested = complex | list[Any] | tuple[Any, ...]
"""Numbers, and lists of them, which count as arrays of NumPy."""

Order = Literal["C", "F", "A", "K", "c", "f", "a", "k"]

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

Autotune = Literal["auto", "wait", "never", "always", "reproducible"]

Precision = Literal["tf32", "tf32x3"]

Alignment = Literal["top_left", "bottom_right"]
"""Which query faces which key: the first the first, or the last the last."""

Causal = bool | Alignment

Layout = Literal[
    "bhsd", "bshd", "sbhd", "hbsd", "bhds", "bsd", "sbd", "hsd", "shd", "thd", "htd",
    "bs3hd", "bsh3d", "sb3hd", "sbh3d", "3bhsd", "3bshd", "b3hsd", "bhs3d", "t3hd", "th3d", "3thd",
]  # fmt: skip
"""The layouts that programs have. Others can be written as patterns."""

Framework = Literal["numpy", "torch", "mxnet", "cupy", "torch.sdpa", "torch.compile"]
"""The functions that :func:`einops_fast.patch` replaces, by framework."""

Reduction = Literal["none", "mean", "sum"]


class AttentionOptions(TypedDict, total=False):
    """The arguments of :func:`einops_fast.attention` by name, but for the one that says what it returns."""

    layout: Layout | None
    causal: Causal
    window: int | tuple[int | None, int | None] | None
    mask: Any
    bias: Any
    alibi_slopes: Any
    softcap: float
    scale: float | None
    dropout_p: float
    sinks: Any
    segment_ids: Any
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    cache_seqlens: Any
    block_table: Any
    alignment: Alignment | None
    deterministic: bool
    sequence: tuple[str, str] | None
