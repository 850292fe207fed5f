"""The backend of torch.compile: rewrites Dynamo's graph, and hands it on to another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from einops_fast.compiler.report import tell
from einops_fast.compiler.rewriting import rewritten
from einops_fast.errors import EinsumError

_OF_DYNAMO = ("guard_filter_fn", "use_aoti")
"""Options that ``torch.compile`` takes for itself."""


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
    then, compiled_by = next_backend(options, mode)
    found = rewritten(module, fuses=then == "inductor" or callable(then))
    compiled: Callable[..., Any] = compiled_by(module, inputs)  # Dynamo may begin anew instead, with another graph
    for fusion in found:
        tell(fusion)
    return compiled


def next_backend(options: Mapping[str, Any] | None, mode: str | None) -> tuple[Any, Callable[..., Any]]:
    """Return what gets the rewritten graph: as it was given, and as a function of the graph and its inputs.

    Raises:
        EinsumError: it takes no options or no mode, or is neither a name nor a function.
        RuntimeError: inductor has no such option or mode. Torch has an error for backends that there aren't, too.
    """
    own = {name: value for name, value in (options or {}).items() if name not in _OF_DYNAMO}
    then = own.pop("then", "inductor")
    if isinstance(then, str) and then == "inductor":
        inductor: Any = torch._TorchCompileInductorWrapper
        return then, inductor(mode, own, None)
    if own or mode:
        given = ", ".join([*own, *([f"mode={mode!r}"] if mode else [])])
        raise EinsumError(f"the backend {then!r} takes no options and no mode, but got {given}")
    if not (isinstance(then, str) or callable(then)):
        names = ", ".join(map(repr, torch.compiler.list_backends(exclude_tags=None)))
        raise EinsumError(f"then is a backend of torch.compile, or the name of one ({names}), not {then!r}")
    if then == "eager":
        return then, lambda module, inputs: module.forward
    return then, then if callable(then) else torch._dynamo.lookup_backend(then)
