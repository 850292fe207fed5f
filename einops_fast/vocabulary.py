"""Words for one thing: an error for an argument that a function doesn't have names the one that it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from einops_fast.errors import OperandError

_SYNONYMS = """
causal is_causal | mask attn_mask attention_mask | bias attn_bias beta | weight gamma | scale scaling softmax_scale
| dropout_p p dropout attn_pdrop attention_probs_dropout_prob attn_dropout attention_dropout dropout_rate
| embed_dim embed_dimension hidden_size d_model n_embd | normalized_shape hidden_size | kv_dim kdim vdim
| num_heads num_attention_heads nhead n_head heads | num_kv_heads num_key_value_heads | dim axis | input x logits
| eps epsilon layer_norm_epsilon variance_epsilon | target labels | softcap logits_soft_cap logit_cap | sinks s_aux
| window window_size sliding_window | return_lse return_softmax_lse return_attn_probs | cu_seqlens_kv cu_seqlens_k
| max_seqlen_kv max_seqlen_k | block_table page_table | layout tensor_layout input_layout | optimize optimise path
"""
"""Names that torch, transformers, FlashAttention, JAX and we have for the same argument."""


def closest(word: Any, known: Collection[str]) -> str:
    """Return ``'; did you mean …?'`` for a word that is like a known one, else nothing.

    >>> closest('exlpain', ['explain', 'run']), closest('x', ['explain'])
    ("; did you mean 'explain'?", '')
    """
    from difflib import get_close_matches  # which no program needs that has no mistake

    like = get_close_matches(str(word), known, 1)
    return f"; did you mean {like[0]!r}?" if like else ""


def no_argument(
    called: Callable[..., Any], given: Mapping[str, Any], why: str = "", more: Collection[str] = ()
) -> OperandError:
    """Return the error for arguments that a function or class doesn't have; ``more`` are those beside its signature.

    >>> from einops_fast import attention
    >>> print(no_argument(attention, {'is_causal': True}))
    attention() has no 'is_causal'; it is causal=True
    """
    known = [*names_of(called), *more]
    name, value = next(iter(given.items()))
    meant = _meant(name, known)
    shown = repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."
    told = closest(name, known) if meant is None else f"; it is {meant}={shown}"
    return OperandError(f"{called.__name__}() has no {name!r}{why}{told or f'; it has {_listed(known)}'}")


def check_names(called: Callable[..., Any], given: Mapping[str, Any], known: Collection[str] | None = None) -> None:
    """Raise :func:`no_argument` for the first name that isn't known, by default that ``called`` doesn't take."""
    known = names_of(called) if known is None else known
    unknown = {name: value for name, value in given.items() if name not in known}
    if unknown:
        raise no_argument(called, unknown, more=known)


def tell_names(kind: type) -> None:
    """Have a class raise :func:`no_argument` for names that its ``__init__`` doesn't take."""
    init: Any = kind.__init__  # type: ignore[misc]

    @wraps(init)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            return init(*arguments, **options)  # type: ignore[no-any-return]
        except TypeError:
            known = names_of(kind)
            any_name = Parameter.VAR_KEYWORD in [each.kind for each in signature(kind).parameters.values()]
            unknown = {name: options[name] for name in options if name not in known}
            if not unknown or (any_name and not any(_meant(name, known) for name in unknown)):
                raise
        raise no_argument(kind, dict(sorted(unknown.items(), key=lambda item: not _meant(item[0], known))))

    kind.__init__ = told  # type: ignore[misc]


def names_of(called: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function or class takes by name."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return [name for name, each in signature(called).parameters.items() if each.kind in kinds]


def _meant(name: str, known: Collection[str]) -> str | None:
    groups = [names.split() for names in _SYNONYMS.split("|")]
    return next((each for group in groups if name in group for each in group if each in known), None)


def _listed(names: Collection[str]) -> str:
    return ", ".join(dict.fromkeys(names))
