"""`optimize` and `restore`: replace the modules of a model by fused ones, and undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from einops_fast.errors import EinsumError
from einops_fast.nn.injection import attention, blocks, layers
from einops_fast.nn.injection.conditions import BERT_FAMILY, LLAMA_FAMILY, of_transformers
from einops_fast.nn.injection.loss import loss_kind, put_loss, take_back_loss
from einops_fast.nn.injection.native_code import foreign_code
from einops_fast.nn.injection.policy import policies
from einops_fast.nn.injection.replacement import ALREADY, Replacement, check_unchanged, put, take_back
from einops_fast.nn.injection.report import OptimizeReport, Row

_OF_TORCH: dict[type[nn.Module], type[Replacement]] = {
    **dict.fromkeys(layers.OF_TORCH, layers.Layer),
    nn.Dropout: layers.Dropout,
}

_OF_BERT: dict[str, type[Replacement]] = {
    "Intermediate": layers.BertIntermediate,
    "Output": layers.BertOutput,
    "SelfAttention": attention.BertAttention,
    "SelfOutput": layers.BertOutput,
}
_OF_GPT: dict[str, type[Replacement]] = {
    "Attention": attention.GPTAttention,
    "Block": blocks.GPTBlock,
    "MLP": layers.GPTFeedForward,
}
_OF_LLAMA: dict[str, type[Replacement]] = {
    "Attention": attention.LlamaAttention,
    "MLP": layers.LlamaFeedForward,
    "RMSNorm": layers.LlamaNorm,
}

# transformers repeats the code of some models under other names.
_OF_TRANSFORMERS = {
    family + part: replacement
    for families, parts in ((BERT_FAMILY, _OF_BERT), (("GPT2",), _OF_GPT), (LLAMA_FAMILY, _OF_LLAMA))
    for family in families
    for part, replacement in parts.items()
} | {
    "BloomAttention": attention.BloomAttention,
    "GPTJAttention": attention.GPTJAttention,
    "GPTNeoSelfAttention": attention.GPTNeoAttention,
    "MT5Attention": attention.T5Attention,
    "MT5LayerNorm": layers.LlamaNorm,
    "T5Attention": attention.T5Attention,
    "T5LayerNorm": layers.LlamaNorm,
}


def optimize(
    model: nn.Module, only: str | Sequence[str] | None = None, exclude: str | Sequence[str] | None = None
) -> OptimizeReport:
    """Let the modules of a model do their work by :func:`einops_fast.attention` and :mod:`einops_fast.ops`, in place.

    It knows torch's ``LayerNorm``, ``RMSNorm``, ``Dropout``, ``Softmax``, ``LogSoftmax`` and ``CrossEntropyLoss``, and
    of transformers' BERT, GPT-2 and Llama (and of models with the same code: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA,
    ERNIE; Mistral, Qwen2) the attention, the feed-forward layers, what adds and normalises behind them (not Llama's),
    of GPT-J, GPT-Neo, BLOOM and T5 (and MT5) the attention of a sequence to itself, of T5 the norm, and the loss of
    causal language models. Modules stay the objects that they are, with their parameters, their state
    and their hooks: only their class changes, to one derived from it. A call that a fused module doesn't take
    (``output_attentions=True``, hooks where it would have to look past them, …) goes to the class's own ``forward``.

    Args:
        model: any module.
        only: names of modules (with all that is in them), names of classes, or patterns of either (``'*.attn'``,
            ``'*Norm'``): no others are replaced. A model's loss is called ``loss_function``.
        exclude: those that aren't replaced.

    Returns:
        What was replaced and what wasn't, with reasons; print it for a table. To optimise again does nothing more.

    Raises:
        EinsumError: a name or a pattern fits no module, or isn't text; or ``model`` is no module.

    Example:
        >>> import torch
        >>> from einops_fast import nn
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))
        >>> report = nn.optimize(model, exclude='2')
        >>> [(row.name, row.now, row.reason) for row in report.rows[2:]]
        [('1', 'ops.layer_norm', ''), ('2', '', 'excluded')]
        >>> nn.restore(model)
        1
    """
    modules = dict(_checked(model).named_modules())
    kinds = {name: (type(module).__name__,) for name, module in modules.items()}
    losses = {name: kind for name, module in modules.items() if (kind := loss_kind(module)) is not None}
    of_losses = {_loss_of(name): (kind, *kinds[name]) for name, kind in losses.items()}
    unwanted = _selected({**kinds, **of_losses}, only, exclude)
    # A block asks whether its parts were replaced: they come first.
    reasons = {name: unwanted.get(name) or _put(modules[name]) for name in reversed(modules)}
    attention.show_hooks_around(modules.values())
    rows = []
    for name, module in modules.items():
        reason = reasons[name]
        if reason == _UNKNOWN and name and isinstance(modules.get(name.rpartition(".")[0]), Replacement):
            reason = "part of what is replaced"
        now = module.does if isinstance(module, Replacement) and not reason else ""
        rows.append(Row(name, *kinds[name], now, reason or ""))
        if name in losses:
            loss = _loss_of(name)
            reason = unwanted.get(loss) or put_loss(module)
            rows.append(Row(loss, losses[name], "" if reason else "ops.cross_entropy", reason or ""))
    return OptimizeReport(tuple(rows))


def restore(model: nn.Module) -> int:
    """Undo :func:`optimize`: every module is again of the class that it was of.

    Returns:
        How many were replaced.

    Raises:
        EinsumError: something else has changed a module's class since, or that class's ``forward``; nothing is undone.
    """
    modules = dict(_checked(model).named_modules())
    for name, module in modules.items():  # before anything is undone
        check_unchanged(module, name)
    return sum(take_back(module) + take_back_loss(module) for module in modules.values())


def _checked(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise EinsumError(f"model is a module of torch, not of type {type(model).__name__}")
    return model


def _selected(
    kinds: Mapping[str, tuple[str, ...]], only: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> dict[str, str]:
    """Of the modules that are not meant, by name, why not."""
    wanted = None if only is None else _matched(kinds, only, "only")
    unwanted = set() if exclude is None else _matched(kinds, exclude, "exclude")
    found = {name: "not among `only`" for name in kinds if wanted is not None and name not in wanted}
    return {**found, **dict.fromkeys(unwanted, "excluded")}


def _matched(kinds: Mapping[str, tuple[str, ...]], patterns: str | Sequence[str], argument: str) -> set[str]:
    found: set[str] = set()
    given: list[Any] = list(patterns) if isinstance(patterns, (list, tuple, set, frozenset)) else [patterns]
    for pattern in given:
        if not isinstance(pattern, str):
            raise EinsumError(f"{argument} takes names of modules and of classes, as text, not {pattern!r}")
        here = {name for name, classes in kinds.items() if _fits(pattern, name, classes)}
        if not here:
            raise EinsumError(f"{argument}: {pattern!r} fits no module, neither by its name nor by its class")
        found |= here
    return found


def _fits(pattern: str, name: str, classes: tuple[str, ...]) -> bool:
    """By its class, by its name, or by that of a module around it."""
    steps = name.split(".")
    around = [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
    return any(fnmatchcase(each, pattern) for each in (*classes, *around))


def _loss_of(name: str) -> str:
    """What the loss of a module is called."""
    return f"{name}.loss_function" if name else "loss_function"


_UNKNOWN = "there is nothing in its place"


def _put(module: nn.Module) -> str | None:
    """Replace a module, or say why not."""
    if isinstance(module, Replacement):
        return ALREADY
    kind = type(module)
    replacement = policies.get(kind) or _OF_TORCH.get(kind) or _OF_TRANSFORMERS.get(kind.__name__)
    if replacement is None:
        return _UNKNOWN
    if kind not in policies and kind not in _OF_TORCH and not of_transformers(kind):
        return "not transformers' class of this name"
    own = "forward" in module.__dict__
    reason = "it has a forward of its own" if own else foreign_code(kind) or replacement.unfit(module)
    if reason is None:
        put(replacement, module)
    return reason
