"""Words for one thing: an error for an argument that a function doesn't have names the one that it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from einops_fast.errors import OperandError

__all__ = ["closest", "names_of", "no_argument", "tell_names"]

_SYNONYMS = (
    "causal is_causal",
    "mask attn_mask attention_mask",
    "bias attn_bias",
    "dropout_p p dropout attn_pdrop attention_probs_dropout_prob attn_dropout attention_dropout dropout_rate",
    "embed_dim embed_dimension hidden_size d_model n_embd",
    "num_heads num_attention_heads nhead n_head heads",
    "num_kv_heads num_key_value_heads",
    "normalized_shape hidden_size",
    "kv_dim kdim vdim",
    "dim axis",
    "eps epsilon layer_norm_epsilon variance_epsilon",
    "input x",
    "input logits",
    "target labels",
    "weight gamma",
    "bias beta",
    "approximate approx",
    "scale scaling softmax_scale sm_scale",
    "softcap logits_soft_cap logit_cap",
    "window window_size sliding_window",
    "sinks s_aux",
    "return_lse return_softmax_lse return_attn_probs",
    "cu_seqlens_kv cu_seqlens_k",
    "max_seqlen_kv max_seqlen_k",
    "block_table page_table",
    "layout tensor_layout input_layout qkv_format",
    "optimize optimise path",
    "operands tensors",
)
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
    """Return the error for arguments by name that a function or class doesn't have, which is about the first.

    Args:
        called: the function or class.
        given: those arguments.
        why: what else to say of the first.
        more: what ``called`` takes beside the names in its signature.

    >>> from einops_fast import attention
    >>> print(no_argument(attention, {'is_causal': True}))
    attention() has no 'is_causal'; it is causal=True
    """
    known = [*names_of(called), *more]
    name, value = next(iter(given.items()))
    meant = _meant(name, known)
    shown = repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."
    told = closest(name, known) if meant is None else f"; it is {meant}={shown}"
    told = told or f"; it has {', '.join(known)}"
    return OperandError(f"{called.__name__}() has no {name!r}{why}{told}")


def tell_names(kind: type) -> None:
    """Have a class raise :func:`no_argument` for names that its ``__init__`` doesn't take."""
    init: Any = kind.__init__  # type: ignore[misc]

    @wraps(init)
    def told(*arguments: Any, **options: Any) -> None:
        try:
            init(*arguments, **options)
        except TypeError:
            known = names_of(kind)
            any_name = Parameter.VAR_KEYWORD in [each.kind for each in signature(kind).parameters.values()]
            unknown = {
                name: value
                for name, value in options.items()
                if name not in known and not (any_name and _meant(name, known) is None)
            }
            if not unknown:
                raise
        else:
            return
        raise no_argument(kind, unknown)

    kind.__init__ = told  # type: ignore[misc]


def _meant(name: str, known: Collection[str]) -> str | None:
    groups = [names.split() for names in _SYNONYMS]
    return next((each for group in groups if name in group for each in group if each in known), None)


def names_of(called: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function or class takes by name."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return [name for name, each in signature(called).parameters.items() if each.kind in kinds]
