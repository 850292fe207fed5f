"""One vocabulary: arguments have one name, are taken by the other spellings of it, and errors name the right one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from einops_fast.errors import OperandError

_SYNONYMS = """
causal is_causal | mask attn_mask attention_mask | attn_mask attn_bias bias! | bias attn_bias | bias beta | weight gamma
| scale scaling softmax_scale | p dropout_p dropout dropout_rate attn_pdrop attention_probs_dropout_prob attn_dropout
attention_dropout | embed_dim embed_dimension hidden_size d_model n_embd | normalized_shape hidden_size
| kv_dim kdim! vdim! | num_heads num_attention_heads nhead n_head heads
| num_kv_heads num_key_value_heads | dim axis | input x logits | eps epsilon layer_norm_epsilon variance_epsilon
layer_norm_eps rms_norm_eps norm_eps | target labels | softcap logits_soft_cap logit_cap | sinks s_aux
| window window_size sliding_window! | return_lse return_softmax_lse! return_attn_probs! | cu_seqlens_kv cu_seqlens_k
| max_seqlen_kv max_seqlen_k | block_table page_table | layout tensor_layout! input_layout! | optimize optimise path
| dtype preferred_element_type
"""
"""Names that torch, transformers, FlashAttention, JAX and we have for the same argument; of ``!`` values differ."""


def closest(word: Any, known: Collection[str]) -> str:
    """Return ``'; did you mean …?'`` for a word that is like a known one, else nothing.

    >>> closest('exlpain', ['explain', 'run']), closest('x', ['explain'])
    ("; did you mean 'explain'?", '')
    """
    from difflib import get_close_matches  # which no program needs that has no mistake

    like = get_close_matches(str(word), known, 1)
    return f"; did you mean {like[0]!r}?" if like else ""


def respelled(
    called: Callable[..., Any], unknown: Mapping[str, Any], given: Mapping[str, Any], more: Collection[str] = ()
) -> Any:
    """Call a function again, with its own names for ``unknown``.

    Args:
        called: the function, which has its own name for each of its arguments.
        unknown: the arguments beside those of its signature.
        given: its local variables.
        more: names that it takes beside those of its signature.

    Raises:
        OperandError: it has no such argument, or was given it by its own name, too.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> ops.softmax(np.zeros((1, 2)), axis=-1).tolist()
        [[0.5, 0.5]]
    """
    parameters = _parameters(called)
    options = {name: given[name] for name in names_of(called)}
    told = {name for name, value in options.items() if value is not parameters[name].default}
    found = renamed(called, unknown, [*options, *more], told)
    first = [given[each.name] for each in parameters.values() if each.kind is Parameter.VAR_POSITIONAL]
    return called(*(first[0] if first else ()), **{**options, **found})


def renamed(
    called: Callable[..., Any], given: Mapping[str, Any], known: Collection[str], told: Collection[str] = (),
    others: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return arguments by the names that are ``known``, whichever of their spellings they were given by.

    Args:
        called: the function or class that was called.
        given: its arguments by name.
        known: the names that it has.
        told: those of them that it has a value for already.
        others: whether it may have more: names that aren't spellings of one that is known are left as they are.

    Raises:
        OperandError: there is no such argument, or it was given by two names.
    """
    found, spelled = dict.fromkeys(told), dict.fromkeys(told, "")
    for name, value in given.items():
        meant = name if name in known else _meant(name, value, known)
        if meant is None and others:
            meant = name
        elif meant is None or meant.endswith("!"):
            raise no_argument(called, name, value, known)
        if meant in found:
            other = spelled[meant] or meant
            raise OperandError(f"{called.__name__}() was given {other!r} and {name!r}, which are one: give {meant!r}")
        found[meant], spelled[meant] = _VALUES.get(name, lambda value: value)(value), name
    return {name: value for name, value in found.items() if name not in told}


def no_argument(
    called: Callable[..., Any], name: str, value: Any, known: Collection[str], why: str = ""
) -> OperandError:
    """Return the error for an argument that a function or class doesn't have, which names the one that it has.

    >>> from einops_fast import attention
    >>> print(no_argument(attention, 'sliding_window', 8, ['window']))
    attention() has no 'sliding_window'; it is window, with values of its own
    """
    meant = _meant(name, value, known)
    if meant is None:
        told = closest(name, known) or f"; it has {', '.join(dict.fromkeys(known))}"
    else:
        shown = repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."
        told = f"; it is {meant}={shown}" if meant[-1] != "!" else f"; it is {meant[:-1]}, with values of its own"
    return OperandError(f"{called.__name__}() has no {name!r}{why}{told}")


def respell(kind: type) -> None:
    """Have a class take the arguments of its ``__init__`` by their other spellings, too."""
    init: Any = kind.__init__  # type: ignore[misc]
    known = names_of(kind)
    any_name = Parameter.VAR_KEYWORD in [each.kind for each in _parameters(kind).values()]

    @wraps(init)
    def spelled(module: Any, *arguments: Any, **options: Any) -> None:
        if not options.keys() <= {*known}:
            options = renamed(kind, options, known, known[: len(arguments)], others=any_name)
        init(module, *arguments, **options)

    kind.__init__ = spelled  # type: ignore[misc]


def names_of(called: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function or class takes by name."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return [name for name, each in _parameters(called).items() if each.kind in kinds]


def _parameters(called: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(called).parameters


def _meant(name: str, value: Any, known: Collection[str]) -> str | None:
    """Return the known name of the argument that ``name`` is a spelling of, with ``!`` if its values may differ."""
    if name in ("attn_mask", "attention_mask") and {"mask", "bias"} <= {*known} and _is_added(value):
        return "bias"
    for names in _SYNONYMS.split("|"):
        group = [each.rstrip("!") for each in names.split()]
        found = next((each for each in group if each in known), None) if name in group else None
        if found is not None:
            return found + "!" * (f"{name}!" in names.split())
    return None


def _is_added(mask: Any) -> bool:
    return any(kind in str(getattr(mask, "dtype", "")) for kind in ("float", "complex"))


def _sides(window: Any) -> Any:
    """Return how many keys a window has before and after a query, as we say it, from FlashAttention's -1 for all."""
    return tuple([None if side == -1 else side for side in window]) if isinstance(window, tuple | list) else window


_VALUES: dict[str, Callable[[Any], Any]] = {"window_size": _sides}
