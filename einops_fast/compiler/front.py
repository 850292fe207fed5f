"""torch.compile with einops_fast's rewrites before its own compiler: `compile`, and what a patched one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any

from einops_fast.errors import EinsumError
from einops_fast.patching.function_body import FunctionBody


def compile(
    model: Any = None,
    *,
    then: str | Callable[..., Any] = "inductor",
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **more: Any,
) -> Any:
    """Compile a model or a function by torch, after attention in it was fused, however it is spelled.

    What is found is two contractions with a softmax between them, with scales, masks, biases, sinks, a softcap, dropout
    and heads that share keys, in any axis order; it becomes a call of :func:`einops_fast.attention` on the operands as
    they lie in memory. Cross entropies of linear layers with many logits become one operator, and chains of
    contractions are put in the cheapest order. Gradients, changing sizes and torch's own options work as without.
    ``torch.compile(model, backend='einops_fast')`` does the same where the package is installed,
    ``patch('torch.compile')`` has every ``torch.compile`` do it, and :func:`fusions` tells what was found.

    A row of scores without any key gives what the program has written: NaN where keys are hidden by ``-inf``, the mean
    of all values where by another large negative number.

    Args:
        model: a module or a function; without one, a decorator is returned.
        then: the backend of torch that compiles the result: its name, or the backend itself. ``'eager'`` compiles
            nothing further.
        options: of inductor's; ``then`` may be among them, as for the backend.
        mode: of inductor's, such as ``'max-autotune'`` or ``'reduce-overhead'``.
        more: as for ``torch.compile``: ``dynamic``, ``fullgraph``, ``disable``.

    Returns:
        What ``torch.compile`` returns.

    Raises:
        ImportError: torch isn't installed.
        EinsumError: two backends are to compile the result, or one that takes no options and no mode is given some, or
            ``then`` is neither a name nor a backend.

    Example:
        >>> import torch, einops_fast
        >>> def attend(q, k, v):
        ...     scores = torch.einsum('bihd,bjhd->bhij', q, k) / 4
        ...     return torch.einsum('bhij,bjhd->bihd', scores.softmax(-1), v)
        >>> with einops_fast.fusions() as log:
        ...     result = einops_fast.compile(attend, then='eager')(*torch.ones(3, 2, 5, 3, 16))
        >>> result.shape, [found.pattern for found in log.fused]
        (torch.Size([2, 5, 3, 16]), ['a b c d, a e c d, a e c f -> a b c f'])
    """
    import torch

    from einops_fast.compiler.backend import einops_fast_backend, next_backend

    chosen = {"then": then, **(options or {})}
    if then is not chosen["then"] and then != "inductor":
        raise EinsumError(f"then={then!r}, but options has then={chosen['then']!r}: give one of them")
    next_backend(chosen, mode)  # refuses now what there isn't, as torch does
    if mode is None:
        return torch.compile(model, backend=einops_fast_backend, options=chosen, **more)
    # torch.compile takes a mode or options.
    backend = update_wrapper(partial(einops_fast_backend, options=chosen), einops_fast_backend)
    return torch.compile(model, backend=backend, mode=mode, **more)


class CompileReplacement:
    """Puts our backend before inductor. Other backends are left alone."""

    def __init__(self) -> None:
        import torch

        self._body = FunctionBody(torch.compile)

    def start(self) -> None:
        """Have what is compiled from now on be rewritten first."""
        self._body.exchange(self._compile)

    def stop(self) -> None:
        """Have torch's own code run again; what was compiled stays as it is."""
        self._body.put_back()

    def _compile(self, *model: Any, **options: Any) -> Any:
        from einops_fast.compiler.backend import einops_fast_backend, next_backend

        if options.get("backend", "inductor") == "inductor":
            options["backend"] = einops_fast_backend
            if None in (options.get("mode"), options.get("options")):  # or torch refuses them
                next_backend(options.get("options"), options.get("mode"))
        return self._body.native(*model, **options)
