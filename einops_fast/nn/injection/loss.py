"""The loss of causal language models in transformers, which takes the function from an attribute of the model."""

from __future__ import annotations

import re
import sys
from typing import Any, Literal

import torch
from torch import Tensor, nn

from einops_fast import ops
from einops_fast.nn.injection.native_code import unchanged
from einops_fast.nn.injection.replacement import ALREADY


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The loss of causal language models in transformers, without making the logits float32.

    The arguments are those of transformers' function; ``options`` are ignored, as there.
    """
    if (native := _foreign_loss()) is not None:
        given = {"num_items_in_batch": num_items_in_batch, "ignore_index": ignore_index, "shift_labels": shift_labels}
        found: Tensor = native(logits=logits, labels=labels, vocab_size=vocab_size, **given, **options)
        return found
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    reduction: Literal["mean", "sum"] = "mean" if num_items_in_batch is None else "sum"
    # Autocast asks for a result in float32.
    half = logits.dtype in (torch.float16, torch.bfloat16)
    with torch.autocast(logits.device.type, dtype=logits.dtype if half else None, enabled=half):
        loss: Tensor = ops.cross_entropy(
            logits.reshape(-1, vocab_size), shift_labels.reshape(-1).to(logits.device), None, ignore_index, reduction
        )
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)


def _foreign_loss() -> Any:
    """The function that transformers calls for these models, if it isn't its own; otherwise ``None``."""
    losses: Any = sys.modules.get("transformers.loss.loss_utils")
    if losses is None:
        return None
    function = losses.LOSS_MAPPING["ForCausalLM"]
    return None if function is losses.ForCausalLMLoss and unchanged(function) else function


def loss_kind(model: nn.Module) -> str | None:
    """The name of the loss of a model of transformers; ``None`` if it makes none."""
    kind = type(model)
    if not isinstance(getattr(kind, "loss_function", None), property) or not _MAKES_A_LOSS.search(kind.__name__):
        return None
    own = getattr(model, "_loss_function", None)
    if own is None or own is causal_lm_loss:
        return f"{getattr(model, 'loss_type', None) or 'ForCausalLM'}Loss"
    return str(getattr(own, "__name__", type(own).__name__))


def put_loss(model: nn.Module) -> str | None:
    """Replace the loss of a model that has one, or say why not."""
    own = getattr(model, "_loss_function", None)
    if own is causal_lm_loss:
        return ALREADY
    if own is not None:
        return "somebody has set it"
    # That of causal language models is also the one for want of another.
    causal = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    if not causal or getattr(model, "loss_type", None) not in (None, "ForCausalLM"):
        return "it isn't that of a causal language model"
    if _foreign_loss() is not None:
        return "the function of these models isn't transformers' own"
    model.__dict__["_loss_function"] = causal_lm_loss
    return None


def take_back_loss(model: nn.Module) -> bool:
    """Undo it; whether there was anything to undo."""
    if model.__dict__.get("_loss_function") is not causal_lm_loss:
        return False
    del model.__dict__["_loss_function"]
    return True


_MAKES_A_LOSS = re.compile("For[A-Z]|Head(s)?Model$")
