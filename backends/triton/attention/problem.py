"""One attention as the kernels take it: what is computed, how its arrays lie, on which device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Features, Lengths, Numbers, Strides
from einops_fast.backends.triton_support import interpreted


class Layout(NamedTuple):
    """Shape, strides in elements, and the dtype's name."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = ""


ANY = 3
"""Stands for a number that isn't read; neither 1 nor a multiple of 16, for which Triton would compile anew."""

_FAR = 1 << 29
"""A window of so many keys sees all of them."""

_MOST_ROWS = 256
"""Of a tile."""

_WITH_FEATURES = ("q", "k", "v", "out", "d_out", "dq", "dk", "dv")

_TAILS = dict.fromkeys((*_WITH_FEATURES, "bias", "d_bias", "mask"), 2)
_TAILS |= {"lse": 1, "q_segments": 1, "kv_segments": 1, "slopes": 0, "sinks": 0}
"""Return how many axes follow the batch axes, by array."""

_OF_SCORES = ("q", "k", "v", "lse", "bias", "mask", "slopes", "sinks", "q_segments", "kv_segments", "pages")
"""Arrays that every kernel reads, if there are such."""

_BROADCAST = ("bias", "mask", "q_segments", "kv_segments")
"""Arrays that may have size 1 along positions, too."""


@dataclass(frozen=True)
class Problem:
    """One attention: what every plan of launches is made of.

    Attributes:
        spec: what is computed.
        layouts: of its arrays, and of the gradients that are wanted, by the names of :class:`Strides`; ``cached`` and
            ``table`` are among them.
        capability, units: compute capability of the device, and how many multiprocessors it has.
        apart: whether elements that share k and v have gradients of these of their own, as if they didn't.
        features: what the kernels are specialised for.
        sizes: of the batch axes, as few as strides allow.
        strides: of every array.
        q_rows, kv_rows: queries and keys of all sequences.
        numbers: the others.
    """

    spec: AttentionSpec
    layouts: Mapping[str, Layout]
    capability: tuple[int, int]
    units: int
    apart: bool
    features: Features
    sizes: tuple[int, ...]
    strides: Strides
    q_rows: int
    kv_rows: int
    numbers: Numbers

    def dtype(self, name: str) -> str:
        """Return the dtype of an array; empty if there is none."""
        return self.layouts[name].dtype if name in self.layouts else ""

    def on_copies(self, strides: Mapping[str, tuple[int, ...]]) -> Problem:
        """Return the same with other strides of some arrays in canonical order."""
        moved = {name: self.layouts[name]._replace(strides=own) for name, own in strides.items()}
        layouts, device = {**self.layouts, **moved}, (self.capability, self.units)
        return problem(self.spec, layouts, device, self.features.precision, self.apart)

    @property
    def elements(self) -> int:
        """Of the batch."""
        return prod(self.sizes)

    @property
    def width(self) -> int:
        """Features of the wider one of k and v."""
        return max(self.spec.head_dim, self.spec.v_head_dim)

    @property
    def share(self) -> int:
        """Batch elements that share k and v."""
        return prod(self.sizes[len(self.sizes) - self.features.shared :])

    @property
    def counting(self) -> tuple[int, ...]:
        """The sizes, for counting through the batch. The first one isn't needed for that, and nothing depends on it."""
        return self.sizes if self.features.shared == len(self.sizes) else (ANY, *self.sizes[1:])

    def strides_of(self, *names: str) -> Strides:
        """Return strides of these arrays and of those that scores depend on; others would be compiled for in vain."""
        return Strides(**{name: getattr(self.strides, name) for name in (*names, *_OF_SCORES)})

    def runtime(self, heads: int, together: int) -> tuple[Lengths, Numbers]:
        """Return the numbers that every kernel takes: :class:`Lengths`, then :class:`Numbers`.

        Programs are counted over ``heads`` batch elements, and work on so many ``together``.
        """
        together, spec = max(1, min(together, heads)), self.spec
        return Lengths(spec.q_len, spec.kv_len, heads, together, self.q_rows, self.kv_rows), self.numbers


def problem(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    device: tuple[tuple[int, int], int],
    precision: str = "ieee",
    apart: bool = False,
) -> Problem:
    """Sort out the axes; see :class:`Problem`. Products of float32 are made in ``'ieee'`` or ``'tf32'``."""
    batch = len(spec.batch)
    together = () if apart else shared_axes(spec)
    sequences = _has_sequences(spec)
    own: dict[str, list[int]] = {}
    tails: dict[str, tuple[int, ...]] = {}
    for name, (shape, strides, _) in layouts.items():
        if name in ("table", "cached"):
            continue
        own[name] = [0 if size == 1 else stride for size, stride in zip(shape[:batch], strides[:batch], strict=True)]
        tails[name] = tuple(
            0 if shape[at] == 1 and name in _BROADCAST else strides[at] for at in range(batch, batch + _TAILS[name])
        )
    pages: tuple[int, ...] = (0, 0, 0, 0)
    if spec.page_size:
        pages = (layouts["k"].strides[0], layouts["v"].strides[0], *layouts["table"].strides)
        own["k"][0] = own["v"][0] = 0
    kept = [at for at in range(batch) if spec.batch[at] != 1 or (at == 0 and sequences)]
    border = sum(at not in together for at in kept)
    sizes, rows = merged(
        [spec.batch[at] for at in kept],
        {name: [strides[at] for at in kept] for name, strides in own.items()},
        (1 if sequences else 0, border),
    )
    shared = _shared_count(prod(spec.batch[at] for at in together), sizes)
    everything = {name: (*rows[name], *tails[name]) for name in rows}
    of_scores = [everything[name] for name in ("bias", "d_bias", "mask") if name in everything]
    of_rows = [own for name, own in everything.items() if name in _WITH_FEATURES]
    left, right = _window(spec)
    head, v_head = _in_parts(spec.head_dim), _in_parts(spec.v_head_dim)
    double = spec.dtype == "float64"
    features = Features(
        axes=len(sizes),
        shared=shared,
        head_dim=spec.head_dim,
        v_head_dim=spec.v_head_dim,
        head=head,
        v_head=v_head,
        folded=spec.scale > 0 and not spec.softcap and spec.bias is None and not spec.alibi,
        left=left is not None,
        right=right is not None,
        bottom_right=spec.alignment == "bottom_right" or spec.cache,
        softcap=bool(spec.softcap),
        alibi=spec.alibi,
        sinks=spec.sinks,
        segments=spec.segments,
        dropout=spec.dropout_p > 0,
        bias=_along(spec.bias),
        mask=_along(spec.mask),
        page_size=spec.page_size,
        wide=_wide(of_rows, _MOST_ROWS, 2 * max(spec.head_dim, spec.v_head_dim)),
        wide_scores=_wide(of_scores, spec.q_len + _MOST_ROWS, spec.kv_len + _MOST_ROWS),
        double=double,
        scale=spec.scale if double else 0.0,
        cap=spec.softcap if double else 0.0,
        drop=spec.dropout_p if double else 0.0,
        precision=precision if spec.dtype == "float32" else "ieee",
        upcast=interpreted() and spec.dtype == "bfloat16",
    )
    numbers = Numbers(
        float(spec.scale),
        float(spec.softcap),
        min(left or 0, _FAR),
        min(right or 0, _FAR),
        float(spec.dropout_p),
    )
    strides = Strides(**everything, pages=pages)
    q_rows, kv_rows = (layouts[name].shape[batch] for name in ("q", "k"))
    return Problem(spec, layouts, *device, apart, features, tuple(sizes), strides, q_rows, kv_rows, numbers)


def _has_sequences(spec: AttentionSpec) -> bool:
    """Return whether the first batch axis counts sequences of their own lengths, or with pages of their own."""
    return spec.varlen or spec.cache or spec.page_size > 0


def shared_axes(spec: AttentionSpec) -> tuple[int, ...]:
    """Return the last batch axes, those that k and v both lack."""
    first = len(spec.batch)
    while first > int(_has_sequences(spec)) and spec.k_batch[first - 1] == spec.v_batch[first - 1] == 1:
        first -= 1
    return tuple(range(first, len(spec.batch)))


def missing_axes(spec: AttentionSpec, name: str, apart: bool = False) -> tuple[int, ...]:
    """Return the batch axes that the gradient of q, k or v is summed over after the kernels; see :class:`Problem`."""
    own = {"q": spec.q_batch, "k": spec.k_batch, "v": spec.v_batch}[name]
    summed = () if name == "q" or apart else shared_axes(spec)
    return tuple(
        at
        for at, (size, whole) in enumerate(zip(own, spec.batch, strict=True))
        if size == 1 != whole and at not in summed and not (at == 0 and spec.varlen)
    )


def merged(
    sizes: list[int], strides: dict[str, list[int]], borders: tuple[int, ...]
) -> tuple[list[int], dict[str, list[int]]]:
    """Return as few axes as possible: two that lie side by side in every array become one, except across a border."""
    for at in range(len(sizes) - 1, 0, -1):
        if at in borders or any(own[at - 1] != own[at] * sizes[at] for own in strides.values()):
            continue
        sizes = [*sizes[: at - 1], sizes[at - 1] * sizes[at], *sizes[at + 1 :]]
        strides = {name: [*own[: at - 1], *own[at:]] for name, own in strides.items()}
    if not sizes:
        return [1], {name: [0] for name in strides}
    return sizes, strides


def _shared_count(left: int, sizes: Sequence[int]) -> int:
    """Return how many of the merged axes make up the shared ones, which have so many elements."""
    count = 0
    while left > 1:
        left //= sizes[-1 - count]
        count += 1
    return count


def _window(spec: AttentionSpec) -> tuple[int | None, int | None]:
    left, right = spec.window
    if spec.causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def _in_parts(features: int) -> tuple[int, int]:
    """Return powers of two that hold so many features: one, or two where these are fewer in sum."""
    whole = max(16, 1 << (features - 1).bit_length())
    half = whole // 2
    if half < 32:
        return whole, 0
    rest = max(16, 1 << (features - half - 1).bit_length())
    return (half, rest) if half + rest < whole else (whole, 0)


def _along(shape: tuple[int, ...] | None) -> tuple[bool, bool] | None:
    return None if shape is None else (shape[-2] != 1, shape[-1] != 1)


def _wide(strides: Iterable[tuple[int, ...]], rows: int, columns: int) -> bool:
    """Return whether an offset into these rows and columns may exceed 32 bits in any array."""
    return any(rows * own[-2] + columns * own[-1] >= 1 << 31 for own in strides)
