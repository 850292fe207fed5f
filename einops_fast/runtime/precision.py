"""How float32 numbers may be multiplied on a GPU beyond what the framework's own setting allows."""

from __future__ import annotations

from contextvars import ContextVar
from typing import get_args

from einops_fast.annotations import Precision
from einops_fast.errors import EinsumError
from einops_fast.runtime.blocks import Setting, holding

PRECISIONS: tuple[str, ...] = get_args(Precision)
"""What :func:`allow_precision` takes."""

_allowed: ContextVar[str | None] = ContextVar("einops_fast_precision", default=None)

#: What is allowed now; ``None`` where nothing was set.
allowed = _allowed.get


def allow_precision(precision: Precision) -> Setting:
    """Let tensor cores multiply float32 numbers, whatever the framework's setting is.

    It allows, and doesn't oblige: what is as exact and faster may still run, and a framework that is set to TF32 itself
    keeps to that. It holds for einsum on NVIDIA GPUs; elsewhere nothing changes.

    A call alone holds from then on; ``with allow_precision(...):`` holds in the block, and a function that is decorated
    with it has it in its calls. Blocks nest, and each thread and each asyncio task has its own, as with
    ``torch.set_grad_enabled``. Gradients are computed as their forward call was.

    In a function that torch.compile compiles, a block holds for what our operator contracts in it, and for the
    gradients of that, as a constant. One around the call of such a function holds for what is outside of all its
    blocks, but not for gradients, which are computed later.

    Args:
        precision: ``'tf32'``: factors are rounded to 10 bits after the point, as with
            ``torch.backends.cuda.matmul.allow_tf32``; results are off by about 1e-3. ``'tf32x3'``: each factor is
            the sum of two such numbers, and three of their four products are added up, about as exactly as in float32
            (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
            theoretical peak performance", 2022).

    Raises:
        EinsumError: there is no such precision.

    Example:
        >>> import einops_fast
        >>> from einops_fast.runtime.precision import allowed
        >>> with einops_fast.allow_precision('tf32x3'):
        ...     allowed()
        'tf32x3'
    """
    check_precision(precision)
    return holding(_allowed, precision, "precision")


def check_precision(precision: str) -> None:
    """Raise EinsumError unless there is such a precision."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise EinsumError(f"precision is one of {' and '.join(map(repr, PRECISIONS))}, not {precision!r}")


def settled(setting: str) -> str:
    """The precision of a call, from that of the framework: what it allows itself, else what the block does."""
    return setting if setting == "tf32" else _allowed.get() or setting
