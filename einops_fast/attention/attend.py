"""`attention`: from a call to a cached plan, an implementation, and its result in the order that was asked for."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from einops_fast.annotations import Alignment, ArrayT, Causal, Layout
from einops_fast.attention import registry, torch_state
from einops_fast.attention.arguments import read_call
from einops_fast.attention.choice import choose, is_refusal, refusals, remember_refusal, warn_of_refusals
from einops_fast.attention.options import Options, Request
from einops_fast.attention.prepare import Plan, make_plan
from einops_fast.attention.registry import Prepared, allowed_names
from einops_fast.attention.traced import known_call, known_kinds, known_options, known_plan, may_be_known
from einops_fast.attention.words import WORDS, are_plain, by_words
from einops_fast.backends import Backend, awake_types, backend_for_type, get_backend
from einops_fast.backends.base import Likeness
from einops_fast.errors import OperandError
from einops_fast.foreign import refuse_stand_in
from einops_fast.observing import observers
from einops_fast.observing.calls import tell
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.plan_cache import (
    emptied_with_plans,
    has_room,
    keep,
    keep_for_all_shapes,
    recall,
    remember_alike,
)
from einops_fast.runtime.tracing import is_sharded, is_tracing, outside_of_graphs
from einops_fast.runtime.tuning import current_mode
from einops_fast.vocabulary import respelled

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from einops_fast.annotations import AttentionOptions


@overload
def attention(
    *operands: str | ArrayT, return_lse: Literal[False] = False, **options: Unpack[AttentionOptions]
) -> ArrayT: ...
@overload
def attention(
    *operands: str | ArrayT, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(*operands: str | ArrayT, return_lse: bool, **options: Unpack[AttentionOptions]) -> Any: ...
@by_words
def attention(
    *operands: Any,
    layout: Layout | None = None,
    causal: Causal = False,
    window: int | tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: float = 0.0,
    scale: float | None = None,
    dropout_p: float = 0.0,
    sinks: Any = None,
    segment_ids: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_kv: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    cache_seqlens: Any = None,
    block_table: Any = None,
    alignment: Alignment | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    sequence: tuple[str, str] | None = None,
    **unknown: NoReturn,
) -> Any:
    """Attention on arrays in any axis order: ``softmax(scale * q k^T + bias) v``, by the fastest way there is.

    Call it as ``attention(pattern, q, k, v)``, or without a pattern as ``attention(q, k, v, layout='bshd')`` or
    ``attention(qkv, layout='bs3hd')``. A pattern names the axes of q, k, v and of the result, in letters or words;
    :mod:`einops_fast.attention.pattern` says what it makes of them. Nothing is copied to change a layout.

    Further arrays are given as ``('axes', array)`` with axis names of the pattern, or alone: then their axes are the
    last ones of the batch axes, in the order of the result, the queries and the keys; those of ``segment_ids`` are
    the first batch axes and the positions. Any axis may have size 1.

    Args:
        operands: a pattern, q, k and v. Axes of heads may differ between q and k where one divides the other: query
            head ``x`` of ``r * g`` uses key head ``x // r`` of ``g``.
        layout: the axes of q, k, v and the result instead of a pattern: letters ``b``, ``h``, ``s`` (or ``t`` for
            packed sequences), ``d``, and ``3`` where one array holds q, k and v. The heads of q may be a multiple.
        causal: hide keys after the query: ``True`` or ``'top_left'`` where the first query faces the first key,
            ``'bottom_right'`` where the last faces the last.
        window: how many keys are seen before and after the one that a query faces: two numbers, or one for both;
            ``None`` for all.
        mask: boolean, True where a query may see a key; or torch's ``CausalBias``, which is made into a mask:
            ``causal`` needs none.
        bias: added to the scores; it has a gradient.
        alibi_slopes: per head (batch axes), the slope of a bias that falls with the distance.
        softcap: scores become ``softcap * tanh(score / softcap)``, before bias and mask; 0 or infinity for not.
        scale: of the products of q and k; ``head_dim ** -0.5`` if ``None``. It has no gradient.
        dropout_p: probability of dropping a weight.
        sinks: per head (batch axes), a logit that takes part in the softmax, for a value of zeros.
        segment_ids: integers; a query sees the keys of its own segment. Two of them, for queries and keys, in a tuple
            if they differ.
        cu_seqlens_q, cu_seqlens_kv: where packed sequences begin, and the end of the last: (sequences + 1,). Those of
            the keys are the same if left out. A leading batch axis counts sequences in further arrays.
        max_seqlen_q, max_seqlen_kv: the longest sequences, if known: else they are looked up, which waits for a GPU.
        cache_seqlens: per sequence (first batch axis), how many keys there are: (n,); at most as many as there are
            places. The last query faces the last.
        block_table: per sequence, the pages that hold its keys: (n, pages). k and v then have an axis of pages, called
            ``page`` say, in place of the batch axis.
        alignment: which query faces which key, for ``window`` and ``alibi_slopes``, as for ``causal``.
        return_lse: also return the log of the denominator, in the order of the result without features, in float32 or,
            of float64, in float64.
            It has a gradient.
        deterministic: gradients have the same bits on every run; also where torch's own setting says so.
        sequence: names of the axes of the queries and the keys, where the pattern leaves that open.

    Returns:
        The result, and with ``return_lse`` a pair. A query without any key gets zeros, and a log of ``-inf``.

    Raises:
        SubscriptsError: the pattern is malformed, or it isn't clear what an axis is.
        ShapeError: sizes don't fit.
        OperandError: arrays don't belong together, or no allowed implementation can do it.
        EinsumError: base of these; an option is wrong.

    Example:
        >>> import numpy as np
        >>> from einops_fast import attention
        >>> q, k = np.ones((2, 5, 8, 16)), np.ones((2, 7, 4, 16))
        >>> attention('b i h d, b j g d, b j g e -> b i h e', q, k, k, causal=True).shape
        (2, 5, 8, 16)
    """
    words: Hashable = unknown.pop(WORDS, None)
    if unknown:
        return respelled(_careful if is_tracing() else attention, unknown, locals())
    options = Options(causal, alignment, window, softcap, scale, dropout_p, return_lse, deterministic)
    if not (segment_ids is cu_seqlens_q is cu_seqlens_kv is max_seqlen_q is max_seqlen_kv is None
            and are_plain(sequence, *options)):  # fmt: skip
        words = None
    rest = {
        "bias": bias, "mask": mask, "alibi_slopes": alibi_slopes, "sinks": sinks, "segment_ids": segment_ids,
        "cache_seqlens": cache_seqlens, "block_table": block_table, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_kv": cu_seqlens_kv, "max_seqlen_q": max_seqlen_q, "max_seqlen_kv": max_seqlen_kv,
    }  # fmt: skip
    return attend(*read_call(operands, layout, sequence, options, rest), words)


# torch.compile can't follow how a signature is found beneath a decorator.
_careful = vars(attention)["_torchdynamo_inline"]


def attend(request: Request, arrays: dict[str, Any], words: Hashable = None) -> Any:
    """Return the result of a call that was read, and keep what computes it by ``words``, all of it but the arrays."""
    if is_tracing():
        if _is_nested(arrays):
            return _attend_nested(request, arrays)
        if is_sharded(arrays["q"]):
            return outside_of_graphs(attend, request, arrays)
        return attend_traced(request, arrays)
    q, given = arrays["q"], (*arrays.values(),)
    backend = awake_types.get(type(q)) or backend_for_type(type(q))
    if backend is not None and backend.attend is not None:
        return backend.attend(request, arrays)
    circumstances = allowed_names(), current_mode(), registry.generation
    question: Hashable = None
    if backend is not None and backend.name == "torch":
        if torch_state.is_strict() and (mesh := torch_state.mesh_of_block()) is not None:
            from einops_fast.backends.torch.sharding.block import attend_in_block

            return attend_in_block(mesh, request, arrays)
        if not request.options.deterministic and torch_state.deterministic():
            request = _deterministic(request)
        question = request, circumstances
        try:
            run = recall(question, given)
        except (AttributeError, TypeError):  # one is no array, or an option can't be hashed, as a window that is a list
            run = question = None
        if run is not None:
            return run(*given)
        if _is_nested(arrays):
            return _attend_nested(request, arrays)
        torch_state.refuse_layouts(arrays)
        if autocasts(q):
            torch_state.autocast(arrays)
            if any(array is not own for array, own in zip(arrays.values(), given, strict=True)):
                question, given = None, (*arrays.values(),)
    if backend is None or any(type(array) not in awake_types for array in given):
        backend, arrays = own_call(arrays)
        given = (*arrays.values(),)
    kept = None
    try:
        key: Hashable = request, circumstances, backend.signature(given)
        kept = _calls.get(key)
    except (AttributeError, TypeError):  # other arrays, or an option that can't be hashed
        key = None
    if kept is not None:
        prepared, like = kept
        if like is not None and question is not None and has_room(question, given) and not like(given):
            like = backend.likeness(given, kernels=True)  # where one tensor comes twice, say
        result = prepared.run(*given)
    else:
        backend, arrays = own_call(arrays)
        given = (*arrays.values(),)
        if observers.observed():
            _tell(request, backend, arrays)
        if backend.is_recording(given):
            return _recorded(request, arrays, backend)
        prepared, final, result = _first(plan_of(request, arrays, backend.name), given, circumstances[1])
        if key is None or not final:
            return result
        like = backend.likeness(given, kernels=True)
        keep(_calls, key, (prepared, like))
    if question is not None and like is not None:
        remember_alike(question, like, prepared.run, given)
        if words is not None:
            alike = None
            if prepared.of_any_length is not None and not observers.observed():  # an observer sees each plan
                alike = prepared.of_any_length(request.options.scale is not None)  # a scale holds for one width
            if alike is not None and alike(given):
                keep_for_all_shapes(words, alike, prepared.run)
            else:
                remember_alike(words, like, prepared.run, given)
    return result


def _tell(request: Request, backend: Backend, arrays: Mapping[str, Any]) -> None:
    options = {**request._asdict(), "options": request.options._asdict(), "names": [*arrays]}
    tell("attention", options.pop("pattern"), backend, [*arrays.values()], options)


def _deterministic(request: Request) -> Request:
    return request._replace(options=request.options._replace(deterministic=True))


def _is_nested(arrays: Mapping[str, Any]) -> bool:
    return any(getattr(arrays[name], "is_nested", False) is True for name in ("q", "k", "v"))


def _attend_nested(request: Request, arrays: Mapping[str, Any]) -> Any:
    from einops_fast.backends.torch.attention.implementations.nested import attend_nested

    return attend_nested(request, arrays)


def own_call(arrays: Mapping[str, Any]) -> tuple[Backend, dict[str, Any]]:
    """Return the backend that all arrays belong to, and the arrays: lists become NumPy's, and autocast has its way."""
    known = [(name, found) for name, array in arrays.items() if (found := backend_for_type(type(array))) is not None]
    for name, other in known:
        if other is not known[0][1]:
            raise OperandError(
                f"{known[0][0]} and {name} are of two frameworks, {known[0][1].name} and {other.name}; "
                "convert one of them first"
            )
    backend = known[0][1] if known else get_backend("numpy")
    strange = arrays.keys() - {name for name, _ in known}
    if strange and backend.name != "numpy":
        name = next(name for name in arrays if name in strange)
        refuse_stand_in(arrays[name], name)
        kind = type(arrays[name]).__name__
        raise OperandError(f"{name} is of type {kind}, not an array of {backend.name} as others are")
    result = {name: backend.convert(array, name) if name in strange else array for name, array in arrays.items()}
    if backend.name == "torch":
        torch_state.autocast(result)
    return backend, result


def _first(plan: Plan, arrays: tuple[Any, ...], mode: str) -> tuple[Prepared, bool, Any]:
    """Choose; return what does the call, whether that holds for later ones like it, and the result."""
    spec = plan.spec
    refusal: RuntimeError | None = None
    while True:
        try:
            decision = choose(plan, mode, arrays)
        except OperandError:
            if refusal is None:
                raise
            refusals.pop(spec, None)
            raise refusal from None  # nobody else may or can: the library's own words say why
        way = decision.implementation
        if decision.undecided is not None:
            from einops_fast.backends.torch.attention.beginning import first_calls

            prepared = Prepared(first_calls(plan, decision.undecided, arrays))
        else:
            prepared = way.prepared(plan, arrays)
        try:
            result = prepared.run(*arrays)
        except RuntimeError as error:
            if not (way.may_refuse and is_refusal(error)):
                raise
            refusal = refusal or error
            remember_refusal(spec, way.name, error)
            continue
        if refusal is not None:
            warn_of_refusals(spec, way.name)
        return prepared, decision.final or decision.undecided is not None, result


def _recorded(request: Request, arrays: dict[str, Any], backend: Backend) -> Any:
    """Do the call while torch records it for arrays of any sizes: nothing is remembered, and nothing measured."""
    # What follows from sizes is recorded with them; only which axes broadcast is settled.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_of(request, arrays, backend.name)
        return choose(plan, "never", recorded=True).implementation.by_views(plan).run(*arrays.values())


_calls: dict[Hashable, tuple[Prepared, Likeness | None]] = emptied_with_plans({})


def attend_traced(request: Request, arrays: dict[str, Any]) -> Any:
    """Do the call while torch.compile traces it: nothing is remembered, and nothing measured."""
    torch_state.autocast(arrays)
    if torch_state.deterministic():
        request = _deterministic(request)
    constants = known_options(request.sequence, request.options, request.longest) if may_be_known() else None
    kinds = None if constants is None else known_kinds(arrays)
    if constants is not None and kinds is not None:
        state = torch_state.derivatives(arrays)
        known = known_plan(request.pattern, request.patterns, constants, kinds, state, registry.generation)
        if known is not None:
            return known_call(known, arrays)
    plan = plan_of(request, arrays, "torch")
    return choose(plan, "never", quiet=True).implementation.by_views(plan).run(*arrays.values())


def plan_of(request: Request, arrays: Mapping[str, Any], framework: str) -> Plan:
    """Make the plan of a call."""
    state: dict[str, Any] = {}
    if framework == "torch":
        state = torch_state.derivatives(arrays)
    elif framework == "mxnet":
        if get_backend(framework).any_size():
            raise OperandError(
                "attention has a plan for these sizes only, and MXNet traces the call for arrays of any size: call it "
                "outside of the hybridized block, or write the block with fast_einsum and ops.softmax"
            )
        recording = bool(import_module("mxnet.autograd").is_recording())
        state = {"gradients": recording, "bias_gradient": recording and "bias" in arrays}
    return make_plan(request, arrays, framework, state)
