"""The backend of torch.compile: rewrites Dynamo's graph, and hands it on to another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from einops_fast.compiler.rewriting import rewritten
from einops_fast.errors import EinsumError

__all__ = ["einops_fast_backend"]


def einops_fast_backend(
    module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph: ``torch.compile(model, backend='einops_fast')``.

    Args:
        module: Dynamo's graph.
        inputs: examples of its inputs.
        options: ``then`` is the backend that gets the rewritten graph, by name; ``'inductor'`` by default, which gets
            all other options.
        mode: of inductor's, as for ``torch.compile``.
    """
    own = dict(options or {})
    then = own.pop("then", "inductor")
    rewritten(module, fuses=then == "inductor" or callable(then))
    if then == "inductor":
        inductor: Any = torch._TorchCompileInductorWrapper
        return inductor(mode, own, None)(module, inputs)  # type: ignore[no-any-return]
    if own or mode:
        given = ", ".join([*own, *([f"mode={mode!r}"] if mode else [])])
        raise EinsumError(f"the backend {then!r} takes no options and no mode, but got {given}")
    if then == "eager":
        return module.forward  # type: ignore[no-any-return]
    found: Any = then if callable(then) else torch._dynamo.lookup_backend(then)
    return found(module, inputs)  # type: ignore[no-any-return]
