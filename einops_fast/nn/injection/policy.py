"""`register_policy`: how modules of a program's own class do their work in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from einops_fast.errors import EinsumError
from einops_fast.nn.injection.native_code import trust
from einops_fast.nn.injection.replacement import Replacement, empty


class _Policy(Replacement):
    """What a program says of a class: its replacement has no name by which another process finds it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        made, *others = super().__reduce_ex__(protocol)
        return (_made_again, (self.original,), *others[1:]) if made is empty else (made, *others)


policies: dict[type[nn.Module], type[_Policy]] = {}
"""What was registered, by the class that it is for."""


def _made_again(original: type[nn.Module]) -> Any:
    policy = policies.get(original)
    return original.__new__(original) if policy is None else empty(policy, original)


def register_policy(kind: type[nn.Module], forward: Callable[..., Any] | None, does: str = "") -> None:
    """Have :func:`einops_fast.nn.optimize` replace the modules of a class of your own.

    Args:
        kind: the class; modules of classes derived from it stay as they are.
        forward: takes a module and what its own ``forward`` takes, and returns what that returns, or
            ``NotImplemented`` for a call that is to go there; for parts with hooks, call them. ``None`` to forget the
            class: what is replaced already stays so.
        does: what the report says; the name of ``forward`` if left out.

    Raises:
        EinsumError: ``kind`` is no class of modules, or ``forward`` can't be called.

    Example:
        >>> import torch
        >>> from einops_fast import nn, ops
        >>> class Norm(torch.nn.Module):
        ...     def __init__(self, size):
        ...         super().__init__()
        ...         self.scale = torch.nn.Parameter(torch.ones(size))
        ...     def forward(self, x):
        ...         return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.scale
        >>> nn.register_policy(Norm, lambda norm, x: ops.rms_norm(x, None, norm.scale, 1e-6), 'ops.rms_norm')
        >>> nn.optimize(Norm(4)).replaced
        (Row(name='', kind='Norm', now='ops.rms_norm', reason=''),)
        >>> nn.register_policy(Norm, None)
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or issubclass(kind, Replacement):
        raise EinsumError(f"kind is a class of modules, not {kind!r}")
    if forward is None:
        policies.pop(kind, None)
        return
    if not callable(forward):
        raise EinsumError(f"forward is a function of a module and its inputs, not {forward!r}")
    trust(kind)
    name = does or getattr(forward, "__qualname__", type(forward).__name__)
    policies[kind] = type("Policy", (_Policy,), {"does": name, "fused": staticmethod(forward)})
