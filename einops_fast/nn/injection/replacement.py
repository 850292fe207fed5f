"""A module that does its work in another way: the same object, of a class derived from its own.

So everything else about it stays as it is: its name and its place, parameters, state, hooks, what ``isinstance`` and
the name of its class say; and the forward of its own class is there for calls that the new one doesn't take.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import nn

from einops_fast.errors import EinsumError
from einops_fast.nn.injection.native_code import foreign_code, unchanged

ALREADY = "is replaced already"
"""Why a module isn't replaced once more."""


class Replacement(nn.Module):
    """What a replaced module is, beside what it was. Derived classes have the new way as ``fused``."""

    does: ClassVar[str]  # in words, for the report
    original: ClassVar[type[nn.Module]]  # the class that the module had
    fused_forward: ClassVar[Callable[..., Any]]  # the `forward` that was put on its class
    fused: ClassVar[Callable[..., Any]]
    """Takes what the original ``forward`` takes; returns ``NotImplemented`` for a call that is for the original."""

    if TYPE_CHECKING:  # it has the attributes of the class that it was of

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        """Why this module can't be replaced, in a few words; ``None`` if it can."""
        return None

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        """What else the class derived from ``original`` has."""
        return {}

    def extra_repr(self) -> str:
        """The arguments of the class that was replaced, and what does its work."""
        own: str = super().extra_repr()
        return f"{own}, now={self.does!r}" if own else f"now={self.does!r}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = type(self)
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        if _is_changed(made):
            return reduced
        # The class found by its name is the original: this one is made again.
        return (empty, (made.__bases__[0], made.original), *reduced[2:])

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what ``torch.jit.script`` compiles: a module with the same parts, of the class that was replaced."""
        scriptable = self.original.__new__(self.original)
        scriptable.__dict__.update(self.__dict__)
        return scriptable


_classes: dict[tuple[type[Replacement], type[nn.Module]], type[Replacement]] = {}


def _derived(replacement: type[Replacement], original: type[nn.Module]) -> type[Replacement]:
    found = _classes.get((replacement, original))
    if found is None:
        members = replacement.members(original)
        forward = _forward(members.get("fused") or replacement.fused, original)
        names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
        members |= {"original": original, "forward": forward, "fused_forward": forward, **names}
        made = type(original.__name__, (replacement, original), members)
        found = _classes.setdefault((replacement, original), made)
    return found


def _forward(fused: Callable[..., Any], original: type[nn.Module]) -> Callable[..., Any]:
    # Somebody may have kept it as a method of a module that was restored since.
    @wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, Replacement) and unchanged(original) and not _is_traced_by_fx():
            result = fused(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return original.forward(self, *args, **kwargs)

    return forward


def _is_traced_by_fx() -> bool:
    """Whether ``torch.fx.symbolic_trace`` calls modules with its proxies (``make_fx`` calls them with tensors)."""
    if torch.compiler.is_compiling() or not torch.fx._symbolic_trace._is_fx_tracing_flag:
        return False
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is None


def empty(replacement: type[Replacement], original: type[nn.Module]) -> Any:
    """Return a replaced module of this class without anything in it."""
    foreign_code(original)  # torch.compile can't follow this: it is known when the module is called
    made = _derived(replacement, original)
    return made.__new__(made)


def put(replacement: type[Replacement], module: nn.Module) -> None:
    """Replace a module."""
    module.__class__ = _derived(replacement, type(module))


def take_back(module: nn.Module) -> bool:
    """Give a module its own class again; whether it had another."""
    if not isinstance(module, Replacement):
        return False
    cast(Any, module).__class__ = module.original
    vars(module).pop("hooks_around", None)
    return True


def check_unchanged(module: nn.Module, name: str) -> None:
    """Raise EinsumError if something else has changed the class of a replaced module since."""
    if isinstance(module, Replacement) and _is_changed(type(module)):
        what = "got another class" if "original" not in vars(type(module)) else "got another forward on its class"
        raise EinsumError(f"{name or 'the model'} {what} since, {type(module).__name__}: undo that first")


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module has, or had before it was replaced."""
    if is_fused(module, Replacement):
        return cast(Any, module).original  # type: ignore[no-any-return]
    return type(module)


def is_fused(module: Any, replacement: type[Replacement]) -> bool:
    """Whether a module is replaced, and nobody has derived another class from its class or changed its forward."""
    return isinstance(module, replacement) and not _is_changed(type(module))


def _is_changed(made: type[Replacement]) -> bool:
    return "original" not in made.__dict__ or made.forward is not made.fused_forward
