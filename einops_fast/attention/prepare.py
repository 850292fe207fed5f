"""From the arguments of a call to a plan: the spec, the views of all arrays, and the way back to the asked order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from einops_fast.annotations import Alignment
from einops_fast.attention.arrays import Arrays, arrays_of
from einops_fast.attention.axes import Axes, View, bind_axes
from einops_fast.attention.options import Options, Request, plain_options
from einops_fast.attention.pattern import Pattern, checked_sequence, letters_of, read_pattern
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends import get_backend
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import EinsumError, OperandError, ShapeError
from einops_fast.runtime.tracing import is_tracing

_CAPS = 1e-30, 1e30
"""A lower softcap leaves nothing of scores, a higher one all; what is computed on the way are numbers of float32's."""

INTEGERS = ("int8", "uint8", "int16", "int32", "int64")

# What each further array has to be, what it is converted to, and which axes it may have after the batch axes, of
# queries (i) and keys (j), if it has any batch axes. "scores" stands for the dtype of the scores, "wider" for that of
# the wider of both arrays of segments, whose numbers may need all their bits; int32 at least.
_KINDS: dict[str, tuple[tuple[str, ...], str | None, str | None]] = {
    "bias": (FLOATS, None, "ij"),
    "mask": (("bool",), None, "ij"),
    "alibi_slopes": (FLOATS, "scores", ""),
    "sinks": (FLOATS, "scores", ""),
    "q_segments": (INTEGERS, "wider", "i"),
    "kv_segments": (INTEGERS, "wider", "j"),
    "cu_seqlens_q": (INTEGERS, "int32", None),
    "cu_seqlens_kv": (INTEGERS, "int32", None),
    "cache_seqlens": (INTEGERS, "int32", None),
    "block_table": (INTEGERS, "int32", None),
}


@dataclass(frozen=True)
class Plan:
    """One kind of call, thought through."""

    spec: AttentionSpec  # what is computed
    # the name of each array that is there, in the order of the call, how it becomes canonical, and the dtype that
    # it is converted to, if any
    views: tuple[tuple[str, View, str | None], ...]
    on: Arrays  # what permutes and converts them
    result: View  # how the canonical result is brought back
    log: View  # the same of the log of the denominator

    def inputs(self, arrays: Iterable[Any]) -> AttentionInputs:
        found = {}
        for (name, view, dtype), array in zip(self.views, arrays, strict=True):
            found[name] = view(array if dtype is None else self.on.cast(array, dtype), self.on.permute)
        return AttentionInputs(**found)

    def answer(self, result: Any, lse: Any) -> Any:
        """Return what the caller gets."""
        result = self.result(result, self.on.permute)
        return result if lse is None else (result, self.log(lse, self.on.permute))


def make_plan(request: Request, arrays: Mapping[str, Any], framework: str, state: Mapping[str, Any]) -> Plan:
    """Check the arguments of a call and think it through."""
    options, longest, patterns = request.options, request.longest, dict(request.patterns)
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    shapes = [tuple(array.shape) for array in (q, k, v)]
    hints = tuple([each for each in (patterns.get("bias"), patterns.get("mask")) if each is not None])
    ranks = len(shapes[0]), len(shapes[1]), len(shapes[2])
    pattern = read_pattern(request.pattern, ranks, checked_sequence(request.sequence), hints, "block_table" in arrays)
    dtype = _check_types(arrays, framework)
    axes = _bind(pattern, shapes, arrays, patterns, longest)
    settings = _settings(options, axes, "cache_seqlens" in arrays)
    views = _views(axes, arrays, patterns, shapes)
    by_name = {name: view for name, view, _ in views}
    given = zip(shapes, (q, k, v), views, strict=False)
    canonical = [view.layout(shape, _strides(array, framework))[1] for shape, array, (_, view, _) in given]
    order, result = axes.result(pattern.v_head_dim)
    _, log = axes.result()
    full = (*axes.size(axes.batch), axes.sizes[axes.queries], axes.sizes[axes.keys])

    def seen(name: str) -> tuple[int, ...] | None:
        return by_name[name].layout(arrays[name].shape)[0] if name in arrays else None

    spec = AttentionSpec(
        batch=full[:-2],
        q_batch=axes.q_batch,
        k_batch=axes.k_batch,
        v_batch=axes.v_batch,
        q_len=full[-2],
        kv_len=full[-1],
        head_dim=axes.sizes[pattern.head_dim],
        v_head_dim=axes.sizes[pattern.v_head_dim],
        dtype=dtype,
        bias=seen("bias"),
        mask=seen("mask"),
        alibi="alibi_slopes" in arrays,
        sinks="sinks" in arrays,
        segments="q_segments" in arrays,
        varlen=longest is not None,
        cache="cache_seqlens" in arrays,
        page_size=shapes[1][pattern.k.index(pattern.keys)] if "block_table" in arrays else 0,
        lse=options.return_lse,
        deterministic=options.deterministic,
        order=order,
        strides=tuple(canonical),
        framework=framework,
        device=_device(q, framework),
        bias_dtype=dtype_name(arrays["bias"].dtype) if "bias" in arrays else "",
        sinks_batch=seen("sinks") or (),
        **settings,
        **state,
    )
    return Plan(spec, views, arrays_of(framework), result, log)


def _device(array: Any, framework: str) -> str:
    if framework == "torch":
        return str(array.device)
    return "cpu" if framework == "numpy" else str(get_backend(framework).target([array]).device)


def _check_types(arrays: Mapping[str, Any], framework: str) -> str:
    """Check dtypes and devices of all arrays, and return the dtype of q, k and v."""
    if framework == "torch":
        dtypes = {name: dtype_name(array.dtype) for name, array in arrays.items()}
    else:
        backend = get_backend(framework)
        dtypes = {name: backend.inspect(array).dtype for name, array in arrays.items()}
    for name in ("q", "k", "v"):
        if dtypes[name] not in FLOATS:
            raise OperandError(f"{name} has dtype {dtypes[name]}; attention takes {', '.join(FLOATS)}")
        if dtypes[name] != dtypes["q"]:
            raise OperandError(f"{name} has dtype {dtypes[name]}, but q has {dtypes['q']}")
    for name, dtype in dtypes.items():
        if name in _KINDS and dtype not in _KINDS[name][0]:
            hint = "; a mask of numbers to be added is a bias" if name == "mask" else ""
            raise OperandError(f"{name} has dtype {dtype}, not {' or '.join(_KINDS[name][0])}{hint}")
    device = getattr(arrays["q"], "device", None)
    for name, array in arrays.items():
        if getattr(array, "device", None) != device:
            raise OperandError(f"{name} is on {array.device}, but q is on {device}; move one of them first")
    return dtypes["q"]


def _bind(
    pattern: Pattern,
    shapes: list[tuple[int, ...]],
    arrays: Mapping[str, Any],
    patterns: Mapping[str, str | None],
    longest: tuple[int, int] | None,
) -> Axes:
    with_cache = "cache_seqlens" in arrays or "block_table" in arrays
    if longest is not None:
        if with_cache:
            raise EinsumError("cu_seqlens can't be used together with cache_seqlens or block_table")
        if not pattern.queries:
            raise EinsumError("with cu_seqlens, q has an axis of queries")
        for name in ("cu_seqlens_q", "cu_seqlens_kv"):
            if len(arrays[name].shape) != 1 or arrays[name].shape[0] < 1:
                raise ShapeError(f"{name} has one axis, of the sequences and one more; not {tuple(arrays[name].shape)}")
        counts = [int(arrays[name].shape[0]) - 1 for name in ("cu_seqlens_q", "cu_seqlens_kv")]
        if counts[0] != counts[1]:
            raise ShapeError(f"cu_seqlens_q says that there are {counts[0]} sequences, cu_seqlens_kv {counts[1]}")
        return bind_axes(pattern, shapes, sequences=counts[0], longest=longest)
    first, pages = None, None
    if "block_table" in arrays:
        table = tuple(arrays["block_table"].shape)
        if len(table) != 2:
            raise ShapeError(f"block_table has two axes, sequences and pages; not shape {table}")
        if "cache_seqlens" not in arrays:
            raise EinsumError("block_table needs cache_seqlens, which say how many keys each sequence has")
        pages = table[1]
    named = patterns.get("cache_seqlens")
    if named is not None:
        rank = len(arrays["cache_seqlens"].shape)
        first = letters_of(pattern.names, pattern.text, named, rank, "cache_seqlens")
    axes = bind_axes(pattern, shapes, pages=pages, first=first, with_cache=with_cache)
    for name in ("cache_seqlens", "block_table"):
        if name in arrays:
            shape = tuple(arrays[name].shape)
            size = axes.sizes[axes.batch[0]]
            if (name == "cache_seqlens" and len(shape) != 1) or shape[0] != size:
                raise ShapeError(
                    f"{name} has shape {shape}, but the first axis of the batch has size {size}; "
                    "name another one as cache_seqlens=('axis', array)"
                )
    return axes


def check_options(options: Mapping[str, Any]) -> None:
    """Check what isn't an array of the options for many calls, before there is any."""
    given = [options.get(name, usual) for name, usual in Options._field_defaults.items()]
    _check(plain_options(Options(*given)))


def _check(options: Options) -> None:
    """Raise EinsumError where an option is wrong, whatever the arrays are."""
    causal, alignment = options.causal, options.alignment
    # Arrays of several elements aren't compared: that is no truth value.
    if getattr(causal, "shape", ()) != () or causal not in (True, False, "top_left", "bottom_right"):
        raise EinsumError(f"causal is True, False, 'top_left' or 'bottom_right', not {causal!r}")
    if getattr(alignment, "shape", ()) != () or alignment not in (None, "top_left", "bottom_right"):
        raise EinsumError(f"alignment is 'top_left' or 'bottom_right', not {alignment!r}")
    if isinstance(causal, str) and alignment not in (None, causal):
        raise EinsumError(f"causal={causal!r} contradicts alignment={alignment!r}")
    if not float(options.softcap or 0.0) >= 0:
        raise EinsumError(f"softcap is a positive number, or 0 for none, not {options.softcap!r}")
    if not 0 <= options.dropout_p < 1:
        raise EinsumError(f"dropout_p is a probability below 1, not {options.dropout_p!r}")


def _settings(options: Options, axes: Axes, cache: bool) -> dict[str, Any]:
    _check(options)
    causal, alignment = options.causal, options.alignment
    if isinstance(causal, str):
        alignment, causal = causal, True
    if cache and alignment == "top_left":
        raise EinsumError("with cache_seqlens the last query faces the last key: alignment is 'bottom_right'")
    found: Alignment = alignment or ("bottom_right" if cache else "top_left")
    softcap = float(options.softcap or 0.0)
    if softcap:
        softcap = 0.0 if softcap > _CAPS[1] else max(softcap, _CAPS[0])
    scale = options.scale
    if scale is None:
        width = axes.sizes[axes.pattern.head_dim]
        if not is_tracing() and hasattr(width, "double"):  # as torch.jit.trace has it, whose powers would be float32
            width = width.double()
        scale = max(width, 1) ** -0.5
    return {
        "causal": bool(causal),
        "alignment": found,
        "window": options.window or (None, None),
        "softcap": softcap,
        "scale": scale,
        "dropout_p": float(options.dropout_p),
    }


def _views(
    axes: Axes,
    arrays: Mapping[str, Any],
    patterns: Mapping[str, str | None],
    shapes: list[tuple[int, ...]],
) -> tuple[tuple[str, View, str | None], ...]:
    pattern = axes.pattern
    kv_batch = pattern.pages + axes.batch[1:] if pattern.pages else axes.batch
    views: list[tuple[str, View, str | None]] = [
        ("q", axes.view(pattern.q, shapes[0], axes.batch + axes.queries + pattern.head_dim), None),
        ("k", axes.view(pattern.k, shapes[1], kv_batch + axes.keys + pattern.head_dim), None),
        ("v", axes.view(pattern.v, shapes[2], kv_batch + axes.keys + pattern.v_head_dim), None),
    ]
    segments = [dtype_name(arrays[name].dtype) for name in ("q_segments", "kv_segments") if name in arrays]
    found = {
        "scores": "float64" if dtype_name(arrays["q"].dtype) == "float64" else "float32",
        "wider": "int64" if "int64" in segments else "int32",
    }
    for name in [*arrays][3:]:
        _, wanted, tail = _KINDS[name]
        if wanted in found:
            wanted = found[wanted]
        view = View()
        if tail is not None:
            letters = "".join([axes.queries if axis == "i" else axes.keys for axis in tail])
            view = axes.further(name, patterns.get(name), tuple(arrays[name].shape), letters, name.endswith("segments"))
        dtype = dtype_name(arrays[name].dtype)
        views.append((name, view, wanted if wanted != dtype else None))
    return tuple(views)


def _strides(array: Any, framework: str) -> tuple[int, ...]:
    """Return the strides in elements, where they are known."""
    if framework == "mxnet":
        return ()
    found = array.stride() if framework == "torch" else get_backend(framework).inspect(array).strides
    return tuple(found)
